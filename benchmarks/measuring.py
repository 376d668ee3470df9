"""The cost of measuring op times during training, as `--tune` does:

    python benchmarks/measuring.py

Pairs of trainers do steps in turn, one of them with measuring. The figure is the ratio of the
medians of their CPU times, as the median over the pairs. Two devices are threads of this process.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

import medley
from medley.cluster import parse_cluster
from medley_extras import models

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: pair, count: 2, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [pair], bandwidth: 1 GB/s, latency: 50 us}
"""
ROWS, LAYERS, WARM_UP = 64, 4, 4


def seconds(trainer: medley.Trainer, batch: object) -> float:
    """Returns the CPU seconds of a step."""
    begin = time.process_time()
    trainer.step(batch)
    return time.process_time() - begin


def main() -> None:
    """Prints the ratio of each pair, and their median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--strategy", default="harp")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, batch = models.gpt(batch=ROWS, layers=LAYERS)
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, parse_cluster(CLUSTER), options.strategy, global_batch=ROWS)
    ratios = []
    for number in range(options.pairs):
        pair = {}
        for measures in (False, True) if number % 2 else (True, False):
            rule = medley.AdamW()
            pair[measures] = medley.Trainer(model, graph, plan, rule, local=True, trace=measures)
        pair[True].engine.measure_against(pair[True].engine.machines)
        for each in pair.values():
            for _ in range(WARM_UP):
                each.step(batch)
        times = [
            (seconds(pair[False], batch), seconds(pair[True], batch)) for _ in range(options.steps)
        ]
        without, measuring = map(statistics.median, zip(*times, strict=True))
        ratios.append(measuring / without)
        print(f"{1000 * without:.1f} ms, {1000 * measuring:.1f} ms: {ratios[-1]:.3f}", flush=True)
    print(f"median {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
