"""Random plans of random graphs compute the results of plain PyTorch."""

from __future__ import annotations

import json
import os
import random

import pytest
import torch
from lowered_op import draw_state, small_cluster
from op_case import BATCH
from random_graph import RandomGraph
from sharded_op import DEVICES, difference

from medley import _core, _runtime, _testing

SEEDS = range(int(os.environ.get("MEDLEY_CONFORMANCE_GRAPHS", "150")))
PLANS = 3  # for each graph
TOLERANCE = 1e-11


@pytest.fixture(scope="module")
def cluster() -> _core.Cluster:
    return small_cluster()


@pytest.mark.parametrize("seed", SEEDS)
def test_any_plan_is_right(seed: int, cluster: _core.Cluster) -> None:
    text, buffers, dims = RandomGraph(seed).text()
    graph = _core.Graph.parse(text, f"random graph {seed}")
    rng = random.Random(seed)
    for draw in range(PLANS):
        devices = [f"a/{i}/0" for i in range(DEVICES)]
        plan = json.loads(_testing.random_plan(graph.text(), devices, BATCH, seed * PLANS + draw))
        stage = plan["pipelines"][0]["stages"][0]
        parts = {part["name"] for part in plan["parts"]}  # "py": of a second axis
        for name in [name for name in stage.get("ops", {}) if name.startswith("norm/")]:
            del stage["ops"][name]  # there is nothing to train
        stage["placements"] = {
            name: draw_state(dims[name], "p", rng)
            + (f" x {draw_state(dims[name], 'py', rng, rows='even')}" if "py" in parts else "")
            for name in buffers
        }
        program = _core.Program(graph, _core.Plan(json.dumps(plan)), cluster, _core.Optimizer([]))
        run = _runtime.Run(program, cluster, {"timeout_ms": 20000})
        for name, whole in buffers.items():
            run.load("buffer", name, whole if name[0] == "x" else torch.zeros_like(whole))
        run.step({"rows": torch.ones(BATCH, dtype=torch.float64)}, [[0.1, 1.0]], 0)
        for name, expected in buffers.items():
            shards = [run.shard("buffer", name, i) for i in range(DEVICES)]
            if run.is_cut("buffer", name):
                shards = [run.assemble("buffer", name, shards)]
            for whole in shards:
                what = f"{text}\n{json.dumps(plan)}\n{name}"
                assert difference(what, expected, whole, TOLERANCE) == []
