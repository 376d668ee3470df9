"""Compute times of devices. At the end of a job those slower than the plan expects are printed."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping

from medley import _runtime, extras
from medley.run import job
from medley.run.patience import say

FEWEST_STEPS = 5
_PATIENCE_SECONDS = 10.0  # for devices that do not report their time


class Stopwatch:
    """Sums the compute time of this process's device."""

    def __init__(self) -> None:
        self.steps = -1  # the first step warms up
        self.nanoseconds = 0
        self.failed = False  # others may be gone: slow devices are not reported

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Wraps a step and records its failure."""
        try:
            yield
        except BaseException:
            self.failed = True
            raise

    def add(self, nanoseconds: int) -> None:
        """Adds the compute time of a step, without idle time."""
        self.steps += 1
        if self.steps > 0:
            self.nanoseconds += nanoseconds


def report(
    this: job.Job,
    generation: int,
    kinds: Mapping[str, str],
    watch: Stopwatch,
    expect: Callable[[], Mapping[str, float]],
) -> None:
    """Sends the compute time of this device to the first process, which prints the slow devices.
    `kinds` has a key for each device in process order; devices of one key are compared. `expect`
    returns the planned compute time of each device per step, in nanoseconds."""
    if watch.failed or watch.steps < FEWEST_STEPS or this.size < 2:
        return
    # At the end of a run a missing store or prediction is no error.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        store = _runtime.c10d_store(
            **job.store_address(), serve=False, timeout_ms=round(1000 * _PATIENCE_SECONDS)
        )
        store.set(f"took/{generation}/{this.rank}", json.dumps(watch.nanoseconds / watch.steps))
        if this.rank != 0:
            return
        expected = expect()
        took = {}
        end = time.monotonic() + _PATIENCE_SECONDS
        for rank, name in enumerate(kinds):
            left = max(1, round(1000 * (end - time.monotonic())))
            took[name] = json.loads(store.wait(f"took/{generation}/{rank}", left))
        for sentence in extras.slow(expected, took, kinds):
            say(sentence)
