"""What a save beside training costs the steps that it overlaps.

    python benchmarks/checkpoint_stall.py [--width 512] [--layers 8] [--rounds 5] [--json FILE]

A GPT trains on two CPU devices, as threads. Each round takes as many steps without a save as with
one, which begins after the first of them and is complete before the last one ends; the stall is
how much longer these steps took, and `call` how long `Trainer.save` itself kept the loop waiting.
Rounds of both kinds alternate; medians.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import medley
from medley import models
from medley.cluster import parse_cluster

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 50 us}
"""
WARM_UP = 3  # steps


def steps_until_saved(trainer: medley.Trainer, batch: Any, folder: Path) -> int:
    """Returns how many steps a save overlaps."""
    before = trainer.steps
    trainer.save(folder, wait=False)
    while not any(folder.glob(f"step-{before:08}")):
        trainer.step(batch)
    return trainer.steps - before


def measure(trainer: medley.Trainer, batch: Any, steps: int, folder: Path | None) -> list[float]:
    """Returns the seconds of so many steps, and of the call that saves in front of them."""
    start = time.perf_counter()
    if folder is not None:
        trainer.save(folder, keep=1, wait=False)
    saved = time.perf_counter()
    for _ in range(steps):
        trainer.step(batch)
    return [time.perf_counter() - start, saved - start]


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    model, batch = models.gpt(width=options.width, layers=options.layers, batch=16)
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, parse_cluster(CLUSTER), "data-parallel-even", global_batch=16)
    trainer = medley.Trainer(model, graph, plan, keep_gradients=False)
    plain: list[float] = []
    saving: list[list[float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(WARM_UP):
            trainer.step(batch)
        steps = steps_until_saved(trainer, batch, Path(folder))
        for _ in range(options.rounds):
            plain.append(measure(trainer, batch, steps, None)[0])
            saving.append(measure(trainer, batch, steps, Path(folder)))
        trainer.save(folder, keep=1)
        size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    without, during = statistics.median(plain), statistics.median(row[0] for row in saving)
    result = {
        "megabytes": size / 1e6,
        "steps": steps,
        "seconds_without": without,
        "seconds_saving": during,
        "stall": during / without - 1,
        "call_seconds": statistics.median(row[1] for row in saving),
    }
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
