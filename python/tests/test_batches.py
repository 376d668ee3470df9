"""Batches that an elastic run may need again."""

from __future__ import annotations

import torch

from medley.run.batches import Batches


def test_batches_are_kept_from_the_oldest_step_that_may_be_made_again() -> None:
    batches = Batches()
    for step in range(6):
        batches.keep(step, {"x": torch.full((4,), step)}, oldest=3)
    assert [step for step in range(6) if step in batches] == [3, 4, 5]


# A script may fill the same memory for every step.
def test_batches_are_copies() -> None:
    batches, buffer = Batches(), torch.zeros(2)
    for step in range(3):
        buffer.fill_(step)
        batches.keep(step, (buffer, {"y": buffer}), oldest=0)
    for step in range(3):
        first, second = batches[step]
        assert first.tolist() == second["y"].tolist() == [step, step]


def test_of_too_many_bytes_the_oldest_are_dropped_but_never_the_last_two() -> None:
    batches = Batches(most_bytes=64)
    for step in range(5):
        batches.keep(step, torch.zeros(4), oldest=0)  # 16 bytes each
    assert [step for step in range(5) if step in batches] == [1, 2, 3, 4]
    batches.keep(5, torch.zeros(1000), oldest=0)
    assert [step for step in range(6) if step in batches] == [4, 5]
