"""Runs that lose a process and go on: the curve is that of a run that has lost none."""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import medley

sys.path.insert(0, str(Path(__file__).parent))
import cells
import exactness
import survivor
import test_hand_written_plans as one_axis
from cells import MATRIX
from test_processes import LAUNCH, run

pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

SCRIPT = str(Path(__file__).with_name("survivor.py"))
STEPS = 5
DEVICES = [f"a/{i}/0" for i in range(4)]
# Every part of each is on two devices at least.
PLANS = {
    "rows": cells.of_one_axis(one_axis.Case("gpt", {}, [3, 2, 1, 1], [2, 1, 2, 1])),
    "tensors inside, rows between": MATRIX["two axes"],
    "several pipelines": MATRIX["several pipelines"],
}
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 4, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 10 us}
"""


@pytest.fixture(scope="module")
def graph() -> medley.Graph:
    """What survivor.py trains; captured once."""
    with exactness.double_precision():
        return medley.capture(*survivor.make())


@pytest.fixture(scope="module")
def undisturbed(graph: medley.Graph) -> dict[str, Any]:
    """What one device comes to, loss and parameters."""
    return one_device(graph.text())


@functools.cache
def one_device(text: str) -> dict[str, Any]:
    """Trains alone."""
    graph = medley.Graph(medley._core.Graph.parse(text, "graph"))
    model, example = survivor.make()
    cluster = medley.cluster.parse_cluster(CLUSTER)
    plan = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": survivor.ROWS,
        "pipelines": [
            {
                "microbatches": [{"rows": survivor.ROWS}],
                "stages": [{"mesh": {"axes": ["x"], "shape": [1], "devices": DEVICES[:1]}}],
            }
        ],
    }
    chosen = medley.plan(graph, cluster, plan=medley.Plan.from_dict(plan))
    trainer = medley.Trainer(model, graph, chosen, survivor.optimizer(), local=True)
    losses = [trainer.step(survivor.batch_of(example, step)).loss for step in range(STEPS)]
    return {"losses": losses, "state": trainer.parameters()}


def prepare(folder: Path, graph: medley.Graph, plan: str) -> Path:
    """Writes what the processes read."""
    folder.mkdir(exist_ok=True)
    (folder / "model.graph").write_text(graph.text())
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "plan.json").write_text(plan)
    return folder


def launched(
    folder: Path, *options: str, steps: int = STEPS, **fault: Any
) -> subprocess.CompletedProcess[str]:
    """Runs the script under `medley launch`."""
    faults = [json.dumps(fault)] if fault else []
    command = [*LAUNCH, *options, str(folder / "plan.json"), SCRIPT, str(folder), str(steps)]
    return run([*command, *faults])


def elastic(folder: Path, *options: str, **fault: Any) -> subprocess.CompletedProcess[str]:
    """Runs the script under `medley launch --elastic`."""
    log = ["--elastic", "--elastic-log", str(folder / "elastic.jsonl")]
    return launched(folder, *log, *options, **fault)


def seen(folder: Path) -> dict[str, Any]:
    """Returns what the first device has seen."""
    return dict(torch.load(folder / "seen.pt"))


def recoveries(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of the log."""
    path = folder / "elastic.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def distance(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Returns the largest difference of losses and parameters, relative to the largest element."""
    worst = max(
        abs(a - b) / abs(b) for a, b in zip(found["losses"], expected["losses"], strict=True)
    )
    for name, value in expected["state"].items():
        other = found["state"]["parameter", name]
        worst = max(worst, float((other - value).abs().max() / value.abs().max()))
    return worst


def changing_plans(folder: Path, graph: medley.Graph, done: int) -> dict[str, Any]:
    """What runs without faults come to that end after `done` steps, and go on under the plan of the
    second epoch."""
    first = prepare(folder / "first", graph, (folder / "plan.json").read_text())
    completed = launched(first, steps=done)
    assert completed.returncode == 0, completed.stderr
    second = prepare(folder / "second", graph, (folder / "elastic-1.plan.json").read_text())
    (first / "seen.pt").rename(second / "start.pt")
    completed = launched(second)
    assert completed.returncode == 0, completed.stderr
    return seen(second)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[NIGHTLY] if "inside" in name else []) for name in PLANS],
)
def test_a_run_that_loses_a_process_goes_on_with_the_same_curve(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any], name: str
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS[name].plan(graph))
    done = elastic(folder, device=DEVICES[3], step=2)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["lost"] == [DEVICES[3]]
    assert line["step"] == 1
    assert line["at"] - float((folder / "ended").read_text()) < 1
    found = seen(folder)
    assert distance(found, undisturbed) < 1e-10
    expected = changing_plans(folder, graph, 2)
    assert found["losses"] == expected["losses"]
    for key, value in expected["state"].items():
        assert torch.equal(found["state"][key], value), key


# Where in a step of which plan who is killed. What is before the commit is made again; behind it
# the others finish.
WHERE = {
    "forward": ("forward", ""),
    "backward": ("backward", ""),
    "transfer": ("", "transfer"),
    "relay": ("", "relay"),
    "norm": ("update", "norm/sum"),
    "update": ("update", ""),
}


CHOSEN = [
    ("rows", 0, "forward"),
    ("several pipelines", 1, "relay"),
    ("several pipelines", 2, "norm"),
    ("tensors inside, rows between", 1, "update"),
]
EVERYWHERE = [(plan, who, where) for plan in PLANS for who in range(4) for where in WHERE]
MORE = [pytest.param(*each, marks=NIGHTLY) for each in EVERYWHERE if each not in CHOSEN]


# Not every device has transfers, relays or a norm.
@pytest.mark.parametrize(("name", "who", "where"), [*CHOSEN, *MORE])
def test_a_process_may_be_killed_anywhere_in_a_step(
    tmp_path: Path,
    graph: medley.Graph,
    undisturbed: dict[str, Any],
    name: str,
    who: int,
    where: str,
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS[name].plan(graph))
    call, exchange = WHERE[where]
    done = elastic(folder, device=DEVICES[who], step=2, call=call, exchange=exchange)
    assert done.returncode == 0, done.stderr
    if (name, who, where) in CHOSEN or where in ("forward", "backward", "update"):
        assert recoveries(folder), "nobody was killed"
    assert distance(seen(folder), undisturbed) < 1e-10


# The others have gone on to the next step before a slow one looks at what the commit gave.
def test_a_step_that_others_have_committed_is_finished_alone(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any]
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    where = {"call": "update", "exchange": "norm/sum", "behind": True}
    done = elastic(folder, device=DEVICES[3], slow=DEVICES[1], step=2, **where)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["step"] == 2
    assert distance(seen(folder), undisturbed) < 1e-10


def test_a_process_that_is_stopped_is_out(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any]
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    done = elastic(folder, device=DEVICES[1], step=1, signal=int(signal.SIGSTOP))
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["lost"] == [DEVICES[1]]
    assert line["detected"] == "silence"
    assert line["at"] - float((folder / "ended").read_text()) < 6
    assert distance(seen(folder), undisturbed) < 1e-10


@pytest.mark.parametrize(
    "during",
    [
        "_share_history",
        *(
            pytest.param(each, marks=NIGHTLY)
            for each in ("_report", "_catch_up", "_plan", "_moves")
        ),
    ],
)
def test_another_loss_in_a_recovery_begins_it_again(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any], during: str
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    done = elastic(folder, device=DEVICES[3], step=2, second=DEVICES[1], during=during)
    assert done.returncode == 0, done.stderr
    assert recoveries(folder)[-1]["lost"] == [DEVICES[1], DEVICES[3]]
    assert distance(seen(folder), undisturbed) < 1e-10


def test_a_process_that_is_started_again_leaves_no_trace_in_the_curve(
    tmp_path: Path, graph: medley.Graph
) -> None:
    plan = PLANS["several pipelines"].plan(graph)
    folder = prepare(tmp_path / "run", graph, plan)
    done = elastic(folder, "--restarts", "1", device=DEVICES[2], step=2)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["members"] == DEVICES
    calm = prepare(tmp_path / "calm", graph, plan)
    assert launched(calm).returncode == 0
    found, expected = seen(folder), seen(calm)
    assert found["losses"] == expected["losses"]
    for key, value in expected["state"].items():
        assert torch.equal(found["state"][key], value), key


def test_state_that_only_the_lost_device_had_is_named(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, MATRIX["three stages"].plan(graph))
    done = elastic(folder, device=DEVICES[0], step=2)
    assert done.returncode != 0
    assert "what only lost devices had cannot be restored: parameter " in done.stderr


# They may be others after a loss.
def test_a_step_takes_the_global_batch_only(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    done = elastic(folder, step=-1, own_rows=True)
    assert done.returncode == 2
    assert re.search(r'batch\["\w+"\]: found i64\[[12], \d+\], expected i64\[6, ', done.stderr)


def test_epochs_leave_nothing_behind(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any]
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    done = elastic(folder, device=DEVICES[1], step=-1, epochs=STEPS - 1)
    assert done.returncode == 0, done.stderr
    assert len(recoveries(folder)) == STEPS - 1
    found = seen(folder)
    assert distance(found, undisturbed) < 1e-10
    # Threads of the group before may still be on their way out.
    assert found["had"][-1][0] <= found["had"][0][0]
    assert found["had"][-1][1] <= found["had"][0][1] + 1


@NIGHTLY
def test_fifty_epochs_leave_nothing_behind(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["several pipelines"].plan(graph))
    done = elastic(folder, device=DEVICES[1], steps=52, step=-1, epochs=50)
    assert done.returncode == 0, done.stderr
    assert len(recoveries(folder)) == 50
    had = seen(folder)["had"]
    assert had[49][0] <= had[1][0]
    assert had[49][1] <= had[1][1] + 1
