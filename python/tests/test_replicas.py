"""Copies of a parameter stay equal: bit by bit on the devices of a stage, up to rounding in two
stages that read it. A loss shows their drift only after a long time."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from exactness import cluster
from test_pipelines import CASES, plan_of
from zoo import ZOO

import medley
from medley import _testing

ROWS = 6
STEPS = 3


def copies(trainer: medley.Trainer, name: str) -> list[list[torch.Tensor]]:
    """Returns the copies of a whole parameter on every device, by stage."""
    run: Any = trainer.engine.run
    found, device = [], 0
    for shape in trainer.plan.mesh_shapes:
        devices = range(device, device + math.prod(shape))
        device = devices.stop
        stage = [run.shard("parameter", name, each) for each in devices]
        if stage[0] is not None:
            found.append(stage)
    return found


def check(model: Any, batch: Any, graph: medley.Graph, text: str) -> int:
    """Trains and compares. Returns the number of copies beyond the first ones."""
    plan = medley.plan(graph, cluster(), plan=medley.Plan.from_dict(json.loads(text)))
    trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=1e-2, max_norm=1.0), local=True)
    for _ in range(STEPS):
        trainer.step(batch)
    held: Any = trainer.engine.run
    more = 0
    for name, _ in model.named_parameters():
        if ("parameter", name) not in held.values or held.is_cut("parameter", name):
            continue
        stages = copies(trainer, name)
        for stage in stages:
            assert all(torch.equal(stage[0], other) for other in stage[1:]), name
            # Stages add the parts of a tied gradient in different orders.
            torch.testing.assert_close(stage[0], stages[0][0], rtol=0, atol=1e-6)
            more += len(stage) - 1
    return more


@pytest.mark.parametrize("name", ["two and two, other rows", "none to rows", "three stages"])
def test_copies_in_pipelines_stay_equal(name: str) -> None:
    case = CASES[name]
    torch.manual_seed(0)
    model, batch = ZOO[case.model](batch=ROWS)
    graph = medley.capture(model, batch)
    assert check(model, batch, graph, plan_of(case, graph)) > 0


@pytest.mark.parametrize("name", ["gpt", "moe", "resnet"])
def test_copies_under_random_plans_stay_equal(name: str) -> None:
    torch.manual_seed(0)
    model, batch = ZOO[name](batch=ROWS)
    graph = medley.capture(model, batch)
    devices = [f"a/{i}/0" for i in range(3)]
    found = [
        check(model, batch, graph, _testing.random_plan(graph.core.text(), devices, ROWS, seed))
        for seed in range(3)
    ]
    assert sum(found) > 0
