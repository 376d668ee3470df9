"""Optimizers of runs that lose a process: functions of the step, and the state of PyTorch's."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import medley
from medley import _core

sys.path.insert(0, str(Path(__file__).parent))
import survivor
import test_elastic as training
from cells import MATRIX
from outcomes import distance, recoveries, seen
from test_elastic import DEVICES, FORWARD, NEVER, PLANS, STEPS, WHERE, alone, elastic, prepare

graph, undisturbed = training.graph, training.undisturbed
pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly


@functools.cache
def by_step(text: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Returns the results of one device with survivor.BY_STEP, and the averages of the weights."""
    trainer = alone(medley.Graph(_core.Graph.parse(text, "graph")), **survivor.BY_STEP)
    _, example = survivor.make()
    losses = [trainer.step(survivor.batch_of(example, step)).loss for step in range(STEPS)]
    return {"losses": losses, "state": trainer.parameters()}, trainer.averages()


# Functions of the step use the number of the step, in repeated steps and in joining processes too.
@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        ("several pipelines", (), {"step": 2, **FORWARD}),
        pytest.param("rows", (), {"step": 3, **WHERE["update"]}, marks=NIGHTLY),
        pytest.param("rows", ("--max-restarts", "1"), {"step": 3, **FORWARD}, marks=NIGHTLY),
        pytest.param("ZeRO", ("--replicate-every", "2"), {"step": 3}, marks=NIGHTLY),
        pytest.param("ZeRO", NEVER, {"step": 3, "save": 2}, marks=NIGHTLY),
    ],
)
def test_hyperparameters_and_averages_by_step_are_those_of_the_step(
    tmp_path: Path, graph: medley.Graph, name: str, options: tuple[str, ...], fault: dict[str, Any]
) -> None:
    folder = prepare(tmp_path / "run", graph, (PLANS | MATRIX)[name].plan(graph))
    done = elastic(folder, *options, device=DEVICES[1], by_step=True, **fault)
    assert done.returncode == 0, done.stderr
    assert len(recoveries(folder)) == 1
    found, (expected, averages) = seen(folder), by_step(graph.text())
    assert distance(found, expected) < 1e-10
    kept = {each: found["state"]["state", f"average:{each}"] for each in averages}
    assert (
        distance(
            {**found, "state": {("parameter", n): t for n, t in kept.items()}},
            {**expected, "state": averages},
        )
        < 1e-10
    )


# Killed while all read the state, or in a later step. State of only the lost device comes from a
# later checkpoint.
@pytest.mark.parametrize(
    ("name", "options", "fault"),
    [
        pytest.param(name, options, fault, marks=[] if name == "rows" and options else NIGHTLY)
        for name, options, fault in (
            ("rows", ("--max-restarts", "1"), {"step": -1, "saving": "optimizer"}),
            ("several pipelines", (), {"step": -1, "saving": "optimizer"}),
            ("rows", (), {"step": 3, **FORWARD}),
            ("several pipelines", ("--max-restarts", "1"), {"step": 3, **FORWARD}),
            ("ZeRO", NEVER, {"step": 4, "save": 1}),
        )
    ],
)
def test_the_state_of_an_optimizer_of_torch_is_loaded_once(
    tmp_path: Path,
    graph: medley.Graph,
    undisturbed: dict[str, Any],
    name: str,
    options: tuple[str, ...],
    fault: dict[str, Any],
) -> None:
    folder = prepare(tmp_path / "run", graph, (PLANS | MATRIX)[name].plan(graph))
    before = alone(graph)
    for step in range(2):
        before.step(survivor.batch_of(survivor.make()[1], step))
    before.save_model(folder / "torch")
    torch.save(before.optimizer_state_dict(), folder / "torch" / "optimizer.pt")
    done = elastic(folder, *options, device=DEVICES[2], torch=True, **fault)
    assert done.returncode == 0, done.stderr
    assert len(recoveries(folder)) == 1
    assert distance(seen(folder), {**undisturbed, "losses": undisturbed["losses"][2:]}) < 1e-10
