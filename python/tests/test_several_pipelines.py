"""Pipelines that are not alike train like one device: cuts, meshes, rows, micro-batches, schedules
and what is computed again differ, written by hand and drawn at random."""

from __future__ import annotations

import os

import exactness
import pytest
from zoo import ZOO

from medley import _testing

ROWS = exactness.ROWS
SEEDS = int(os.environ.get("MEDLEY_PLAN_SEEDS", "2"))

# Those whose rows do not meet, and whose forward phase changes no buffer.
RANDOM = [name for name in ZOO if name not in ("resnet", "vgg-bn", "hf-mixtral-balanced")]


@pytest.mark.parametrize("name", RANDOM)
def test_random_pipelines_train_like_one_device(name: str) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        want = exactness.train_eager(model, batch, 2, lr=1e-3, clip=1.0)
        for seed in range(SEEDS):
            devices = [f"a/{i}/0" for i in range(2 + (seed + len(name)) % 5)]
            plan = _testing.random_pipelines(graph.core.text(), devices, ROWS, seed)
            got = exactness.train_plan(model, graph, plan, batch, 2, lr=1e-3, clip=1.0)
            exactness.compare(got, want, model=name)
