"""Small modules of all families train like PyTorch under every plan, or are refused as listed."""

from __future__ import annotations

import pytest
from module_table import TABLE
from module_training import outcome
from refusals import expected, listed

# A sixteenth of each family runs always, all of them nightly.
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if number % 16 else [])
    for number, name in enumerate(TABLE)
]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", NAMES)
def test_a_module_trains_like_pytorch(name: str) -> None:
    found = {by: sentence for by, sentence in outcome(TABLE[name]).items() if sentence}
    wanted = expected(name)
    assert found.keys() == wanted.keys(), f"found {found}, refusals.py has {wanted}"
    for by, sentence in wanted.items():
        assert sentence in found[by], f"{by}: found {found[by]!r}, refusals.py has {sentence!r}"


def test_refusals_are_in_the_table_once() -> None:
    names = listed()
    assert sorted(names) == sorted(set(names) & TABLE.keys())


def test_there_are_six_hundred() -> None:
    assert len(TABLE) >= 600
