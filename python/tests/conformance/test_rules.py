"""Every rule at work: shards of random lengths, recombined, are the whole op."""

from __future__ import annotations

import pytest
from cases import CASES, WITHOUT_CASE
from op_case import OpCase
from sharded_op import ShardedOp

from medley import _core


@pytest.mark.parametrize("text", CASES)
def test_shards_are_the_whole(text: str) -> None:
    case = OpCase(text)
    instance = _core.instantiate(case.graph)
    assert instance is not None, "the rule does not fit"
    assert ShardedOp(case, instance).disagreements() == []


def test_every_rule_has_a_case() -> None:
    tested = {text.split("(")[0] for text in CASES}
    assert tested | WITHOUT_CASE == set(_core.rule_names())
