"""Plans found by synthesis train like plain PyTorch, whatever the cluster made them look like."""

from __future__ import annotations

import functools
import os
from typing import Any

import exactness
import pytest
import torch
from zoo import ZOO
from zoo_names import NAMES

import medley
from medley.cluster import parse_cluster

ROWS = exactness.ROWS
# Four devices, one twice as fast. The ratio of compute speed to link speed decides the plan: from
# "share only rows" to "cut everything".
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {{name: a, count: 1, device: fast, devices_per_node: 1}}
  - {{name: b, count: 3, device: slow, devices_per_node: 1}}
networks:
  - {{name: lan, connects: [a, b], bandwidth: {bandwidth}, latency: {latency}}}
devices:
  fast: {{based_on: CPU, launch_latency: 1 ns, memory: {memory}}}
  slow: {{based_on: CPU, speed: 0.5, launch_latency: 1 ns, memory: {memory}}}
"""
NETWORKS = {
    "fast links": {"bandwidth": "100 TB/s", "latency": "0 us", "memory": "8 GiB"},
    "thin links": {"bandwidth": "2 GB/s", "latency": "0 us", "memory": "8 GiB"},
}
# Two nodes of two devices with fast links inside and low-bandwidth links between: six rows do not
# divide by four.
NODES = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 2}
networks:
  - {name: fabric, inside: node, bandwidth: 10 TB/s, latency: 0 us}
  - {name: lan, connects: [a], bandwidth: 4 GB/s, latency: 0 us}
devices:
  CPU: {launch_latency: 1 ns}
"""
LONG = os.environ.get("MEDLEY_PLAN_SEEDS")  # set by the nightly run


@functools.cache
def _prepared(name: str, steps: int) -> tuple[Any, Any, Any, exactness.Curve]:
    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        return model, batch, graph, exactness.train_eager(model, batch, steps, lr=1e-3)


def _train(name: str, network: str, steps: int) -> medley.Plan:
    return _train_on(CLUSTER.format(**NETWORKS[network]), name, steps)


def _train_on(machines: str, name: str, steps: int) -> medley.Plan:
    model, batch, graph, want = _prepared(name, steps)
    cluster = parse_cluster(machines)
    plan = medley.plan(graph, cluster=cluster, strategy="hap", global_batch=ROWS)
    trainer = medley.Trainer(
        model,
        graph,
        plan,
        optimizer=medley.AdamW(lr=1e-3, weight_decay=0.01),
        local=True,
        cluster=cluster,
    )
    losses = [trainer.step(batch).loss for _ in range(steps)]
    got = exactness.Curve(losses, trainer.gradients(), trainer.parameters())
    exactness.compare(got, want, model=name)
    return plan


def _cuts(plan: medley.Plan) -> set[str]:
    """Returns the parts other than rows by which ops are cut."""
    stage = plan.to_dict()["pipelines"][0]["stages"][0]
    return {text.split()[-1] for text in stage.get("ops", {}).values() if " " in text} - {"rows"}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", NAMES)
def test_trains_like_one_device(name: str, network: str) -> None:
    _train(name, network, 50 if LONG else 2)


@pytest.mark.parametrize("name", ["gpt", "bert", "llama", "moe", "hf-gpt2"])
def test_nodes_train_like_one_device(name: str) -> None:
    shapes = _train_on(NODES, name, 2).mesh_shapes
    assert shapes == [[2, 2]] or name not in ("gpt", "hf-gpt2")


def test_fifty_steps() -> None:
    _train("gpt", "fast links", 50)


def test_more_than_rows_is_divided() -> None:
    """With nearly free links, six rows leave much to gain by cutting other dims."""
    assert _cuts(_train("bert", "fast links", 2))
