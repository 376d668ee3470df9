"""Usual scripts in runs that lose a process: they save the results of one device."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import medley
from medley import _core

sys.path.insert(0, str(Path(__file__).parent))
import looper
import survivor
import test_elastic as training
from outcomes import recoveries
from test_elastic import DEVICES, MATRIX, PLANS, one_device, prepare
from test_processes import LAUNCH, run

graph = training.graph
pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

SCRIPT = str(Path(looper.__file__))


def trained(folder: Path, graph: medley.Graph, *options: str, **fault: Any) -> None:
    """Runs the script, which loses a process once, and compares the saved files."""
    log = ["--elastic", "--elastic-log", str(folder / "elastic.jsonl"), *options]
    done = run([*LAUNCH, *log, str(folder / "plan.json"), SCRIPT, str(folder), json.dumps(fault)])
    assert done.returncode == 0, done.stderr
    assert "leaked" not in done.stderr
    assert len(recoveries(folder)) == int(fault["step"] <= looper.STEPS)
    want = one_device(graph.text(), looper.STEPS)
    losses = json.loads((folder / "seen.json").read_text())
    assert losses == pytest.approx(want["losses"][looper.FITTED :], rel=1e-10)
    (found,) = _core.find_checkpoints(str(folder / "saved"))
    assert found[1:] == (looper.STEPS, True)
    trainer = training.alone(graph)
    assert trainer.load(folder / "saved").step == looper.STEPS
    state = trainer.parameters()
    for name, value in want["state"].items():
        assert float((state[name] - value).abs().max() / value.abs().max()) < 1e-10, name


# A restarted process skips the steps of that loop in fit, which ends before them.
@pytest.mark.parametrize("loader", [{}, {"lengthless": True}])
@pytest.mark.parametrize("who", [2, pytest.param(0, marks=NIGHTLY)])
def test_restarted_process_leaves_fit_with_the_others(
    tmp_path: Path, graph: medley.Graph, who: int, loader: dict[str, bool]
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    step = looper.FITTED + 1
    trained(folder, graph, "--max-restarts", "1", device=DEVICES[who], step=step, **loader)
    lines = (folder / "fitted" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def saved_before(folder: Path, graph: medley.Graph, plan: str) -> Path:
    """Returns a folder with the checkpoint of another run."""
    folder = prepare(folder, graph, plan)
    trainer = training.alone(graph)
    _, example = survivor.make()
    for done in range(looper.FITTED):
        trainer.step(survivor.batch_of(example, done))
    trainer.save(folder / "first")
    return folder


# It receives the position of the others from the store, or together with them.
@pytest.mark.parametrize("step", [looper.FITTED + 1, pytest.param(-1, marks=NIGHTLY)])
def test_restarted_process_resumes_with_the_others(
    tmp_path: Path, graph: medley.Graph, step: int
) -> None:
    folder = saved_before(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    trained(folder, graph, "--max-restarts", "1", device=DEVICES[1], step=step)


# Only this process had its part of the state, before and after, and there is no copy yet.
@pytest.mark.parametrize(
    ("name", "who", "place", "restarts"),
    [
        ("owners", 0, "loaded", "1"),
        ("owners", 0, "matched", "0"),
        pytest.param("owners", 0, "loaded", "0", marks=NIGHTLY),
        pytest.param("owners", 0, "read", "0", marks=NIGHTLY),
        pytest.param("owners", 1, "read", "1", marks=NIGHTLY),
        pytest.param("ZeRO", 0, "matched", "1", marks=NIGHTLY),
        pytest.param("three stages", 0, "loaded", "0", marks=NIGHTLY),
    ],
)
def test_process_lost_in_a_load_comes_back_from_the_checkpoint(
    tmp_path: Path, graph: medley.Graph, name: str, who: int, place: str, restarts: str
) -> None:
    folder = saved_before(tmp_path / "run", graph, MATRIX[name].plan(graph))
    fault = {"device": DEVICES[who], "step": -1, "place": place}
    trained(folder, graph, "--max-restarts", restarts, **fault)


# No process reaches that save again. With ZeRO all return to copies, and repeat the last step when
# no thread can start.
@pytest.mark.parametrize("name", ["rows", "ZeRO"])
@pytest.mark.parametrize("who", [1, pytest.param(0, marks=NIGHTLY)])
def test_save_in_progress_completes_when_a_script_ends(
    tmp_path: Path, graph: medley.Graph, name: str, who: int
) -> None:
    folder = prepare(tmp_path / "run", graph, (PLANS | MATRIX)[name].plan(graph))
    trained(folder, graph, "--replicate-every", "1", device=DEVICES[who], step=looper.STEPS)


# The others have read them, and wait for the end.
@pytest.mark.parametrize("who", [1, pytest.param(0, marks=NIGHTLY)])
def test_process_restarted_at_the_end_repeats_the_reads(
    tmp_path: Path, graph: medley.Graph, who: int
) -> None:
    folder = prepare(tmp_path / "run", graph, MATRIX["ZeRO"].plan(graph))
    options = ("--max-restarts", "1", "--replicate-every", "1")
    trained(folder, graph, *options, device=DEVICES[who], step=looper.STEPS, reads=True)


# Neither it nor its replacement is needed.
@pytest.mark.parametrize("restarts", ["1", pytest.param("0", marks=NIGHTLY)])
def test_process_killed_after_the_end_is_ignored(
    tmp_path: Path, graph: medley.Graph, restarts: str
) -> None:
    folder = prepare(tmp_path / "run", graph, MATRIX["ZeRO"].plan(graph))
    trained(folder, graph, "--max-restarts", restarts, device=DEVICES[0], step=looper.STEPS + 1)


# It computes in its script and sends no position, but its heartbeat continues.
def test_busy_process_is_waited_for_after_a_loss(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, MATRIX["ZeRO"].plan(graph))
    fault = {"device": DEVICES[1], "busy": DEVICES[0], "step": looper.FITTED + 1}
    trained(folder, graph, "--replicate-every", "1", **fault)
    assert recoveries(folder)[0]["lost"] == [DEVICES[1]]
