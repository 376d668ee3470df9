"""Which objective each step of a run is of, and how many of each there are before a step."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class Course:
    """The order of steps of a run with so many objectives, which are numbers from 0."""

    def __init__(self, number: int) -> None:
        self._of = array("H")  # by step
        self._number = number
        self._counted = 0  # steps
        self._counts = [0] * number  # among these

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, step: int) -> int:
        return self._of[step]

    def ask(self, step: int, objective: int) -> bool:
        """Returns whether a step is of this objective; the step behind the last one becomes so."""
        if step == len(self._of):
            self._of.append(objective)
        return self._of[step] == objective

    def counts(self, steps: int) -> list[int]:
        """Returns how many of the first steps are of each objective."""
        if steps < self._counted:
            self._counted, self._counts = 0, [0] * self._number
        for each in self._of[self._counted : steps]:
            self._counts[each] += 1
        self._counted = steps
        return list(self._counts)

    def begin(self, counts: Sequence[int]) -> None:
        """So many steps of each objective were made, in any order."""
        self.extend([each for each, count in enumerate(counts) for _ in range(count)])

    def export(self, steps: int) -> list[int]:
        """Returns what others take with extend()."""
        return self._of[:steps].tolist()

    def extend(self, told: Sequence[int]) -> None:
        """The first steps are these; those behind them that are known stay."""
        self._of.extend(told[len(self._of) :])
