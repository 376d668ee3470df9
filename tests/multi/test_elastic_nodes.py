"""Runs on several nodes that lose one and continue, with a supervisor each, here on one machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import medley
import warm_start
from medley import _core
from medley.run.launch import free_port

sys.path.insert(0, str(Path(__file__).parent))
import evaluator
import test_elastic as one_node
import test_elastic_evaluation as evaluation
from cells import MATRIX
from outcomes import distance, recoveries, seen
from test_elastic import PLANS, SCRIPT, STEPS
from test_processes import LAUNCH

graph, undisturbed = one_node.graph, one_node.undisturbed
pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

DEVICES = ["a/0/0", "a/0/1", "a/1/0", "a/1/1"]
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 2}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 10 us}
  - {name: bus, inside: node, bandwidth: 100 Gbit/s, latency: 1 us}
"""


SLOW = CLUSTER + "devices:\n  CPU: {speed: 1e-4}\n"


def prepare(folder: Path, graph: medley.Graph, plan: str) -> Path:
    """Writes the files that the processes read: a plan of four nodes for two of two devices."""
    for i in (1, 2, 3):
        plan = plan.replace(f'"a/{i}/0"', f'"{DEVICES[i]}"')
    one_node.prepare(folder, graph, plan)
    (folder / "cluster.yaml").write_text(CLUSTER)
    return folder


class Nodes:
    """The supervisors of two nodes."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        steps: int = STEPS,
        start: Callable[[list[str]], list[str]] = warm_start.command,
        script: str = SCRIPT,
        **fault: Any,
    ) -> None:
        log = ["--elastic", "--elastic-log", str(folder / "elastic.jsonl"), *options]
        meet = ["--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--node-rank"]
        words = [str(folder / "plan.json"), script, str(folder), str(steps), json.dumps(fault)]
        self.commands = [start([*LAUNCH, *log, *meet, str(rank), *words]) for rank in range(2)]
        self.supervisors: list[subprocess.Popen[str]] = []
        self.start(0)
        self.start(1)

    def start(self, rank: int) -> None:
        """Starts the command on a node, maybe again."""
        self.supervisors.append(
            subprocess.Popen(
                self.commands[rank],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )

    def bring_back(self, folder: Path) -> list[str]:
        """Restarts the second node once the run has continued without it. Returns the outputs."""
        while not recoveries(folder):
            assert self.supervisors[0].poll() is None
            time.sleep(0.1)
        self.start(1)
        outputs = self.outputs()
        assert self.codes()[0] == 0, outputs
        return outputs

    def outputs(self) -> list[str]:
        """Returns the outputs of both nodes after their end."""
        return [each.communicate(timeout=120)[0] for each in self.supervisors]

    def codes(self) -> list[int]:
        """Returns their exit codes."""
        return [int(each.returncode) for each in self.supervisors]


def is_running(folder: Path) -> bool:
    """Returns whether any process still trains in a folder. A forked one has another name."""
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = process.read_bytes().split(b"\0")
        except OSError:
            continue
        if str(folder).encode() in command and int(process.parent.name) != os.getpid():
            return True
    return False


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("rows", "memory"),
        pytest.param("ZeRO", "replicas", marks=NIGHTLY),
        pytest.param("three stages", "replicas", marks=NIGHTLY),
    ],
)
def test_a_node_may_be_lost(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any], name: str, source: str
) -> None:
    plan = (PLANS[name] if name in PLANS else MATRIX[name]).plan(graph)
    folder = prepare(tmp_path / "run", graph, plan)
    copies = ("--replicate-every", "1")
    nodes = Nodes(folder, *copies, device=DEVICES[2], step=2, whom="supervisor")
    outputs = nodes.outputs()
    assert nodes.codes() == [0, -signal.SIGKILL], outputs
    line = recoveries(folder)[-1]
    assert line["lost"] == DEVICES[2:]
    assert line["source"] == source
    assert distance(seen(folder), undisturbed) < 1e-10


# On slow devices two nodes are faster than one. On fast ones messages cost more than they save.
@NIGHTLY
@pytest.mark.parametrize(("speed", "is_used"), [(1e-4, True), (1.0, False)])
def test_a_node_that_comes_back_is_used_if_that_pays(
    tmp_path: Path, graph: medley.Graph, speed: float, is_used: bool
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    kinds = f"devices:\n  CPU: {{speed: {speed}}}\n"
    (folder / "cluster.yaml").write_text(CLUSTER + kinds)
    fault = {"device": DEVICES[2], "step": 1, "whom": "supervisor", "pause": 0.5}
    nodes = Nodes(folder, steps=40, **fault)
    outputs = nodes.bring_back(folder)
    lines = recoveries(folder)
    if not is_used:
        assert len(lines) == 1
        assert "not used" in outputs[0]
        return
    assert lines[1]["members"] == DEVICES
    assert lines[1]["detected"] == "offer"
    assert (lines[1]["lost"], lines[1]["back"]) == ([], 0)


@NIGHTLY
def test_a_process_of_another_node_may_be_lost_and_started_again(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any]
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    nodes = Nodes(folder, "--max-restarts", "1", device=DEVICES[2], step=2)
    outputs = nodes.outputs()
    assert nodes.codes()[0] == 0, outputs
    (line,) = recoveries(folder)
    assert line["members"] == DEVICES
    assert distance(seen(folder), undisturbed) < 1e-10


@NIGHTLY
def test_the_node_that_leads_ends_the_run_and_the_checkpoint_stays(
    tmp_path: Path, graph: medley.Graph
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    nodes = Nodes(folder, start=list, device=DEVICES[1], step=3, whom="supervisor", save=2)
    outputs = nodes.outputs()
    assert nodes.codes() == [-signal.SIGKILL, 3], outputs
    assert "node 0, which leads the run, is gone; stopped all devices" in outputs[1]
    assert not is_running(folder)
    ((path, step, is_complete),) = _core.find_checkpoints(str(folder / "saved"))
    assert (step, is_complete) == (2, True)
    assert _core.Manifest.open(path).check(path) > 0


STOPS = {"device": DEVICES[2], "step": 1, "signal": int(signal.SIGSTOP), "whom": "node"}


def stopped_for_long(folder: Path) -> list[int]:
    """Returns the processes of the node that STOPS, ten seconds later."""
    while not (folder / "stopped").exists():
        time.sleep(0.05)
    time.sleep(10)
    return [int(process) for process in json.loads((folder / "stopped").read_text())]


def go_on(processes: list[int]) -> None:
    for process in processes:
        os.kill(process, signal.SIGCONT)


# Stopped with its supervisor, so that no process kills it, and continued long after the others: it
# ends itself without an effect.
@NIGHTLY
def test_a_node_that_comes_back_after_ten_seconds_is_out(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any]
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    nodes = Nodes(folder, start=list, **STOPS)
    silent = stopped_for_long(folder)
    before = torch.load(folder / "seen.pt")  # the others have ended without it
    go_on(silent)
    nodes.outputs()
    assert nodes.codes()[0] == 0
    assert nodes.codes()[1] != 0
    assert not is_running(folder)
    assert seen(folder)["losses"] == before["losses"]
    (line,) = recoveries(folder)
    assert line["lost"] == DEVICES[2:]
    assert distance(seen(folder), undisturbed) < 1e-10


# Its processes have ended meanwhile, which is old news when the command is started there again.
@NIGHTLY
def test_a_node_that_was_silent_for_ten_seconds_is_used_when_it_is_started_again(
    tmp_path: Path, graph: medley.Graph
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    (folder / "cluster.yaml").write_text(SLOW)
    nodes = Nodes(folder, steps=60, start=list, pause=0.5, **STOPS)
    go_on(stopped_for_long(folder))
    nodes.supervisors[1].wait(timeout=60)
    nodes.bring_back(folder)
    assert recoveries(folder)[-1]["members"] == DEVICES


# Evaluations take most of the time, so it becomes ready in one. It receives the earlier results,
# and joins the next one at its first batch.
@NIGHTLY
def test_a_node_that_comes_back_is_taken_in_between_evaluations(
    tmp_path: Path, graph: medley.Graph
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    (folder / "cluster.yaml").write_text(SLOW)
    (folder / "forward.graph").write_text(evaluation.forward())
    fault = {"device": DEVICES[2], "evaluation": 0, "batch": 1, "whom": "supervisor", "pause": 0.3}
    nodes = Nodes(folder, steps=20, script=evaluation.SCRIPT, **fault)
    nodes.bring_back(folder)
    offer = recoveries(folder)[-1]
    assert (offer["detected"], offer["members"], offer["back"]) == ("offer", DEVICES, 0)
    results = [json.loads((folder / f"{d.replace('/', '')}.json").read_text()) for d in DEVICES]
    for each in results:
        assert each["evaluated"] == results[0]["evaluated"]
        assert each["steps"] == 20
    generations = results[0]["generations"]
    assert [len(each) for each in generations] == [evaluator.BATCHES] * 20
    assert {len(set(each)) for each in generations[1:]} == {1}
    assert results[2]["generations"] == [
        each for each in generations if each[0] == offer["generation"]
    ]
