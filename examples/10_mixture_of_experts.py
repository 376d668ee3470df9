"""A mixture of experts on three different devices: the plan puts more experts on faster ones, and
tokens travel to them. The numbers of experts and of rows are found together.

The GPUs are emulated at a hundredth of their real speed. For your own run, name yours in a cluster
file (`medley list devices`), and leave out `emulated`. Experts of transformers' models (try
`hf.mixtral(batch=ROWS)`) are one op: there the plan may cut each expert's width in such shares.
"""

from pathlib import Path

import torch

import medley
from medley import cli
from medley.run import job
from medley_extras.models import bert_moe

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: big, count: 1, device: new, devices_per_node: 1}
  - {name: mid, count: 1, device: half, devices_per_node: 1}
  - {name: old, count: 1, device: third, devices_per_node: 1}
networks:
  - {name: lan, connects: [big, mid, old], bandwidth: 10 Gbit/s, latency: 50 us}
devices:
  new:
    sustained: {f32: 200 Gflop/s}
    memory: 1 GiB
    memory_bandwidth: 24 GB/s
    launch_latency: 5 us
  half:
    sustained: {f32: 100 Gflop/s}
    memory: 1 GiB
    memory_bandwidth: 12 GB/s
    launch_latency: 5 us
  third:
    sustained: {f32: 66 Gflop/s}
    memory: 1 GiB
    memory_bandwidth: 8 GB/s
    launch_latency: 5 us
"""
STRATEGIES = "data-parallel-proportional,hap-even,hap"
ROWS, EXPERTS = 24, 12


def main() -> None:
    torch.manual_seed(0)
    model, batch = bert_moe(
        experts=EXPERTS, capacity=1.25, positions=32, width=64, hidden=256, batch=ROWS
    )
    graph = medley.capture(model, batch)
    Path("moe.graph").write_text(graph.text())
    Path("cluster.yaml").write_text(CLUSTER)
    size = ["--global-batch", str(ROWS), "--strategies", STRATEGIES]
    cli.run(["compare", "moe.graph", "cluster.yaml", *size])

    plan = medley.plan(graph, "cluster.yaml", global_batch=ROWS)
    text = plan.explain()
    print(f"\n{text[: text.index('layer ')]}{text[text.index('parameter ') :]}")

    (part,) = plan.to_dict()["parts"]
    counts = [round(EXPERTS * share / sum(part["shares"])) for share in part["shares"]]
    print(f"of {EXPERTS} experts, rounded, on {', '.join(plan.devices)}: {counts}\n")

    with job.emulated():
        trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=3e-3), local=True)
    for _ in range(10):
        step = trainer.step(batch)
        print(f"step {step.step}: {step.step_seconds * 1e3:.2f} ms, loss {step.loss:.3f}")


if __name__ == "__main__":
    main()
