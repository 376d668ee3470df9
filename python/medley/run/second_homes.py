"""What one failure would take from all: copies of it in the memory of devices that do not fail with
those who have it, and of everything that goes with them.

The core says what lives where (`medley/elastic/second_homes.h`). Every so many steps all give each
other what is to live with them, and hold their own state of that step, so that the run can go back
there as a whole. The copies before are held until all have the new ones.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from medley import _core, _runtime
from medley.run import exchange


@dataclasses.dataclass(frozen=True)
class Version:
    """What this process has of the state after `done` steps, as the plan of an epoch divides it."""

    epoch: int
    done: int
    state: _runtime.KeptState


class Pace:
    """How often copies are made: every so many steps, or (0) so that they cost little of the time.

    What they cost is the time of giving them, and what the next step takes longer than the others,
    since it copies what is held.
    """

    def __init__(self, every: int) -> None:
        self._every = every
        self._first = 0.0  # seconds of the first step since the last copies
        self._others: list[float] = []  # of the others
        self._last = 0.0

    def begin(self) -> None:
        """Copies have been made."""
        self._first, self._others, self._last = 0.0, [], time.monotonic()

    def note_step(self) -> None:
        now = time.monotonic()
        if self._first:
            self._others.append(now - self._last)
        else:
            self._first = now - self._last
        self._last = now

    def measured(self, seconds: float, counts_first: bool) -> tuple[float, float]:
        """Returns what copies cost that take so many seconds, and what a step takes without them,
        0 where nothing is known. Without `counts_first` the first step is slow for other reasons.
        """
        if not self._others:
            return seconds, self._first
        step = sum(self._others) / len(self._others)
        return seconds + (max(0.0, self._first - step) if counts_first else 0.0), step

    def steps(self, costs: float, step: float) -> int:
        """Returns how many steps may pass."""
        return self._every or _core.steps_between_copies(costs, step)


class Copies:
    """Of one process. `every`: the steps between copies; 0: so that they cost little."""

    def __init__(self, every: int, find: Callable[[int], _core.SecondHomes]) -> None:
        self._find = find  # the second homes of an epoch
        self._homes: dict[int, _core.SecondHomes] = {}
        self._pace = Pace(every)
        self._epoch = -1
        self._next = 0
        self._copies = 0  # made in this epoch
        self.versions: list[Version] = []

    def forget(self) -> None:
        """No copies are of use any more; the next ones are due."""
        self.versions, self._epoch = [], -1

    def of(self, epoch: int) -> _core.SecondHomes:
        """Returns what lives where under the plan of an epoch."""
        if epoch not in self._homes:
            self._homes[epoch] = self._find(epoch)
        return self._homes[epoch]

    def version(self, epoch: int, done: int) -> Version | None:
        """Returns what this process has of a state."""
        return next((v for v in self.versions if (v.epoch, v.done) == (epoch, done)), None)

    def is_due(self, epoch: int, done: int) -> bool:
        """Whether copies are to be made before the next step; the same in all processes."""
        if epoch != self._epoch:
            self._epoch, self._next, self._copies = epoch, done, 0
        return done >= self._next and len(self.of(epoch)) > 0

    def note_step(self) -> None:
        self._pace.note_step()

    def make(self, done: int, run: Any, peers: _runtime.MovePeers) -> dict[str, Any]:
        """Makes the copies, together with all; returns what they cost, the same in all."""
        start = time.monotonic()
        state = _runtime.KeptState.hold(run)
        sent = state.fill_homes(self.of(self._epoch), peers)
        self.versions.append(Version(self._epoch, done, state))
        seconds = time.monotonic() - start
        all_told = exchange.values([*self._pace.measured(seconds, self._copies > 1), sent])
        # Whoever comes here knows that all have theirs.
        self.versions = self.versions[-1:]
        self._homes = {self._epoch: self.of(self._epoch)}
        costs, step = max(each[0] for each in all_told), max(each[1] for each in all_told)
        every = self._pace.steps(costs, step)
        self._next = done + every
        self._copies += 1
        self._pace.begin()
        return {
            "after": done,
            "bytes": sum(each[2] for each in all_told),
            "seconds": costs,
            "every": every,
            "share": costs / (every * step) if step else None,
        }
