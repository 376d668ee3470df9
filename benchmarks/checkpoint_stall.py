"""What a save beside training costs the steps that it overlaps.

    python benchmarks/checkpoint_stall.py [--width 512] [--layers 8] [--rounds 5] [--spread 60]
        [--json FILE]

A GPT trains on two CPU devices, as threads. A round makes some steps without a save and as many
during which one is written, from the call that begins it until the checkpoint is complete; which of
the two comes first alternates. The stall is how much longer those steps took, the median of the
rounds; `lost_seconds` the same for a save; `processor_seconds` what a save takes of all cores, on
whatever thread; `call_seconds` how long `Trainer.save` itself kept the loop waiting. Of these only
`processor_seconds` means something while other programs use the machine. `--spread`: the seconds
that a save is spread over; `Trainer.fit` takes a fifth of those until the next one.
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


def plain(trainer: medley.Trainer, batch: Any, steps: int) -> tuple[float, float]:
    """Returns the seconds of so many steps, on the clock and of all processors."""
    start, used = time.perf_counter(), time.process_time()
    for _ in range(steps):
        trainer.step(batch)
    return time.perf_counter() - start, time.process_time() - used


def saving(
    trainer: medley.Trainer, batch: Any, folder: Path, spread: float
) -> tuple[float, float, float, int]:
    """Returns the same of the steps that a save overlaps, the seconds of the call that begins it,
    and how many steps these were."""
    before = trainer.steps
    start, used = time.perf_counter(), time.process_time()
    trainer.save(folder, keep=1, wait=False, spread=spread)
    called = time.perf_counter() - start
    while not (folder / f"step-{before:08}").exists():
        trainer.step(batch)
    return (
        time.perf_counter() - start,
        time.process_time() - used,
        called,
        trainer.steps - before,
    )


def measure(
    trainer: medley.Trainer, batch: Any, folder: Path, spread: float, steps: int, first: bool
) -> dict[str, float]:
    """Returns what a round has shown; `steps`: about as many as a save overlaps."""
    without = plain(trainer, batch, steps) if first else (0.0, 0.0)
    during, used, called, overlapped = saving(trainer, batch, folder, spread)
    if not first:
        steps = overlapped
        without = plain(trainer, batch, steps)
    step, processors = without[0] / steps, without[1] / steps
    return {
        "steps": overlapped,
        "step_seconds": step,
        "stall": during / overlapped / step - 1,
        "lost_seconds": during - overlapped * step,
        "processor_seconds": used - overlapped * processors,
        "call_seconds": called,
    }


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--spread", type=float, default=0.0, help="seconds of a save")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.manual_seed(0)
    model, batch = models.gpt(width=options.width, layers=options.layers, batch=options.batch)
    graph = medley.capture(model, batch)
    machines = parse_cluster(CLUSTER)
    plan = medley.plan(graph, machines, "data-parallel-even", global_batch=options.batch)
    trainer = medley.Trainer(model, graph, plan, keep_gradients=False)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plain(trainer, batch, WARM_UP)
        steps = saving(trainer, batch, folder, options.spread)[-1]
        rounds = [
            measure(trainer, batch, folder, options.spread, steps, number % 2 == 0)
            for number in range(options.rounds)
        ]
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    result = {"megabytes": size / 1e6, **medians, "rounds": rounds}
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
