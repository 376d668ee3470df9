"""A device becomes slow while a run goes on: it gets less to do, and more again when it is as fast
as before."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import medley

sys.path.insert(0, str(Path(__file__).parent))
import test_elastic as one_node
from test_elastic import CLUSTER, DEVICES, elastic, prepare, recoveries

from medley.run.tempo import Slowing

graph = one_node.graph
pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

# Slow enough that by the prediction computing is all that counts.
SLOW = CLUSTER.replace("count: 6", "count: 3") + "devices:\n  CPU: {speed: 1e-4}\n"


def rows_of(plan: str) -> dict[str, int]:
    """Returns the rows that each device has."""
    (pipeline,) = json.loads(plan)["pipelines"]
    devices = pipeline["stages"][0]["mesh"]["devices"]
    rows = [each["lengths"] for each in pipeline["microbatches"]]
    return dict(zip(devices, map(sum, zip(*rows, strict=True)), strict=True))


def windows(*factors: tuple[float, ...]) -> list[dict[str, float]]:
    """Returns what three devices take, ten seconds each at first."""
    return [{n: 10 * f for n, f in zip("abc", each, strict=True)} for each in factors]


CALM = windows((1, 1.1, 0.9), (1, 0.9, 1), (1.1, 1, 1))


def after(planned: dict[str, float], *seen: dict[str, float]) -> list[dict[str, float] | None]:
    """Returns what is said after each window that follows the first ones."""
    slowing = Slowing(planned)
    assert [slowing.add(each) for each in CALM] == [None, None, None]
    return [slowing.add(each) for each in seen]


def test_three_windows_have_to_agree() -> None:
    slow = windows(*[(1, 3, 1)] * 5)
    assert after({}, *slow[:3]) == [None, None, {"b": 3.0}]
    assert after({}, *slow[:2], *CALM[:1], *slow) == [None] * 2 + [None] * 3 + [{"b": 3.0}] * 3
    assert after({}, *CALM, *CALM) == [None, None, {}, {}, {}, {}]


def test_what_slows_all_of_them_counts_for_none() -> None:
    assert after({}, *windows(*[(5, 5, 5)] * 3))[-1] == {}
    assert after({}, *windows(*[(5, 5, 15)] * 3))[-1] == {"c": 3.0}


# The epoch has begun while it was slow.
def test_who_is_fast_again_counts_as_before() -> None:
    assert after({"b": 3.0}, *windows(*[(1, 1 / 3, 1)] * 3))[-1] == {}
    assert after({"b": 3.0}, *CALM)[-1] == {"b": 3.0}
    assert after({"b": 3.0}, *windows(*[(1, 2, 1)] * 3))[-1] == {"b": 6.0}


def test_a_device_that_slows_down_gets_less_to_do_and_more_again_afterwards(
    tmp_path: Path, graph: medley.Graph
) -> None:
    folder = tmp_path / "run"
    machines = medley.cluster.parse_cluster(SLOW)
    plan = medley.plan(graph, machines, "data-parallel-proportional", global_batch=6)
    prepare(folder, graph, plan.text)
    (folder / "cluster.yaml").write_text(SLOW)
    fault: dict[str, Any] = {"device": DEVICES[1], "step": -1, "slows": [3, 100, 300]}
    done = elastic(folder, "--settle", "1", steps=600, **fault)
    assert done.returncode == 0, done.stderr
    lines = recoveries(folder)
    assert [line["detected"] for line in lines] == ["drift"] * 2, done.stderr
    assert [line["back"] for line in lines] == [0, 0]
    assert all(DEVICES[1] in line["cause"] and not line["lost"] for line in lines)
    assert 100 < lines[0]["step"] < 300 < lines[1]["step"]
    plans = [plan.text, *((folder / f"elastic-{i}.plan.json").read_text() for i in (1, 2))]
    rows = [rows_of(text)[DEVICES[1]] for text in plans]
    assert rows[1] < rows[0] == rows[2]
