"""Three device types in one cluster, over a network of decreasing bandwidth.

If it carries a step's gradients, every op is divided by speed. If not, a pipeline sends less. If
even that is too much, devices are left out. The table has the result of each strategy, and the
winner's plan shows the work and the idle time of each device.
"""

from pathlib import Path

import torch

import medley
from medley import cli
from medley_extras.models import gpt

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: big, count: 1, device: new, devices_per_node: 1}
  - {name: mid, count: 1, device: half, devices_per_node: 2}
  - {name: old, count: 1, device: quarter, devices_per_node: 2}
networks:
  - {name: bus, inside: node, bandwidth: 4 GB/s, latency: 5 us}
  - {name: lan, connects: [big, mid, old], bandwidth: BANDWIDTH, latency: 50 us}
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
  quarter:
    sustained: {f32: 50 Gflop/s}
    memory: 512 MiB
    memory_bandwidth: 6 GB/s
    launch_latency: 5 us
"""
ROWS = 64


def main() -> None:
    torch.manual_seed(0)
    graph = medley.capture(*gpt(width=128, layers=4, batch=ROWS))
    Path("gpt.graph").write_text(graph.text())
    for bandwidth in ("10 Gbit/s", "1 Gbit/s", "100 Mbit/s"):
        print(f"--- {bandwidth} between the nodes ---", flush=True)
        Path("cluster.yaml").write_text(CLUSTER.replace("BANDWIDTH", bandwidth))
        cli.run(["compare", "gpt.graph", "cluster.yaml", "--global-batch", str(ROWS)])
        plan = medley.plan(graph, "cluster.yaml", global_batch=ROWS)  # the fastest of them
        print(f"\n{plan.explain()}")


if __name__ == "__main__":
    main()
