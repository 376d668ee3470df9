"""Two pools of different GPUs joined by a low-bandwidth link. Data parallelism sends all gradients
over it, a pipeline with a stage per pool only the values at one boundary.

The GPUs are emulated at a hundredth of their real speed: this small model is to them as a large
model is to real ones. Losses are real: those of plain PyTorch on one device.
"""

import copy
from pathlib import Path

import torch

import medley
from medley import cli
from medley.run import job
from medley_extras.models import gpt

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: new, count: 1, device: big, devices_per_node: 2}
  - {name: old, count: 1, device: small, devices_per_node: 2}
networks:
  - {name: fabric, inside: node, bandwidth: 4 GB/s, latency: 5 us}
  - {name: wan, connects: [new, old], bandwidth: 200 Mbit/s, latency: 100 us}
devices:
  big:
    sustained: {f32: 100 Gflop/s}
    memory: 1 GiB
    memory_bandwidth: 12 GB/s
    launch_latency: 5 us
  small:
    sustained: {f32: 50 Gflop/s}
    memory: 1 GiB
    memory_bandwidth: 8 GB/s
    launch_latency: 5 us
"""
STRATEGIES = "data-parallel-even,data-parallel-proportional,megatron,harp"
ROWS, STEPS, RATE = 64, 4, 3e-3


def eager(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> list[float]:
    """Returns the losses of plain PyTorch on one device."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main() -> None:
    torch.manual_seed(0)
    model, batch = gpt(width=128, layers=6, batch=ROWS)
    graph = medley.capture(model, batch)
    Path("gpt.graph").write_text(graph.text())
    Path("pools.yaml").write_text(CLUSTER)
    files = ["gpt.graph", "pools.yaml"]
    cli.run(["compare", *files, "--global-batch", str(ROWS), "--strategies", STRATEGIES])

    plan = medley.plan(graph, "pools.yaml", "harp", global_batch=ROWS)
    plan.save("plan.json")
    pipeline = plan.to_dict()["pipelines"][0]
    print(f"\nschedule {pipeline['schedule']}, {len(pipeline['microbatches'])} micro-batches")
    for stage, in_flight in zip(pipeline["stages"], pipeline["in_flight"], strict=True):
        first = stage.get("first", "the beginning")
        devices = ", ".join(stage["mesh"]["devices"])
        print(f"from {first} on {devices}: {in_flight} in flight")

    print("\nPredicted")
    cli.run(["simulate", *files, "plan.json"])

    print("\nEmulated")
    with job.emulated():
        optimizer = medley.AdamW(lr=RATE, weight_decay=0.01)
        trainer = medley.Trainer(model, graph, plan, optimizer, local=True)
    for expected in eager(copy.deepcopy(model), batch):
        step = trainer.step(batch)
        print(
            f"step {step.step}: {step.step_seconds * 1e3:.1f} ms, loss {step.loss:.4f}, "
            f"of PyTorch on one device {expected:.4f}"
        )
        assert abs(step.loss - expected) < 1e-4 * expected


if __name__ == "__main__":
    main()
