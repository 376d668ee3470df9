"""A small GPT on three devices, one of them half as fast: capture, plan, train.

Here all devices are threads of this process. The same script runs as one process per device under
`torchrun --nproc-per-node=3` and under `medley launch plan.json`.
"""

import torch

import medley
from medley.cluster import parse_cluster
from medley_extras.models import gpt

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 2}
  - {name: slow, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
  - {name: lan, connects: [fast, slow], bandwidth: 10 Gbit/s, latency: 20 us}
devices:
  half: {based_on: CPU, speed: 0.5, memory: 8 GiB}
"""


def main() -> None:
    torch.manual_seed(0)
    model, batch = gpt(batch=32)
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, parse_cluster(CLUSTER, "cluster.yaml"), global_batch=32)
    print(plan.explain())
    trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=3e-3))
    for _ in range(10):
        metrics = trainer.step(batch)
        print(f"step {metrics.step}: loss {metrics.loss:.3f}")
    trainer.save_model("out")


if __name__ == "__main__":
    main()
