"""Batches of other sizes than the planned one, and the programs that run them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

from medley import _core
from medley.data import same_rows
from medley.data.inputs import Size, StepBatch
from medley.data.row_dim import RowDim
from medley.data.sampler import own_rows
from medley.run import exchange

MOST_PROGRAMS = 256


class Sizes:
    """The sizes of one run. A program is made for the first batch of its size."""

    def __init__(
        self,
        run: Any,
        planned: _core.Program,
        size: Size,
        rank: int | None,
        at_length: Callable[[int, Any], _core.Program],
    ) -> None:
        """`size`: the planned one. `rank`: of this process in a job, or None if it has all devices.
        `at_length`: returns the program for sequences of this length, given an example batch."""
        self.run = run
        self._planned = planned
        self._size = size
        self._rank = rank
        self._at_length = at_length
        self._programs = {size: planned}
        self._numbers = {size: 0}  # number of the program in the run
        self._own: dict[int, Sequence[int]] = {}
        # The number of its own rows that each process receives, at least one, by rank.
        self._counts: list[int] = []
        self._have_own = False
        self._read = 0  # number of batches
        self._digest_key = ""  # key under which all publish a digest of the last batch; "": none

    def number(self, batch: StepBatch) -> int:
        """Returns the number of the program for a batch of this size. In a job all processes
        request the same sizes in the same order."""
        if batch.size not in self._numbers:
            if len(self._numbers) == MOST_PROGRAMS:
                raise ValueError(
                    f"batch: found more than {MOST_PROGRAMS} sizes, expected fewer: give the "
                    "trainer lengths=medley.Lengths(buckets=[...]), or pad to multiples of 64"
                )
            label = f"of {batch.size.rows} rows"
            if batch.size.length != self._size.length:
                label += f" of length {batch.size.length}"
            with exchange.together(self.run, f"step() {label}"):
                program = self._program(batch.size, batch.example)
            self._numbers[batch.size] = int(self.run.add_size(program, label))
        return self._numbers[batch.size]

    def own_rows(self, rows: int) -> Sequence[int]:
        """Returns the rows, of this many, that this process computes."""
        if self._rank is None:
            return range(rows)
        if rows not in self._own:
            size = Size(rows, self._size.length)
            self._own[rows] = own_rows(self._program(size, None), self._rank)
        return self._own[rows]

    def agreed(self, rows: int, digest: Callable[[], str]) -> int:
        """Returns the rows of the whole batch, given the rows that this process received.

        Processes receive all rows, or each its own rows of a whole batch. Ambiguous counts are
        resolved by an exchange: until processes once receive their own rows, if one of them
        computes all rows, or if this process receives fewer.
        """
        assert self._rank is not None
        if not self._counts:
            ranks = range(len(self._planned.devices))
            self._counts = [max(1, len(own_rows(self._planned, rank))) for rank in ranks]
        counts, most, mine = self._counts, self._size.rows, self._counts[self._rank]
        if set(counts) == {most}:
            return rows
        if (rows == most and most not in counts) or (self._have_own and rows in (mine, most)):
            return most
        message = json.dumps([rows, digest() if rows == mine != most else ""])
        with exchange.together(self.run, "step() of a part of a batch"):
            messages = exchange.texts(message)
        found = [json.loads(each)[0] for each in messages]
        if len(set(messages)) == 1 or (set(found) == {rows} and found != counts):
            return rows
        self._have_own = found == counts
        if all(each in (most, own) for each, own in zip(found, counts, strict=True)):
            return most
        raise ValueError(
            f"batch: found {', '.join(map(str, found))} rows in the processes, expected the same "
            f"number in all, or {', '.join(map(str, counts))}, which they compute of a whole one"
        )

    def check_same(self, tensors: Mapping[str, tuple[Tensor, RowDim]], rows: int) -> None:
        """Raises ValueError if the processes have read different data in an earlier batch. Compares
        batches 1, 2, 4 and so on: a different shuffling seed is detected immediately. Digests are
        published in the store, without blocking."""
        assert self._rank is not None
        self._compare()
        self._read += 1
        if self._read & (self._read - 1):
            return
        size = Size(rows, self._size.length)
        given = next((dim.size(each) // dim.elements for each, dim in tensors.values()), rows)
        have = range(rows) if given == rows else self.own_rows(rows)
        text = same_rows.fingerprint(tensors, have, self._program(size, None).reads(self._rank))
        self._digest_key = exchange.new_key("read")
        exchange.store().set(f"{self._digest_key}/{self._rank}", text)

    def _compare(self) -> None:
        """Compares the digests published before the last step."""
        key, self._digest_key = self._digest_key, ""
        if not key:
            return
        ranks = range(len(self._planned.devices))
        texts = [exchange.store().get(f"{key}/{rank}") for rank in ranks]
        if found := same_rows.difference([text or same_rows.NOTHING for text in texts]):
            raise ValueError(
                f"batch: {found}; expected the same of a row in all processes: give what shuffles "
                "or draws random numbers the same seed in all of them"
            )

    def _program(self, size: Size, example: Any) -> _core.Program:
        if size not in self._programs:
            whole = Size(self._size.rows, size.length)
            if size != whole:
                self._programs[size] = self._program(whole, example).with_rows(size.rows)
            else:
                self._programs[size] = self._at_length(size.length, example)
        return self._programs[size]
