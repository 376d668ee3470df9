"""The cost of a save in the background for the steps that it overlaps.

    python benchmarks/checkpoint_stall.py [--width 512] [--layers 8] [--rounds 5] [--spread 60]
        [--json FILE]

A GPT trains on two CPU devices, as threads. A round has some steps without a save, as many during a
save, from its call to the complete checkpoint, and again some without. The output has the median of
the rounds, their minimum and their maximum:

- `stall`: additional time of the steps in the middle over the others. `lost_seconds`: per save.
- `noise`: the same figure for steps without a save, those after one compared with those before it.
- `others`: CPUs used by other programs meanwhile. Above a few hundredths the figures above are
  invalid.
- `writer_seconds`: CPU time of the writing thread, exact.
- `copy_seconds`: kernel time of all other threads in the first steps after the call, beyond that of
  other steps. It is fresh memory: the first update copies the saved values. Only the first save
  needs it, and later ones reuse that memory. Here a save that is not measured precedes.
- `accounted`: the stall from these two, if all are idle while the writer computes, and both devices
  make their copies together.
- `call_seconds`: time for which `Trainer.save` itself blocked the loop.

`--spread`: the seconds over which a save is spread. `Trainer.fit` takes a fifth of those until the
next one. The cost of a save hardly depends on it, but the variation of steps grows with it: many
rounds of ten seconds are more precise than one of a minute.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import medley
from medley.cluster import parse_cluster
from medley_extras import models

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 50 us}
"""
DEVICES = 2
WARM_UP = 3  # steps
COPYING = 3  # steps in which copies take new or recycled memory
NICEST = "19"  # niceness of the writing thread: medley/base/low_priority.cpp


@dataclasses.dataclass
class Used:
    """The CPU time used so far, in seconds."""

    clock: float
    ended: float  # by ended threads of this process
    kernel: float  # in it by those that are, but for the one that writes
    others: float  # by other programs

    def __sub__(self, before: Used) -> Used:
        return Used(*(getattr(self, each) - getattr(before, each) for each in FIELDS))


FIELDS = [field.name for field in dataclasses.fields(Used)]


def used() -> Used:
    """Returns the CPU time used so far."""
    tick = os.sysconf("SC_CLK_TCK")
    living = kernel = 0.0
    for thread in Path("/proc/self/task").iterdir():
        try:
            living += int((thread / "schedstat").read_text().split()[0]) / 1e9
            fields = (thread / "stat").read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        kernel += int(fields[12]) / tick if fields[16] != NICEST else 0.0
    process = time.process_time()
    ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    busy = (sum(ticks) - ticks[3] - ticks[4]) / tick  # without idle CPUs
    return Used(time.perf_counter(), process - living, kernel, busy - process)


def plain(trainer: medley.Trainer, batch: Any, steps: int) -> Used:
    """Returns the CPU time of `steps` steps."""
    before = used()
    for _ in range(steps):
        trainer.step(batch)
    return used() - before


def saving(
    trainer: medley.Trainer, batch: Any, folder: Path, spread: float
) -> tuple[Used, float, float, int]:
    """Returns the CPU time of the steps that a save overlaps, the kernel time of the first of them,
    the seconds of the call that begins the save, and the number of steps."""
    at = trainer.steps
    before = used()
    trainer.save(folder, keep=1, wait=False, spread=spread)
    called = time.perf_counter() - before.clock
    first = used() - before
    while not (folder / f"step-{at:08}").exists():
        trainer.step(batch)
        if trainer.steps - at <= COPYING:
            first = used() - before
    return used() - before, first.kernel, called, trainer.steps - at


def measure(
    trainer: medley.Trainer, batch: Any, folder: Path, spread: float, steps: int
) -> dict[str, float]:
    """Returns the figures of a round. `steps`: in each of its parts without a save."""
    begin = used()
    before = plain(trainer, batch, steps)
    during, first, called, overlapped = saving(trainer, batch, folder, spread)
    after = plain(trainer, batch, steps)
    whole = used() - begin
    step = (before.clock + after.clock) / (2 * steps)
    writer = whole.ended
    usual = (before.kernel + after.kernel) / (2 * steps)
    copies = first - min(COPYING, overlapped) * usual
    return {
        "steps": overlapped,
        "step_seconds": step,
        "stall": during.clock / overlapped / step - 1,
        "lost_seconds": during.clock - overlapped * step,
        "noise": after.clock / before.clock - 1,
        "others": whole.others / whole.clock,
        "writer_seconds": writer,
        "copy_seconds": copies,
        "accounted": (writer + copies / DEVICES) / during.clock,
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
        steps = (saving(trainer, batch, folder, options.spread)[-1] + 1) // 2
        rounds = [
            measure(trainer, batch, folder, options.spread, steps) for _ in range(options.rounds)
        ]
        size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    columns = {key: [each[key] for each in rounds] for key in rounds[0]}
    print(f"{size / 1e6:.1f} MB, {options.rounds} rounds: median, least, most")
    for key, values in columns.items():
        print(f"{key:15} {statistics.median(values):9.4f} {min(values):9.4f} {max(values):9.4f}")
    if options.json:
        options.json.write_text(json.dumps({"megabytes": size / 1e6, "rounds": rounds}))


if __name__ == "__main__":
    main()
