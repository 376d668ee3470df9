"""Batches of other sizes than the plan is for: the programs of a run that they take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from medley import _core
from medley.data.inputs import Size, StepBatch
from medley.data.sampler import own_rows

MOST_PROGRAMS = 256


class Sizes:
    """Of one run. A program is made when a batch of its size comes for the first time."""

    def __init__(
        self,
        run: Any,
        planned: _core.Program,
        size: Size,
        rank: int | None,
        at_length: Callable[[int, Any], _core.Program],
    ) -> None:
        """`size`: the planned one. `rank`: of this process in a job; None: it has all devices.
        `at_length` returns the program for sequences of this length, given such a batch."""
        self.run = run
        self._planned = planned
        self._size = size
        self.rank = rank
        self._at_length = at_length
        self._programs = {size: planned}
        self._numbers = {size: 0}  # in the run
        self._own: dict[int, Sequence[int]] = {}
        self._counts: list[int] = []

    def number(self, batch: StepBatch) -> int:
        """Returns the number that the run knows the program by for a batch of this size. In a job
        all processes ask for the same ones."""
        if batch.size not in self._numbers:
            if len(self._numbers) == MOST_PROGRAMS:
                raise ValueError(
                    f"batch: found more than {MOST_PROGRAMS} sizes, expected fewer: give the "
                    "trainer lengths=medley.Lengths(buckets=[...]), or pad to multiples of 64"
                )
            label = f"of {batch.size.rows} rows"
            if batch.size.length != self._size.length:
                label += f" of length {batch.size.length}"
            self.run.begin(f"step() {label}")
            try:
                program = self._program(batch.size, batch.example)
            finally:
                self.run.end()
            self._numbers[batch.size] = int(self.run.add_size(program, label))
        return self._numbers[batch.size]

    def own_rows(self, rows: int) -> Sequence[int]:
        """Returns which of so many rows this process computes."""
        if self.rank is None:
            return range(rows)
        if rows not in self._own:
            size = Size(rows, self._size.length)
            self._own[rows] = own_rows(self._program(size, None), self.rank)
        return self._own[rows]

    def counts(self) -> Sequence[int]:
        """Returns how many rows of a planned batch each process computes, by rank."""
        if not self._counts:
            ranks = range(len(self._planned.devices))
            self._counts = [len(own_rows(self._planned, rank)) for rank in ranks]
        return self._counts

    def _program(self, size: Size, example: Any) -> _core.Program:
        if size not in self._programs:
            whole = Size(self._size.rows, size.length)
            if size != whole:
                self._programs[size] = self._program(whole, example).with_rows(size.rows)
            else:
                self._programs[size] = self._at_length(size.length, example)
        return self._programs[size]
