"""State replicas: copies of unreplicated state in the memory of devices outside its failure domain.
The core assigns them (`medley/elastic/state_replicas.h`). At intervals all processes exchange
copies and keep their own state of that step, so that the whole run can return to it. The copies
before are kept until all have the new ones."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

from medley import _core, _runtime
from medley.run import exchange


@dataclasses.dataclass(frozen=True)
class Version:
    """The part of this process in the state after `done` steps, divided as in the plan of a
    generation."""

    generation: int
    done: int
    state: _runtime.KeptState


class Pace:
    """The interval of copies: a number of steps, or 0 to limit their cost to a small share of the
    time. The cost is the time of the exchange and the delay of the next step, which copies the
    state."""

    def __init__(self, every: int) -> None:
        self._every = every
        self._first = 0.0  # seconds of the first step since the last copies
        self._others: list[float] = []  # seconds of the others
        self._last = 0.0

    def begin(self) -> None:
        """Restarts the measurement after copies were made."""
        self._first, self._others, self._last = 0.0, [], time.monotonic()

    def note_step(self) -> None:
        now = time.monotonic()
        if self._first:
            self._others.append(now - self._last)
        else:
            self._first = now - self._last
        self._last = now

    def measured(self, seconds: float, counts_first: bool) -> tuple[float, float]:
        """Returns the cost of copies that take `seconds`, and the step time without them, 0 if
        unknown. Without `counts_first` the first step is slow for other reasons."""
        if not self._others:
            return seconds, self._first
        step = sum(self._others) / len(self._others)
        return seconds + (max(0.0, self._first - step) if counts_first else 0.0), step

    def steps(self, costs: float, step: float) -> int:
        """Returns the number of steps between copies."""
        return self._every or _core.steps_between_copies(costs, step)


class Copies:
    """The copies of one process. `every`: steps between copies; 0: limited by cost."""

    def __init__(self, every: int, find: Callable[[int], _core.StateReplicas]) -> None:
        self._find = find  # finds the state replicas of a generation
        self._replicas: dict[int, _core.StateReplicas] = {}
        self._pace = Pace(every)
        self._generation = -1
        self._next = 0
        self._copies = 0  # made in this generation
        self.versions: list[Version] = []

    def forget(self) -> None:
        """Drops all copies. The next ones are due."""
        self.versions, self._generation = [], -1

    def of(self, generation: int) -> _core.StateReplicas:
        """Returns the places of state replicas under the plan of a generation."""
        if generation not in self._replicas:
            self._replicas[generation] = self._find(generation)
        return self._replicas[generation]

    def version(self, generation: int, done: int) -> Version | None:
        """Returns the part of this process in a state, or None."""
        return next(
            (v for v in self.versions if (v.generation, v.done) == (generation, done)), None
        )

    def is_due(self, generation: int, done: int) -> bool:
        """Returns whether copies are due before the next step. It is the same in all processes."""
        if generation != self._generation:
            self._generation, self._next, self._copies = generation, done, 0
        return done >= self._next and len(self.of(generation)) > 0

    def note_step(self) -> None:
        self._pace.note_step()

    def make(self, done: int, run: Any, peers: _runtime.ReshardPeers) -> dict[str, Any]:
        """Makes the copies together with all. Returns their cost, the same in all."""
        exchange.largest(0.0)  # Gloo keeps sends to a missing process pending for minutes
        start = time.monotonic()
        state = _runtime.KeptState.hold(run)
        sent = state.fill_replicas(self.of(self._generation), peers)
        self.versions.append(Version(self._generation, done, state))
        seconds = time.monotonic() - start
        reports = exchange.values([*self._pace.measured(seconds, self._copies > 1), sent])
        # At this point all processes have theirs.
        self.versions = self.versions[-1:]
        self._replicas = {self._generation: self.of(self._generation)}
        costs, step = max(each[0] for each in reports), max(each[1] for each in reports)
        every = self._pace.steps(costs, step)
        self._next = done + every
        self._copies += 1
        self._pace.begin()
        return {
            "after": done,
            "bytes": sum(each[2] for each in reports),
            "seconds": costs,
            "every": every,
            "share": costs / (every * step) if step else None,
        }
