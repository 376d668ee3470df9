"""Evaluation in runs that lose a process and continue: each evaluation equals that of one device,
and the curve that of a run without a loss."""

from __future__ import annotations

import functools
import json
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import medley
from medley.ambient import in_eval_mode
from medley.capture import capture_full
from medley.capture.batch import reported

sys.path.insert(0, str(Path(__file__).parent))
import evaluator
import survivor
import test_elastic as training
from outcomes import distance, recoveries, seen
from test_elastic import DEVICES, PLANS
from test_processes import LAUNCH, run

graph = training.graph
pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

SCRIPT = str(Path(evaluator.__file__))
STEPS = 3
# On slow devices many are faster than one. On fast ones a loss leaves all others without a device
# of the plan.
SLOW = training.CLUSTER + "devices:\n  CPU: {speed: 1e-4}\n"


@functools.cache
def one_device(text: str, steps: int) -> dict[str, Any]:
    """Returns the results of one device."""
    trainer = training.alone(medley.Graph(medley._core.Graph.parse(text, "graph")))
    _, example = survivor.make()
    losses, found = [], []
    for step in range(steps):
        losses.append(trainer.step(survivor.batch_of(example, step)).loss)
        batches = (evaluator.held_out(example, step, n) for n in range(evaluator.BATCHES))
        with mock.patch.object(medley.graph, "_captured_as", captured):
            found.append(trainer.evaluate(batches)["loss"])
    return {"losses": losses, "evaluated": found, "state": trainer.parameters()}


@functools.cache
def forward() -> str:
    """Returns the model in eval mode, which the first process would take seconds to capture."""
    model, example = survivor.make()
    with in_eval_mode(model):
        beside = functools.partial(reported, is_wanted=lambda name: False, carry={})
        return capture_full(model, example, beside=beside).text


def captured(*arguments: Any, **options: Any) -> evaluator.Captured:
    """The same, for a graph."""
    return evaluator.Captured(forward(), {})


def prepare(
    folder: Path, graph: medley.Graph, name: str, captures: bool = False, slow: bool = True
) -> Path:
    """Writes the files that the processes read."""
    training.prepare(folder, graph, PLANS[name].plan(graph))
    (folder / "cluster.yaml").write_text(SLOW if slow else training.CLUSTER)
    if not captures:
        (folder / "forward.graph").write_text(forward())
    return folder


def elastic(
    folder: Path, *options: str, steps: int = STEPS, **fault: Any
) -> subprocess.CompletedProcess[str]:
    """Runs the script under `medley launch --elastic`."""
    log = ["--elastic", "--elastic-log", str(folder / "elastic.jsonl"), *options]
    script = [str(folder / "plan.json"), SCRIPT, str(folder), str(steps), json.dumps(fault)]
    return run([*LAUNCH, *log, *script])


def check(folder: Path, graph: medley.Graph, devices: list[str], steps: int = STEPS) -> None:
    """Asserts that all devices have the results of one device."""
    want = one_device(graph.text(), steps)
    assert distance(seen(folder), want) < 1e-10
    results = [json.loads((folder / f"{d.replace('/', '')}.json").read_text()) for d in devices]
    assert results[0]["evaluated"] == pytest.approx(want["evaluated"], rel=1e-10)
    for each in results:
        assert (each["evaluated"], each["steps"]) == (results[0]["evaluated"], steps)


# The first process plans and reports. The third batch is in progress.
@pytest.mark.parametrize(
    ("name", "who", "batch", "where"),
    [
        ("several pipelines", 0, 2, {"call": "forward"}),
        *(
            pytest.param(name, who, batch, where, marks=NIGHTLY)
            for name in PLANS
            for who in range(4)
            for batch, where in ((0, {}), (0, {"call": "forward"}), (2, {}), (3, {"call": ""}))
        ),
    ],
)
@pytest.mark.parametrize("slow", [True, pytest.param(False, marks=NIGHTLY)])
def test_a_process_may_be_killed_in_an_evaluation(
    tmp_path: Path,
    graph: medley.Graph,
    name: str,
    who: int,
    batch: int,
    where: dict[str, str],
    slow: bool,
) -> None:
    folder = prepare(tmp_path / "run", graph, name, slow=slow)
    done = elastic(folder, device=DEVICES[who], evaluation=1, batch=batch, **where)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert (line["lost"], line["step"], line["back"]) == ([DEVICES[who]], 1, 0)
    check(folder, graph, [d for d in DEVICES[:4] if d != DEVICES[who]])


# It missed all earlier evaluations and receives their results. In this one it starts in the middle.
@pytest.mark.parametrize("who", [0, pytest.param(3, marks=NIGHTLY)])
def test_a_process_that_is_started_again_takes_part_in_the_evaluation(
    tmp_path: Path, graph: medley.Graph, who: int
) -> None:
    folder = prepare(tmp_path / "run", graph, "rows", captures=who > 0)
    done = elastic(folder, "--max-restarts", "1", device=DEVICES[who], evaluation=1, batch=2)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["members"] == DEVICES[:4]
    check(folder, graph, DEVICES[:4])


def test_findings_of_others_are_shared(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, "rows")
    done = elastic(folder, loses=DEVICES[1], evaluation=1)
    assert done.returncode == 0, done.stderr
    assert [line["lost"] for line in recoveries(folder)] == [[]]
    check(folder, graph, DEVICES[:4])


@NIGHTLY
def test_fifty_generations_leave_nothing_behind(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, "rows")
    done = elastic(folder, steps=50, device=DEVICES[1], generations=50)
    assert done.returncode == 0, done.stderr
    assert [line["lost"] for line in recoveries(folder)] == [[]] * 50
    check(folder, graph, DEVICES[:4], steps=50)
    # Sometimes Gloo leaves an exchange over ended connections pending: four descriptors and three
    # threads of such a group stay until its timeout.
    had = seen(folder)["had"]
    descriptors, threads, memory = (statistics.median(each) for each in zip(*had[-9:], strict=True))
    assert descriptors <= had[1][0] + 3 * 4
    assert threads <= had[1][1] + 3 * 3
    assert memory <= had[19][2] * 1.05, [each[2] for each in had]


def test_own_rows_are_refused(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, "rows")
    done = elastic(folder, own_rows=True)
    assert done.returncode == 2
    assert "evaluate: batch 0: found 2 rows" in done.stderr
    assert "medley.Loader reads those" in done.stderr


@NIGHTLY
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGSTOP])
def test_a_process_may_leave_or_be_stopped_in_an_evaluation(
    tmp_path: Path, graph: medley.Graph, number: signal.Signals
) -> None:
    folder = prepare(tmp_path / "run", graph, "several pipelines")
    done = elastic(folder, device=DEVICES[1], evaluation=1, batch=1, signal=int(number))
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert DEVICES[1] not in line["members"]
    check(folder, graph, [DEVICES[0], *DEVICES[2:4]])


@NIGHTLY
@pytest.mark.parametrize("where", [{}, {"call": "forward"}])
def test_another_loss_in_the_same_evaluation_begins_it_again(
    tmp_path: Path, graph: medley.Graph, where: dict[str, str]
) -> None:
    folder = prepare(tmp_path / "run", graph, "rows")
    who = {"device": DEVICES[3], "second": DEVICES[0]}
    done = elastic(folder, **who, evaluation=1, batch=1, **where)
    assert done.returncode == 0, done.stderr
    assert recoveries(folder)[-1]["members"] == DEVICES[1:3]
    check(folder, graph, DEVICES[1:3])
