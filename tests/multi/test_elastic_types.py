"""Runs in f16 lose a process and continue with their loss scale."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import medley

sys.path.insert(0, str(Path(__file__).parent))
import survivor
from outcomes import assert_same, recoveries, seen
from test_elastic import calm, changing_plans, elastic, prepare
from test_elastic_nodes import Nodes

pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

STEPS = 8
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: new, count: 2, device: CPU, devices_per_node: 1}
  - {name: old, count: 2, device: volta, devices_per_node: 1}
networks:
  - {name: lan, connects: [new, old], bandwidth: 10 Gbit/s, latency: 10 us}
devices:
  volta: {based_on: CPU, bf16_as: f16}
"""
# With it the gradients of the first steps overflow: each halves the scale.
FIRST = 2.0**24
SCALED: dict[str, Any] = {"scaled": {"loss_scale": FIRST, "loss_scale_steps": 2}, "step": 5}
CALM = {**SCALED, "step": -1}
UNDER_WAY = {"between": {}, "norm": {"call": "update", "exchange": "norm/sum"}}


@pytest.fixture(scope="module")
def graph() -> medley.Graph:
    """Returns the graph that survivor.py trains in f32, with matmuls in bf16."""
    return medley.capture(*survivor.make(double=False), autocast=torch.bfloat16)


def plan_of(*devices: str) -> str:
    """Returns a plan by rows. Its replacements are of the same strategy."""
    lengths = [len(range(i, survivor.ROWS, len(devices))) for i in range(len(devices))]
    microbatch = {"rows": survivor.ROWS, "lengths": lengths}
    stage = {"mesh": {"axes": ["x"], "shape": [len(devices)], "devices": devices}}
    plan = {"format": "medley-plan", "version": 1, "strategy": "data-parallel-even"}
    pipelines = [{"microbatches": [microbatch], "stages": [stage]}]
    return json.dumps({**plan, "global_batch": survivor.ROWS, "pipelines": pipelines})


def scale_of(found: dict[str, Any]) -> float:
    """Returns the scale in the end."""
    factor: float = 1 + found["state"]["state", "loss_scale"][0].item()
    return FIRST * factor


@pytest.mark.parametrize("who", ["old/1/0", pytest.param("new/0/0", marks=NIGHTLY)])
@pytest.mark.parametrize("where", ["norm", pytest.param("between", marks=NIGHTLY)])
def test_survivors_resume_with_the_scale(
    tmp_path: Path, graph: medley.Graph, who: str, where: str
) -> None:
    plan = plan_of("new/0/0", "old/0/0", "old/1/0")
    folder = prepare(tmp_path / "run", graph, plan, CLUSTER)
    done = elastic(folder, steps=STEPS, device=who, **SCALED, **UNDER_WAY[where])
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["lost"] == [who]
    assert "old/0/0" in line["members"]
    found = seen(folder)
    expected = changing_plans(folder, graph, line["step"] + 1, STEPS, **CALM)
    assert_same(found, expected)
    assert 1 < scale_of(found) < FIRST / 2


def test_no_f16_device_is_left(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, plan_of("new/0/0", "new/1/0", "old/0/0"), CLUSTER)
    done = elastic(folder, steps=STEPS, device="old/0/0", **SCALED)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["members"] == ["new/0/0", "new/1/0"]
    found = seen(folder)
    assert ("state", "loss_scale") not in found["state"]
    expected = changing_plans(folder, graph, line["step"] + 1, STEPS, **CALM)
    assert_same(found, expected)


# In between no device has a scale. A joining device starts from the first.
@NIGHTLY
def test_f16_device_returns_later(tmp_path: Path, graph: medley.Graph) -> None:
    devices = ["new/0/0", "new/0/1", "old/0/0", "old/0/1"]
    cluster = CLUSTER.replace("count: 2", "count: 1").replace("node: 1", "node: 2")
    cluster += "  CPU: {speed: 1e-4}\n"  # slow enough that another node pays off
    folder = prepare(tmp_path / "run", graph, plan_of(*devices), cluster)
    fault = {**SCALED, "device": devices[2], "whom": "supervisor", "pause": 0.5}
    nodes = Nodes(folder, steps=40, **fault)
    nodes.bring_back(folder)
    left, again = recoveries(folder)
    assert (left["members"], again["members"]) == (devices[:2], devices)
    found = seen(folder)
    assert all(math.isfinite(loss) for loss in found["losses"])
    assert 1 < scale_of(found) < FIRST


# Also if only this device computes in f16: the others have the scale too.
def test_restarted_process_has_the_scale(tmp_path: Path, graph: medley.Graph) -> None:
    plan = plan_of("new/0/0", "new/1/0", "old/0/0")
    folder = prepare(tmp_path / "run", graph, plan, CLUSTER)
    done = elastic(folder, "--max-restarts", "1", steps=STEPS, device="old/0/0", **SCALED)
    assert done.returncode == 0, done.stderr
    assert recoveries(folder)
    expected = calm(tmp_path / "calm", graph, plan, CLUSTER, steps=STEPS, **CALM)
    assert_same(seen(folder), expected)
