"""The lives of a run. A load ends one and begins the next, in which the same steps may come again.
A process that comes later goes through all of them, and is given the steps of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from medley.metrics import Given
from medley.run.course import Course


class Life:
    """From one load to the next, of a run with so many objectives."""

    def __init__(self, number: int) -> None:
        self.course = Course(number)
        self.seen: list[Given] = []  # what each step gave


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
            self.last.course.begin(counts)
            self.last.seen = [Given(math.nan, math.nan, {})] * sum(counts)
        return is_new

    def export(self, steps: int) -> list[Any]:
        """Returns what others load, of the last life so many steps."""
        ends = [len(life.seen) for life in self._all[:-1]] + [steps]
        return [
            [life.course.export(end), life.seen[:end]]
            for life, end in zip(self._all, ends, strict=True)
        ]

    def load(self, told: Sequence[Any]) -> None:
        """Takes the lives of another process. The order of steps that the script has asked for, and
        the run has not made, stays."""
        new = [Life(self._number) for _ in told[len(self._all) :]]
        self._all = [*self._all[: len(told)], *new]
        for life, (course, seen) in zip(self._all, told, strict=True):
            life.course.extend(course)
            life.seen = [Given(*each) for each in seen]
