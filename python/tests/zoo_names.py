"""The names of all models as test parameters, in a separate file, because processes import the zoo
without pytest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from zoo import LARGE, ZOO


def names_but(slow: Iterable[str], among: Iterable[str] = ZOO) -> list[Any]:
    """Returns the models. Those of `slow` run only nightly."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in among]


# Models whose features another one covers: with dropout, with batch norm, as in transformers.
ISOMORPHIC = ("gpt", "llama", "vgg", "hf-gpt2", "hf-bert")
NAMES = names_but((*LARGE, *ISOMORPHIC))
ALL_BUT_LARGE = names_but(LARGE)
