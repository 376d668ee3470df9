"""Processes that read the same rows must read identical data: the same shuffle, the same masks."""

from __future__ import annotations

import torch
from torch import Tensor

from medley.data.row_dim import RowDim
from medley.data.same_rows import Reads, difference, fingerprint

X, Y = torch.arange(24.0).reshape(8, 3), torch.arange(8)
FLIPPED = torch.arange(7, -1, -1)
ALL = range(8)


def batch(x: Tensor, y: Tensor) -> dict[str, tuple[Tensor, RowDim]]:
    return {"x": (x, RowDim(0, 1)), "y": (y, RowDim(0, 1))}


def reads(x: tuple[int, int] | None, y: tuple[int, int] | None) -> Reads:
    return [(name, [rows]) for name, rows in (("x", x), ("y", y)) if rows is not None]


FIRST, LAST = reads((0, 8), None), reads(None, (0, 8))  # stages


def test_stages_take_parts_of_the_same_rows() -> None:
    assert not difference(
        [fingerprint(batch(X, Y), ALL, FIRST), fingerprint(batch(X, Y), ALL, LAST)]
    )
    other = batch(X[FLIPPED], Y[FLIPPED])
    found = difference([fingerprint(batch(X, Y), ALL, FIRST), fingerprint(other, ALL, LAST)])
    assert (
        found == 'row 0: found "x" of process 0 and "y" of process 1, which do not belong together'
    )


# The last stage has drawn another picture, which it does not look at.
def test_unused_rows_may_differ() -> None:
    drawn = batch(X + 1, Y)
    assert not difference([fingerprint(batch(X, Y), ALL, FIRST), fingerprint(drawn, ALL, LAST)])


def test_two_that_share_the_work_on_a_row_have_the_same() -> None:
    whole = reads((0, 8), (0, 8))
    found = difference(
        [fingerprint(batch(X, Y), ALL, whole), fingerprint(batch(X + 1, Y), ALL, whole)]
    )
    assert found == 'row 0: found other values of "x" in process 1 than in 0'


def test_processes_with_other_rows_may_shuffle_freely() -> None:
    halves = [reads((0, 4), (0, 4)), reads((4, 4), (4, 4))]
    other = batch(X[FLIPPED], Y[FLIPPED])
    assert not difference(
        [fingerprint(batch(X, Y), ALL, halves[0]), fingerprint(other, ALL, halves[1])]
    )


# Each device of the first stage has read its own rows, the last stage all.
def test_rows_are_compared_where_some_have_a_part_of_them() -> None:
    halves = [reads((0, 4), None), reads((4, 4), None)]
    texts = [
        fingerprint(batch(X[r], Y[r]), r, one)
        for r, one in zip((ALL[:4], ALL[4:]), halves, strict=True)
    ]
    assert not difference([*texts, fingerprint(batch(X, Y), ALL, LAST)])
    masked = torch.where(Y == 6, -100, Y)
    found = difference([*texts, fingerprint(batch(X, masked), ALL, LAST)])
    assert not found  # its row 6 has the same x
    found = difference([*texts, fingerprint(batch(-X, masked), ALL, LAST)])
    assert (
        found == 'row 6: found "x" of process 1 and "y" of process 2, which do not belong together'
    )


def test_differently_padded_batches_are_not_compared() -> None:
    short = batch(-X[:, :2], -Y)
    assert not difference(
        [fingerprint(batch(X, Y), ALL, FIRST), fingerprint(short, ALL, reads((0, 8), (0, 8)))]
    )
