"""The lives of a run. A load ends one and begins the next, in which the same steps may come again.
A process that comes later goes through all of them, and is given the steps of each."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Sequence
from typing import Any

from medley.metrics import Given, Metrics


@dataclasses.dataclass
class Progress:
    """How far a process is; steps are counted over all objectives."""

    asked: int = 0  # steps that the script has asked for
    done: int = 0  # steps that the state is of
    begun: int = -1  # the last step that the run has begun, or has been brought to
    metrics: Metrics | None = None  # of the last step
    epoch: int = -1  # the one whose plan says what this process has; -1: nothing
    back: int = 0  # the epoch in which this process last went back to copies or a checkpoint
    members: list[str] = dataclasses.field(default_factory=list)  # of the epoch that stay
    spares: int = 0  # those of them without a device of the plan


class Life:
    """From one load to the next, of a run with so many objectives, which are numbers from 0."""

    def __init__(self, number: int) -> None:
        self.seen: list[Given] = []  # what each step gave
        self._of = array("H")  # the objective, by step, also of steps that are asked for
        self._counts = 0, [0] * number  # among so many steps, of each objective

    def ask(self, step: int, objective: int) -> bool:
        """Returns whether a step is of this objective; the step behind the last one becomes so."""
        if step == len(self._of):
            self._of.append(objective)
        return self._of[step] == objective

    def objective(self, step: int) -> int:
        """Returns the objective that a step is of."""
        return self._of[step]

    def counts(self, steps: int) -> list[int]:
        """Returns how many of the first steps are of each objective."""
        counted, counts = self._counts
        if steps < counted:
            counted, counts = 0, [0] * len(counts)
        for each in self._of[counted:steps]:
            counts[each] += 1
        self._counts = steps, counts
        return list(counts)

    def begin(self, counts: Sequence[int]) -> None:
        """So many steps of each objective were made before, in any order."""
        self._of.extend(each for each, count in enumerate(counts) for _ in range(count))
        self.seen = [Given(math.nan, math.nan, {})] * sum(counts)

    def export(self, steps: int) -> list[Any]:
        """Returns so many steps, which another process can load()."""
        return [self._of[:steps].tolist(), self.seen[:steps]]

    def load(self, told: Sequence[Any]) -> None:
        """Takes the steps of another process. The order of steps that the script has asked for, and
        the run has not made, stays."""
        objectives, seen = told
        self._of.extend(objectives[len(self._of) :])
        self.seen = [Given(*each) for each in seen]


class Lives:
    """As one process knows them."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._all = [Life(number)]
        self.place = 0  # of the life that the script is in

    @property
    def last(self) -> Life:
        """The one that the run is in."""
        return self._all[-1]

    @property
    def here(self) -> Life:
        """The one that the script is in."""
        return self._all[self.place]

    @property
    def newest(self) -> int:
        """The place of the last one."""
        return len(self._all) - 1

    @property
    def is_past(self) -> bool:
        """Whether the run has ended the life that the script is in."""
        return self.place < self.newest

    def begin(self, counts: Sequence[int]) -> bool:
        """The script comes to the next life, which begins after so many steps of each objective;
        returns whether the run begins it with that, too."""
        is_new = not self.is_past
        self.place += 1
        if is_new:
            self._all.append(Life(self._number))
            self.last.begin(counts)
        return is_new

    def export(self, steps: int) -> list[Any]:
        """Returns what others load(), of the last life so many steps."""
        ended = [life.export(len(life.seen)) for life in self._all[:-1]]
        return [*ended, self.last.export(steps)]

    def load(self, told: Sequence[Any]) -> None:
        """Takes the lives of another process."""
        new = [Life(self._number) for _ in told[len(self._all) :]]
        self._all = [*self._all[: len(told)], *new]
        for life, each in zip(self._all, told, strict=True):
            life.load(each)
