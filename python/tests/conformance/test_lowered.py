"""Every rule at work in a plan: lowered, run on unequal devices, compared with the whole op."""

from __future__ import annotations

import pytest
from cases import CASES
from lowered_op import LoweredOp, small_cluster
from op_case import OpCase

from medley import _core

# Sums over micro-batches: no op that a plan chooses for.
NOT_PLANNED = ("medley.accumulate", "medley.step_sum")


@pytest.fixture(scope="module")
def cluster() -> _core.Cluster:
    return small_cluster()


# Half of them run always, all of them nightly. test_rules.py covers every rule.
PLANNED = [text for text in CASES if not text.startswith(NOT_PLANNED)]
TEXTS = [
    pytest.param(text, marks=[pytest.mark.slow] if number % 2 else [])
    for number, text in enumerate(PLANNED)
]


@pytest.mark.parametrize("text", TEXTS)
def test_plans_are_the_whole(text: str, cluster: _core.Cluster) -> None:
    assert LoweredOp(OpCase(text), cluster).disagreements() == []
