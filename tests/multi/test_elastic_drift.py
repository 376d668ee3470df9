"""A device becomes slow during a run: it gets less work, and more again once it is fast."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import medley
from medley import _core
from medley.cluster import Cluster
from medley.run import replanning
from medley.run.replanning import Subject, replan, step_nanoseconds
from medley_extras.race.tempo import Slowing

sys.path.insert(0, str(Path(__file__).parent))
import survivor
import test_elastic as one_node
from outcomes import distance, recoveries, seen
from test_elastic import CLUSTER, DEVICES, elastic, prepare

graph = one_node.graph
pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

MANY = 500  # steps

# Slow enough that by the prediction computing is all that counts.
SLOW = CLUSTER.replace("count: 6", "count: 3") + "devices:\n  CPU: {speed: 1e-4}\n"


def rows_of(plan: str) -> dict[str, int]:
    """Returns the rows that each device has."""
    (pipeline,) = medley.Plan(plan).to_dict()["pipelines"]
    devices = pipeline["stages"][0]["mesh"]["devices"]
    rows = [each["lengths"] for each in pipeline["microbatches"]]
    return dict(zip(devices, map(sum, zip(*rows, strict=True)), strict=True))


def windows(*factors: tuple[float, ...]) -> list[dict[str, float]]:
    """Returns the times of three devices, initially ten seconds each."""
    return [{n: 10 * f for n, f in zip("abc", each, strict=True)} for each in factors]


CALM = windows((1, 1.1, 0.9), (1, 0.9, 1), (1.1, 1, 1))


def after(planned: dict[str, float], *seen: dict[str, float]) -> list[dict[str, float] | None]:
    """Returns the results after each window that follows the first ones."""
    slowing = Slowing(planned)
    assert [slowing.add(each) for each in CALM] == [None, None, None]
    return [slowing.add(each) for each in seen]


def test_three_windows_have_to_agree() -> None:
    slow = windows(*[(1, 3, 1)] * 5)
    assert after({}, *slow[:3]) == [None, None, {"b": 3.0}]
    assert after({}, *slow[:2], *CALM[:1], *slow) == [None] * 2 + [None] * 3 + [{"b": 3.0}] * 3
    assert after({}, *CALM, *CALM) == [None, None, {}, {}, {}, {}]


def test_common_slowdown_counts_for_none() -> None:
    assert after({}, *windows(*[(5, 5, 5)] * 3))[-1] == {}
    assert after({}, *windows(*[(5, 5, 15)] * 3))[-1] == {"c": 3.0}


# The generation began while the device was slow.
def test_recovered_device_counts_as_before() -> None:
    assert after({"b": 3.0}, *windows(*[(1, 1 / 3, 1)] * 3))[-1] == {}
    assert after({"b": 3.0}, *CALM)[-1] == {"b": 3.0}
    assert after({"b": 3.0}, *windows(*[(1, 2, 1)] * 3))[-1] == {"b": 6.0}


def subject_of(graph: medley.Graph, machines: Cluster) -> Subject:
    """Returns the input of a planner, with the optimizer of the test."""
    return Subject(graph.core, machines, survivor.optimizer().core(graph.core))


# The plan is checked for the original cluster, and its predicted step compared with the old plan's.
def test_the_plan_for_a_slow_device_is_one_for_the_cluster_as_it_is(graph: medley.Graph) -> None:
    machines = medley.cluster.parse_cluster(SLOW)
    before = medley.plan(graph, machines, "data-parallel-proportional", global_batch=6)
    subject = subject_of(graph, machines)
    slow = {DEVICES[1]: 3.0}
    after = replan(subject, before, before.devices, {}, slow)
    assert rows_of(before.text) == dict.fromkeys(before.devices, 2)
    assert rows_of(after.text)[DEVICES[1]] < 2
    _core.verify_plan(after.core, "plan", graph.core, machines)
    assert step_nanoseconds(subject, before, slow) > 1.2 * step_nanoseconds(subject, after, slow)
    assert step_nanoseconds(subject, before) < step_nanoseconds(subject, after)
    again = replan(subject, after, before.devices, slow, {})
    assert again.text == before.text


def test_types_stay_as_they_were_asked_for(graph: medley.Graph) -> None:
    machines = medley.cluster.parse_cluster(SLOW)
    plan = medley.plan(graph, machines, "data-parallel-even", global_batch=6)
    asked = medley.Plan.from_dict({**plan.to_dict(), "bf16_as": {"CPU": "f32"}})
    before = medley.plan(graph, machines, plan=asked)
    subject = subject_of(graph, machines)
    after = replan(subject, before, before.devices[:1])
    assert after.devices == before.devices[:1]
    assert after.to_dict()["bf16_as"] == {"CPU": "f32"}


def test_types_go_with_the_kinds(graph: medley.Graph) -> None:
    machines = medley.cluster.parse_cluster(SLOW)
    plan = medley.plan(graph, machines, "data-parallel-even", global_batch=6)
    typed = medley.Plan.from_dict({**plan.to_dict(), "bf16_as": {"CPU": "f32"}})
    slow = machines.slowed({1: 0.5})
    there = replanning._as_for(slow, machines, typed.core)
    assert json.loads(there.text())["bf16_as"] == {"CPU": "f32", "CPU at 0.5": "f32"}
    assert replanning._as_for(machines, slow, there).text() == typed.text


@NIGHTLY
def test_a_device_that_slows_down_gets_less_to_do_and_more_again_afterwards(
    tmp_path: Path, graph: medley.Graph
) -> None:
    folder = tmp_path / "run"
    machines = medley.cluster.parse_cluster(SLOW)
    plan = medley.plan(graph, machines, "data-parallel-proportional", global_batch=6)
    prepare(folder, graph, plan.text)
    (folder / "cluster.yaml").write_text(SLOW)
    fault: dict[str, Any] = {"device": DEVICES[1], "step": -1, "slows": [4, 70, 100]}
    done = elastic(folder, "--settle", "3", steps=MANY, **fault)
    assert done.returncode == 0, done.stderr
    lines = recoveries(folder)
    assert [line["detected"] for line in lines] == ["drift"] * 2, done.stderr
    assert [line["back"] for line in lines] == [0, 0]
    assert all(DEVICES[1] in line["cause"] and not line["lost"] for line in lines)
    assert 70 < lines[0]["step"] < lines[0]["step"] + 100 < lines[1]["step"]
    plans = [plan.text, *((folder / f"elastic-{i}.plan.json").read_text() for i in (1, 2))]
    rows = [rows_of(text)[DEVICES[1]] for text in plans]
    assert rows[1] < rows[0] == rows[2]
    expected = one_node.one_device(graph.text(), MANY)
    assert distance(seen(folder), expected) < 1e-9
