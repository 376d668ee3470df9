"""Detection of devices slower than the plan expects, reported at the end of a run."""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from medley import _runtime
from medley.run import job

SLOW = 1.5  # times the time that the plan expects, relative to the other devices
FEWEST_STEPS = 5
_PATIENCE_SECONDS = 10.0  # for devices that do not report their time


def slow_devices(
    expected: Mapping[str, float], took: Mapping[str, float], kinds: Mapping[str, str]
) -> dict[str, float]:
    """Returns the slow-down factor of each slow device. The ratio of measured to expected time is
    compared among devices of one key (`kinds`, by device). Without a profile all may take three
    times as long, and unmeasured types may differ from their data sheets."""
    ratios = {
        name: took[name] / expected[name]
        for name in expected
        if name in took and expected[name] > 0
    }
    found = {}
    for name, ratio in ratios.items():
        others = [
            each for other, each in ratios.items() if other != name and kinds[other] == kinds[name]
        ]
        if others and ratio > SLOW * (usual := statistics.median(others)) > 0:
            found[name] = ratio / usual
    return found


def sentences(slow: Mapping[str, float]) -> list[str]:
    """Returns a line for each slow device, the slowest first."""
    return [
        f"medley: {name} is slow: computing takes it {factor:.1f}x as long as the plan expects, "
        "measured by the other devices"
        for name, factor in sorted(slow.items(), key=lambda each: -each[1])
    ]


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

    @property
    def mean(self) -> float:
        """The nanoseconds per step."""
        return self.nanoseconds / max(1, self.steps)


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
        store.set(f"took/{generation}/{this.rank}", json.dumps(watch.mean))
        if this.rank != 0:
            return
        expected = expect()
        took = {}
        end = time.monotonic() + _PATIENCE_SECONDS
        for rank, name in enumerate(kinds):
            left = max(1, round(1000 * (end - time.monotonic())))
            took[name] = json.loads(store.wait(f"took/{generation}/{rank}", left))
        for sentence in sentences(slow_devices(expected, took, kinds)):
            print(sentence, file=sys.stderr, flush=True)
