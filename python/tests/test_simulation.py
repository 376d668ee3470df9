"""The simulation equals the emulation: step, idle time and memory, to the nanosecond and the
byte."""

from __future__ import annotations

import functools
import json
from typing import Any, cast

import pytest
import torch
from zoo import ZOO

import medley
from medley import _core, _testing
from medley.cluster import parse_cluster
from medley.run import job

MODELS = ["gpt", "moe", "resnet", "vgg"]
ROWS = 11
STEPS = 3
RANDOM_PLANS = 3
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 2}
  - {name: slow, count: 2, device: half, devices_per_node: 1}
networks:
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
  - {name: lan, connects: [fast, slow], bandwidth: 2.2 Gbit/s, latency: 20 us}
devices:
  half: {based_on: CPU, speed: 0.5, memory: 8 GiB}
"""
DEVICES = ["fast/0/0", "fast/0/1", "slow/0/0", "slow/1/0"]


@functools.cache
def _prepared(name: str) -> tuple[Any, Any, Any, Any]:
    torch.manual_seed(0)
    model, batch = ZOO[name](batch=ROWS)
    return model, batch, medley.capture(model, batch), parse_cluster(CLUSTER, "test.yaml")


def _agree(name: str, plan: medley.Plan) -> None:
    model, batch, graph, cluster = _prepared(name)
    predicted = cast(
        "dict[str, Any]", _core.simulate(_core.Program(graph.core, plan.core, cluster), cluster)
    )
    with job.emulated():
        trainer = medley.Trainer(
            model,
            graph,
            plan,
            medley.AdamW(lr=1e-3),
            local=True,
            cluster=cluster,
            keep_gradients=False,
        )
    for _ in range(STEPS):
        metrics = trainer.step(batch)
        assert round(metrics.step_seconds * 1e9) == predicted["step"]
        for device, share in metrics.devices.items():
            waits = round(share * metrics.step_seconds * 1e9)
            assert waits == pytest.approx(predicted["devices"][device]["waits"], abs=1)
    for device, peak in trainer.peak_bytes().items():
        assert peak == predicted["devices"][device]["peak"], device


def test_unused_devices_do_not_delay_others() -> None:
    plan = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": ROWS,
        "pipelines": [
            {
                "microbatches": [{"rows": ROWS, "lengths": [6, 5]}],
                "stages": [{"mesh": {"devices": ["fast/0/1", "slow/1/0"]}}],
            }
        ],
    }
    _agree("gpt", medley.Plan(json.dumps(plan)))


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_rows_by_speed(name: str, microbatches: int) -> None:
    *_, graph, cluster = _prepared(name)
    plan = medley.plan(
        graph,
        cluster,
        "data-parallel-proportional",
        global_batch=ROWS,
        microbatches=1 if name == "resnet" else microbatches,
    )
    _agree(name, plan)


@pytest.mark.parametrize("seed", range(RANDOM_PLANS))
@pytest.mark.parametrize("name", MODELS)
def test_random_plans(name: str, seed: int) -> None:
    *_, graph, cluster = _prepared(name)
    text = _testing.random_plan(graph.core.text(), DEVICES, ROWS, seed)
    _agree(name, medley.Plan(text, graph, cluster))


@pytest.mark.parametrize("seed", range(RANDOM_PLANS))
@pytest.mark.parametrize("name", ["gpt", "vgg"])
def test_random_pipelines(name: str, seed: int) -> None:
    *_, graph, cluster = _prepared(name)
    text = _testing.random_pipeline(graph.core.text(), DEVICES, ROWS, seed)
    _agree(name, medley.Plan(text, graph, cluster))
