"""Devices slower than the plan expects. They are printed at the end of a job of fixed size."""

from __future__ import annotations

import contextlib
import json
import statistics
from collections.abc import Callable, Mapping

from medley import Cluster, Plan
from medley.run import exchange, job
from medley.run.patience import Patience, say

SLOW = 1.5  # times the time that the plan expects, relative to the other devices
FEWEST_STEPS = 5
_PATIENCE_SECONDS = 10.0  # for devices that do not report their time


class Speed:
    """The compute time of this process's device under one plan. `expect` returns the planned
    nanoseconds of each device per step."""

    def __init__(
        self,
        this: job.Job,
        generation: int,
        plan: Plan,
        cluster: Cluster,
        profile: str,
        expect: Callable[[], Mapping[str, float]],
    ) -> None:
        self._this, self._expect = this, expect
        self._key = f"took/{generation}/"
        self._compared = plan, cluster, profile
        self._steps, self._nanoseconds = -1, 0  # the first step warms up

    def add(self, nanoseconds: int) -> None:
        """Adds the compute time of a step, without idle time."""
        self._steps += 1
        if self._steps > 0:
            self._nanoseconds += nanoseconds

    def report(self) -> None:
        """Sends the time to the first process, which prints the slow devices."""
        if self._steps < FEWEST_STEPS or self._this.size < 2:
            return
        # At the end of a run a missing store or prediction is no error.
        with contextlib.suppress(OSError, ValueError, RuntimeError):
            exchange.check()
            store = exchange.store()
            store.set(self._key + str(self._this.rank), json.dumps(self._nanoseconds / self._steps))
            if self._this.rank != 0:
                return
            expected, kinds, took = self._expect(), comparable(*self._compared), {}
            patience = Patience(_PATIENCE_SECONDS)
            for rank, name in enumerate(kinds):
                while (text := store.get(self._key + str(rank))) is None:
                    if patience.is_over:
                        return
                    patience.pause()
                took[name] = json.loads(text)
            for sentence in slow(expected, took, kinds):
                say(sentence)


def comparable(plan: Plan, cluster: Cluster, profile: str) -> dict[str, str]:
    """Returns a key for each device in process order: devices of one key are compared. Measured and
    emulated times are comparable across device types; times from data sheets only within one
    type."""
    known = json.loads(profile)["ops"] if profile else {}
    kinds = {}
    for device in plan.devices:
        number = cluster.find(device)
        assert number is not None
        kind = cluster.kind(number).name
        kinds[device] = "measured" if kind in known or job.emulation() else kind
    return kinds


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


def slow(
    expected: Mapping[str, float], took: Mapping[str, float], kinds: Mapping[str, str]
) -> list[str]:
    """Returns a line for each slow device, the slowest first."""
    found = slow_devices(expected, took, kinds)
    return [
        f"{name} is slow: computing takes it {factor:.1f}x as long as the plan expects, "
        "measured by the other devices"
        for name, factor in sorted(found.items(), key=lambda each: -each[1])
    ]
