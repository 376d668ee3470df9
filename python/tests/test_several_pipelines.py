"""Heterogeneous pipelines train like one device: they differ in cuts, meshes, rows, micro-batches,
schedules and recomputation, written by hand and drawn at random."""

from __future__ import annotations

import json
import os
from typing import Any

import exactness
import pytest
from test_pipelines import cuts
from zoo import ZOO

import medley
from medley import _testing

ROWS = exactness.ROWS
SEEDS = int(os.environ.get("MEDLEY_PLAN_SEEDS", "2"))

# Models without cross-sample dependence, and without buffers changed in forward.
RANDOM = [name for name in ZOO if name not in ("resnet", "vgg-bn", "hf-mixtral-balanced")]


LEARNING_RATE = 1e-3


def train_random(name: str, seeds: range, steps: int, lr: float) -> None:
    """Asserts that plans of pipelines drawn at random, half of them with owners, train like one
    device."""
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        want = exactness.train_eager(model, batch, steps, lr, clip=1.0)
        for seed in seeds:
            devices = [f"a/{i}/0" for i in range(2 + (seed + len(name)) % 5)]
            plan = _testing.random_pipelines(graph.core.text(), devices, ROWS, seed)
            got = exactness.train_plan(model, graph, plan, batch, steps, lr, clip=1.0)
            worst = exactness.compare(got, want, model=name)
            print(f"{name} {seed}: {worst:.1e}{', owners' if 'owners' in json.loads(plan) else ''}")


@pytest.mark.parametrize("name", RANDOM)
def test_random_pipelines_train_like_one_device(name: str) -> None:
    train_random(name, range(1, 1 + SEEDS), 2, LEARNING_RATE)  # the second has owners


# The learning rate keeps fifty steps on one batch away from a minimum: there a gradient is a
# difference of much larger values, with their rounding.
@pytest.mark.slow
@pytest.mark.parametrize("name", RANDOM)
def test_random_pipelines_train_fifty_steps_like_one_device(name: str) -> None:
    train_random(name, range(2, 6), 50, LEARNING_RATE / 10)


def plan_with_owners(graph: medley.Graph, shares: list[float]) -> dict[str, Any]:
    """Returns two pipelines of a model with tied ends. One has two stages, the first of which
    shards weights over two devices. The other has one stage that shards them over three."""
    up = {"*.weight": "S(0, even)"}
    return {
        "format": "medley-plan",
        "version": 1,
        "global_batch": ROWS,
        "parts": [{"name": "owners", "shares": shares}],
        "owners": {"*": "owners"},
        "pipelines": [
            {
                "microbatches": [{"rows": 2}, {"rows": 1}],
                "stages": [
                    {"mesh": {"devices": ["a/0/0", "a/1/0"]}, "placements": up},
                    {"mesh": {"devices": ["a/2/0"]}, "first": cuts(graph, 2)[0]},
                ],
            },
            {
                "microbatches": [{"rows": 3}],
                "stages": [{"mesh": {"devices": ["a/3/0", "a/4/0", "a/5/0"]}, "placements": up}],
            },
        ],
    }


def elements_of_states(run: Any, device: int) -> int:
    """Returns how many numbers of the optimizer's state a device holds."""
    shards = [run.shard(kind, name, device) for kind, name in run.values if kind == "state"]
    return sum(shard.numel() for shard in shards if shard is not None)


# The last pipeline divides weights over its devices and has the rest on each.
@pytest.mark.parametrize("shares", [[3, 1], [0, 1], [1, 1]])
def test_owners_keep_the_state_of_their_share(shares: list[float]) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["gpt"], ROWS)
        plan = json.dumps(plan_with_owners(graph, shares))
        want = exactness.train_eager(model, batch, 3, LEARNING_RATE, clip=0.1)
        got = exactness.train_plan(model, graph, plan, batch, 3, LEARNING_RATE, clip=0.1)
        exactness.compare(got, want, model="gpt")
        trainer = medley.Trainer(
            model, graph, medley.Plan(plan), local=True, cluster=exactness.cluster(6)
        )
        held = [elements_of_states(trainer.engine.run, device) for device in range(6)]
        of_all = 2 * sum(parameter.numel() for parameter in want.parameters.values())
        first, second = sum(held[:3]), sum(held[3:])
        if shares[0] == 0:
            assert first == 0
        assert first + second >= of_all
        assert second / of_all == pytest.approx(shares[1] / sum(shares), rel=0.2)
