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
from medley import _core
from medley.cluster import parse_cluster
from medley.run import job
from medley.run.change import PlanError

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


def test_plan_that_does_not_fit_leaves_the_trainer_as_it_was() -> None:
    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["mlp"], ROWS)
        want = exactness.train_eager(model, batch, STEPS, lr=1e-3)
        large = exactness.cluster(4)
        alone = medley.Plan(exactness.random_plan(graph, 0, ROWS, devices=1))
        for seed in range(100):
            divided = medley.Plan(exactness.random_plan(graph, seed, ROWS, devices=4))
            peaks = [
                max(
                    _core.memory_use(graph.core, plan.core, large, device)[1]
                    for device in range(len(plan.devices))
                )
                for plan in (divided, alone)
            ]
            if peaks[0] < peaks[1]:
                break
        text = exactness.CLUSTER.replace("COUNT", "4").replace("device: CPU", "device: small")
        cluster = parse_cluster(
            f"{text}devices:\n  small: {{based_on: CPU, memory: {peaks[1] - 1} B}}\n"
        )
        with job.emulated():
            rule = medley.AdamW(lr=1e-3, weight_decay=0.01)
            trainer = medley.Trainer(model, graph, divided, rule, local=True, cluster=cluster)
            losses = []
            for _ in range(STEPS):
                losses.append(trainer.step(batch).loss)
                before = trainer.engine.run
                with pytest.raises(PlanError, match=f"a/0/0: out of memory: needs {peaks[1]:,} b"):
                    trainer.change_plan(alone)
                assert trainer.engine.run is before
                assert trainer.plan is divided
            got = exactness.Curve(losses, trainer.gradients(), trainer.parameters())
    exactness.compare(got, want, model="mlp")
