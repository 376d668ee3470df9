"""Batches of other sizes than the plan is for: the programs of a run that they take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from medley import _core
from medley.data.sampler import own_rows


class Sizes:
    """Of one run. A program is made when a batch of its size comes for the first time."""

    def __init__(
        self, run: Any, planned: _core.Program, global_batch: int, rank: int | None
    ) -> None:
        """`rank`: of this process in a job; None: it has all devices."""
        self.run = run
        self._planned = planned
        self._rank = rank
        self._programs = {global_batch: planned}  # by rows
        self._numbers = {global_batch: 0}  # in the run
        self._own: dict[int, Sequence[int]] = {}

    def number(self, rows: int) -> int:
        """Returns the number that the run knows the program by for a batch of so many rows."""
        if rows not in self._numbers:
            self._numbers[rows] = int(self.run.add_size(self._program(rows)))
        return self._numbers[rows]

    def own_rows(self, rows: int) -> Sequence[int]:
        """Returns which of so many rows this process computes."""
        if self._rank is None:
            return range(rows)
        if rows not in self._own:
            self._own[rows] = own_rows(self._program(rows), self._rank)
        return self._own[rows]

    def _program(self, rows: int) -> _core.Program:
        if rows not in self._programs:
            self._programs[rows] = self._planned.with_rows(rows)
        return self._programs[rows]
