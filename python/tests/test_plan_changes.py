"""A run that changes its plan between steps trains like plain PyTorch on one device."""

from __future__ import annotations

import os
from typing import Any

import exactness
import pytest
import torch
from zoo import ZOO
from zoo_names import NAMES

import medley

ROWS = exactness.ROWS
STEPS = int(os.environ.get("MEDLEY_CHANGES", "3"))


def _train(model: Any, graph: Any, batch: Any, plans: list[str], steps: int) -> exactness.Curve:
    """Trains under the plans in turn, a step each."""
    trainer = medley.Trainer(
        model,
        graph,
        medley.Plan(plans[0]),
        medley.AdamW(lr=1e-3, weight_decay=0.01),
        local=True,
        cluster=exactness.cluster(4),
    )
    losses = []
    for step in range(steps):
        if step:
            trainer.change_plan(medley.Plan(plans[step % len(plans)]))
        losses.append(trainer.step(batch).loss)
        assert not trainer.engine.run.disagreements()
    return exactness.Curve(losses, trainer.gradients(), trainer.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_plans_in_turn(name: str) -> None:
    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        want = exactness.train_eager(model, batch, STEPS, lr=1e-3)
    plans = [exactness.random_plan(graph, seed, ROWS, devices=4 - seed) for seed in range(3)]
    got = _train(model, graph, batch, plans, STEPS)
    exactness.compare(got, want, model=name)
