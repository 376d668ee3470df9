"""In every exchange between processes the one that has finished, was killed or has raised is named,
and no address is."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

import medley

sys.path.insert(0, str(Path(__file__).parent))
import exchanger
from test_processes import LAUNCH, TORCHRUN, run

pytestmark = pytest.mark.multi
SLOW = pytest.mark.nightly

CLUSTER = """
format: medley-cluster
version: 1
nodes: [{name: a, count: 1, device: CPU, devices_per_node: 2}]
networks: [{name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}]
"""
SCRIPT = str(Path(__file__).with_name("exchanger.py"))
ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+\]?:\d+")


def plan_of(graph: medley.Graph) -> dict[str, Any]:
    """Returns a plan of two stages."""
    cut = next(n for n in graph.core.stable_names() if re.search(r"(^|\.)b/", n))
    stages: list[dict[str, Any]] = [{"mesh": {"devices": [f"a/0/{i}"]}} for i in range(2)]
    stages[1]["first"] = cut
    pipeline = {"microbatches": [{"rows": 2}, {"rows": 2}], "stages": stages}
    return {"format": "medley-plan", "version": 1, "global_batch": 4, "pipelines": [pipeline]}


def write(folder: Path, name: str, adapted: bool) -> None:
    """Writes a graph and its plan."""
    graph = medley.capture(exchanger.make(adapted), exchanger.X, check=False)
    (folder / f"{name}.graph").write_text(graph.text())
    (folder / f"{name}.json").write_text(json.dumps(plan_of(graph)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with a cluster of two devices, graphs and plans."""
    path = tmp_path_factory.mktemp("exchanges")
    (path / "cluster.yaml").write_text(CLUSTER)
    write(path, "model", False)
    return path


def check(folder: Path, call: str, how: str, troubled: str = "1") -> None:
    """Asserts the exit code and the last line."""
    command = [*LAUNCH, str(folder / "model.json"), SCRIPT, str(folder), call, how]
    done = run(command, TROUBLED=troubled)
    last = done.stderr.splitlines()[-1]
    gone, left = f"a/0/{troubled}", f"a/0/{1 - int(troubled)}"
    assert not ADDRESS.search(done.stderr), done.stderr
    if how == "finishes":
        assert done.returncode == 2, done.stderr
        assert f"{gone} has finished, {left} waits for it" in last, done.stderr
        assert "all processes have to make the same calls" in last
        if name := exchanger.NAMES.get(call):
            assert f"waits for it in {name}(): all" in last
    elif how == "is killed":
        assert f"device {gone} was killed by SIGKILL" in last, done.stderr
    else:
        assert done.returncode == 1, done.stderr
        assert f"device {gone} left with exit code 1: RuntimeError: my data is broken" in last


ENDS = ("finishes", "is killed", "raises")
FEW = {("step", "finishes"), ("texts", "finishes")}
GRID = [
    pytest.param(call, how, marks=() if (call, how) in FEW else SLOW)
    for call in exchanger.CALLS
    if call != "save_adapter"
    for how in ENDS
]


@pytest.mark.parametrize(("call", "how"), GRID)
def test_ended_process_is_named(folder: Path, call: str, how: str) -> None:
    check(folder, call, how)


# The others wait for this process, and may use its store.
@SLOW
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("call", ["step", "evaluate", "capture", "texts"])
def test_the_first_process_is_named(folder: Path, call: str, how: str) -> None:
    check(folder, call, how, troubled="0")


@SLOW
@pytest.mark.parametrize("how", ENDS)
def test_it_is_named_where_an_adapter_is_saved(folder: Path, how: str) -> None:
    pytest.importorskip("peft")
    write(folder, "adapted", True)
    check(folder, "save_adapter", how)


@SLOW
def test_torchrun_ends_with_the_code_of_the_caller(folder: Path) -> None:
    done = run([*TORCHRUN, "--nproc-per-node=2", SCRIPT, str(folder), "step", "finishes"])
    assert "a/0/1 has finished, a/0/0 waits for it in step(): all" in done.stderr
    assert not ADDRESS.search(done.stderr.partition("Root Cause")[0].partition("torchrun")[0])
