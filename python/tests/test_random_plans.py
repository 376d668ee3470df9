"""Random legal plans, uneven and with empty shards, train like plain PyTorch."""

from __future__ import annotations

import functools
import os
from typing import Any

import exactness
import pytest
import torch
from zoo import LARGE, ZOO
from zoo_names import ISOMORPHIC, NAMES, names_but

ROWS = exactness.ROWS
SEEDS = os.environ.get("MEDLEY_PLAN_SEEDS", "")


@functools.cache
def _prepared(name: str, steps: int) -> tuple[Any, Any, Any, exactness.Curve]:
    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        return model, batch, graph, exactness.train_eager(model, batch, steps, lr=1e-3)


# Capturing the larger ones takes longer than all steps of the others: nightly.
@pytest.mark.parametrize("name", NAMES)
def test_two_steps(name: str) -> None:
    model, batch, graph, want = _prepared(name, 2)
    for seed in range(int(SEEDS or 3)):
        plan = exactness.random_plan(graph, seed, ROWS, devices=2 + seed % 3)
        got = exactness.train_plan(model, graph, plan, batch, 2, lr=1e-3)
        exactness.compare(got, want, model=name)


# Two steps of these models run always, fifty nightly.
LONG = (*LARGE, *ISOMORPHIC, "bert", "vit", "hf-llama", "hf-vit")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", names_but(LONG))
def test_fifty_steps(name: str, seed: int) -> None:
    model, batch, graph, want = _prepared(name, 50)
    plan = exactness.random_plan(graph, 1000 + seed, ROWS, devices=3)
    got = exactness.train_plan(model, graph, plan, batch, 50, lr=1e-3)
    exactness.compare(got, want, model=name)
