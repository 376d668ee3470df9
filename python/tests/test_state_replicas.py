"""The interval of state replicas."""

from __future__ import annotations

import itertools

import pytest

from medley.run import replicas
from medley.run.replicas import Pace


@pytest.fixture
def pace(monkeypatch: pytest.MonkeyPatch) -> Pace:
    """Returns the pace of a run with steps of 1 s, and of 3 s after copies."""
    clock = itertools.accumulate([0.0, 3.0, *[1.0] * 20])
    monkeypatch.setattr(replicas.time, "monotonic", lambda: next(clock))
    pace = Pace(0)
    pace.begin()
    for _ in range(5):
        pace.note_step()
    return pace


def test_copies_cost_what_they_take_and_what_the_next_step_takes_longer(pace: Pace) -> None:
    assert pace.measured(0.5, counts_first=True) == (2.5, 1.0)


def test_the_first_steps_of_an_epoch_are_slow_for_other_reasons(pace: Pace) -> None:
    assert pace.measured(0.5, counts_first=False) == (0.5, 1.0)


def test_copies_are_made_so_often_that_they_cost_two_percent() -> None:
    assert Pace(0).steps(2.5, 1.0) == 125
    assert Pace(0).steps(2.5, 0.0) == 2  # steps are unknown
    assert Pace(0).steps(0.001, 1.0) == 2  # a step without copies is needed to compare with
    assert Pace(7).steps(2.5, 1.0) == 7
