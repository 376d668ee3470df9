"""The names of all models as parameters of a test; apart, since processes import the zoo without
pytest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from zoo import LARGE, ZOO


def names_but(slow: Iterable[str], among: Iterable[str] = ZOO) -> list[Any]:
    """Returns the models; those of `slow` run nightly only."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in among]


# Those of which another has all features: with dropout, with batch norm, as transformers writes it.
ALIKE = ("gpt", "llama", "vgg", "hf-gpt2", "hf-bert")
NAMES = names_but((*LARGE, *ALIKE))
ALL_BUT_LARGE = names_but(LARGE)
