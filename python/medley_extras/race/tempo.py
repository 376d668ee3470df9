"""Detection of devices that become slower during a run, or fast again, from their compute time per
step. Reported to the leader with the gain of another plan. The measure is the slow-down since the
beginning of the generation relative to the other devices. It is independent of plan and profile,
and of load that slows down all devices."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

Factors = dict[str, float]  # slow-down relative to the device type, by device

WINDOW_STEPS = 20  # steps of which each device reports the median
WINDOWS = 3  # consecutive ones that must agree
LIMIT = 1.3  # times as long
NEAR = 1.15  # times the initial time: counts as full speed
WINDOWS_OF_A_CHANGE = 100  # minimum between two changes for a gain


class Slowing:
    """The windows of one generation. `factors`: those of its plan, 1 by default."""

    def __init__(self, factors: Mapping[str, float]) -> None:
        self._planned = dict(factors)
        self._first: list[Mapping[str, float]] = []
        self._last: list[Factors] = []

    def add(self, took: Mapping[str, float]) -> Factors | None:
        """Adds the time of each device. Returns the factors for a new plan, or None until enough
        windows agree."""
        if len(self._first) < WINDOWS:
            self._first.append(took)
            return None
        self._last = [*self._last[1 - WINDOWS :], self._factors(took)]
        if len(self._last) < WINDOWS:
            return None
        found = dict(self._planned)
        for name in took:
            planned = self._planned.get(name, 1.0)
            seen = [window[name] / planned for window in self._last]
            if min(seen) > LIMIT or max(seen) < 1 / LIMIT:
                found[name] = _rounded(planned * statistics.median(seen))
            elif any(not 1 / LIMIT < each < LIMIT for each in seen):
                return None
        return {name: factor for name, factor in found.items() if factor != 1}

    def _factors(self, took: Mapping[str, float]) -> Factors:
        relative = {
            name: seconds / statistics.median(window[name] for window in self._first)
            for name, seconds in took.items()
        }
        usual = statistics.median_low(relative.values())
        factors = {
            name: self._planned.get(name, 1.0) * each / usual for name, each in relative.items()
        }
        usual = statistics.median_low(factors.values())
        return {name: each / usual for name, each in factors.items()}


def _rounded(factor: float) -> float:
    return 1.0 if 1 / NEAR < factor < NEAR else float(f"{factor:.2g}")


def sentence(before: Mapping[str, float], after: Mapping[str, float]) -> str:
    """Returns a sentence on the devices that have become slower or faster."""
    changed = [
        f"{name} takes {after.get(name, 1.0) / before.get(name, 1.0):.2g}x as long as it did"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]
    return "; ".join(changed)


class Tempo:
    """Observes the steps of one objective in one process across generations. `gain`: returns the
    share of a step that a plan for other factors saves. `want`: publishes the factors for the next
    plan. `name`: objective in the store."""

    def __init__(
        self,
        member: Any,
        settle: float,
        gain: Callable[[Factors, Factors], float],
        want: Callable[[Factors], object],
        name: str = "",
    ) -> None:
        self._member = member
        self._key = f"took{name}"
        self._window_seconds = settle / WINDOWS_OF_A_CHANGE
        self._gain, self._want = gain, want
        self._pool: ThreadPoolExecutor | None = None
        self.begin([], {})

    def begin(self, devices: Sequence[str], factors: Factors) -> None:
        """Begins a generation with these devices, planned for these factors."""
        self._devices, self._planned = list(devices), factors
        self._steps: list[float] = []
        self._windows = 0
        self._judge = Slowing(factors)
        self._told = factors
        self._future: Future[float] | None = None
        self._next = time.monotonic() + self._window_seconds
        self._read: dict[str, int] = {}

    def note_step(self, seconds: float) -> None:
        """Records the compute time of this device in a step."""
        self._steps.append(seconds)
        if len(self._steps) < WINDOW_STEPS:
            return
        told = [self._windows, statistics.median(self._steps)]
        self._windows += 1
        self._steps.clear()
        self._member.store.set(
            self._member.key(f"{self._key}/{self._member.name}"), json.dumps(told)
        )
        if self._member.name == self._devices[0]:
            self._look()

    def _look(self) -> None:
        self._tell()
        if time.monotonic() < self._next or len(self._devices) < 2:
            return
        keys = [self._member.key(f"{self._key}/{n}") for n in self._devices]
        texts = [self._member.store.get(key) for key in keys]
        told = {
            name: json.loads(text)
            for name, text in zip(self._devices, texts, strict=True)
            if text is not None
        }
        numbers = {name: number for name, (number, _) in told.items()}
        if any(numbers.get(name, -1) == self._read.get(name, -1) for name in self._devices):
            return  # another process has done fewer steps
        self._read, self._next = numbers, time.monotonic() + self._window_seconds
        factors = self._judge.add({name: float(took) for name, (_, took) in told.items()})
        if factors is None or factors == self._told or self._future is not None:
            return
        self._told = factors
        self._pool = self._pool or ThreadPoolExecutor(1)
        self._future = self._pool.submit(self._gain, self._planned, factors)

    def _tell(self) -> None:
        """Publishes the factors for the next plan, once its gain is known."""
        if self._future is None or not self._future.done():
            return
        gain = self._future.result()
        self._future = None
        self._want(self._told)
        told = {"gain": gain, "cause": sentence(self._planned, self._told)}
        self._member.store.set(self._member.key("drift"), json.dumps(told))
