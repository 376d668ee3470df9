"""Devices that are slower than the plan expects: found at the end of a run, and named."""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping

from medley import _runtime
from medley.run import job

SLOW = 1.5  # times as long as the plan expects, measured by the other devices
FEWEST_STEPS = 5
_PATIENCE_SECONDS = 10.0  # with devices that do not say how long they took


def slow_devices(
    expected: Mapping[str, float], took: Mapping[str, float], kinds: Mapping[str, str]
) -> dict[str, float]:
    """Returns how many times as long as the others each slow device took for its work.

    What a device took is compared with what the plan expects of it, and that with the others of its
    kind (`kinds`, by device): on devices that nobody has profiled all may take three times as long,
    and kinds that were not measured may be another than they are said to be.
    """
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
    """Adds up what the device of this process computes."""

    def __init__(self) -> None:
        self.steps = -1  # the first step warms up
        self.nanoseconds = 0
        self.failed = False  # others may be gone: who is slow is not asked

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Around a step: notes if it fails."""
        try:
            yield
        except BaseException:
            self.failed = True
            raise

    def add(self, nanoseconds: int) -> None:
        """Takes what a step has taken, without waiting."""
        self.steps += 1
        if self.steps > 0:
            self.nanoseconds += nanoseconds

    @property
    def mean(self) -> float:
        """Nanoseconds of a step."""
        return self.nanoseconds / max(1, self.steps)


def report(
    this: job.Job,
    epoch: int,
    kinds: Mapping[str, str],
    watch: Stopwatch,
    expect: Callable[[], Mapping[str, float]],
) -> None:
    """Tells the first process what this device took; that one prints who is slow.

    `kinds` has a word for each device, in the order of the processes: those of one word are
    compared. `expect` gives the nanoseconds that the plan expects each device to compute in a step.
    """
    if watch.failed or watch.steps < FEWEST_STEPS or this.size < 2:
        return
    # At the end of a run no store, or no prediction, is a reason to fail.
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        store = _runtime.c10d_store(
            **job.store_address(), serve=False, timeout_ms=round(1000 * _PATIENCE_SECONDS)
        )
        store.set(f"took/{epoch}/{this.rank}", json.dumps(watch.mean))
        if this.rank != 0:
            return
        expected = expect()
        took = {}
        end = time.monotonic() + _PATIENCE_SECONDS
        for rank, name in enumerate(kinds):
            left = max(1, round(1000 * (end - time.monotonic())))
            took[name] = json.loads(store.wait(f"took/{epoch}/{rank}", left))
        for sentence in sentences(slow_devices(expected, took, kinds)):
            print(sentence, file=sys.stderr, flush=True)
