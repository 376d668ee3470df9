"""Times the steps of a contestant and writes them down."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from testbed.ready import ready

WARM_UP = 3


@dataclasses.dataclass(frozen=True)
class Record:
    """The results of rank 0: the loss of the whole global batch and the seconds of every step."""

    losses: list[float]
    seconds: list[float]

    @property
    def median(self) -> float:
        """Returns the median of the steps after the first few."""
        return statistics.median(self.seconds[WARM_UP:])

    @staticmethod
    def load(path: Path) -> Record:
        """Reads the record of train()."""
        return Record(**json.loads(path.read_text()))


def train(step: Callable[[int], float], steps: int, path: Path, sum_losses: bool) -> None:
    """Runs `WARM_UP + steps` steps. Rank 0 writes the record. `step(i)` returns the loss of the
    global batch, or with `sum_losses` this device's part of it."""
    ready()
    dist.barrier()
    losses, seconds = [], []
    begin = time.perf_counter()
    for number in range(WARM_UP + steps):
        losses.append(step(number))
        end = time.perf_counter()
        seconds.append(end - begin)
        begin = end
    whole = torch.tensor(losses, dtype=torch.float64)
    if sum_losses:
        dist.all_reduce(whole)
    if dist.get_rank() == 0:
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        part.write_text(json.dumps(dataclasses.asdict(Record(whole.tolist(), seconds))))
        part.replace(path)
    dist.barrier()
