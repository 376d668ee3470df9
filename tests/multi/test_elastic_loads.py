"""Elastic runs whose script returns to an older checkpoint: all later work is repeated."""

from __future__ import annotations

import functools
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

import medley

sys.path.insert(0, str(Path(__file__).parent))
import returner
import test_elastic as training
from outcomes import recoveries
from test_elastic import DEVICES, MATRIX, PLANS, prepare
from test_processes import LAUNCH, run

from medley import _core

graph = training.graph
pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly
SCRIPT = str(Path(returner.__file__))
LOADS = [act for act, what in enumerate(returner.SCRIPT) if what.startswith("load")]


@functools.cache
def one_device(text: str) -> tuple[list[float], dict[str, Any]]:
    """Returns the results of the script on one device."""
    trainer = training.alone(medley.Graph(_core.Graph.parse(text, "graph")))
    with tempfile.TemporaryDirectory() as folder:
        found = returner.run(trainer, Path(folder))
    return found, trainer.parameters()


def check(
    folder: Path, graph: medley.Graph, devices: list[str], *options: str, **fault: Any
) -> None:
    """Asserts that all processes of a run have the results of one device, and that they are
    saved."""
    log = ["--elastic", "--elastic-log", str(folder / "elastic.jsonl"), *options]
    done = run([*LAUNCH, *log, str(folder / "plan.json"), SCRIPT, str(folder), json.dumps(fault)])
    assert done.returncode == 0, done.stderr
    assert len(recoveries(folder)) == len(fault.keys() & {"device"})
    losses, state = one_device(graph.text())
    for device in devices:
        found = json.loads((folder / f"{device.replace('/', '')}.json").read_text())
        assert found == pytest.approx(losses, rel=1e-10), device
    found = torch.load(folder / "seen.pt")
    trainer = training.alone(graph)
    assert trainer.load(folder / "saved-2").step == 6
    for name, value in state.items():
        for got in (found[name], trainer.parameters()[name]):
            assert float((got - value).abs().max() / value.abs().max()) < 1e-10, name


def test_all_acts_are_made_after_a_load(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    check(folder, graph, DEVICES[:4])


# Before, between and after the loads. The first process reports.
@pytest.mark.parametrize("restarts", [1, 0])
@pytest.mark.parametrize(
    ("who", "act"),
    [
        (1, LOADS[0] + 3),
        *(
            pytest.param(who, act, marks=NIGHTLY)
            for who, act in ((0, LOADS[0] + 3), (1, LOADS[0]), (3, LOADS[1] + 2), (0, 5), (2, 3))
        ),
    ],
)
def test_process_lost_after_a_load_is_replaced(
    tmp_path: Path, graph: medley.Graph, who: int, act: int, restarts: int
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    left = [each for each in DEVICES[:4] if restarts or each != DEVICES[who]]
    check(folder, graph, left, "--max-restarts", str(restarts), device=DEVICES[who], act=act)


# Only this process had its part of the state: all return to a checkpoint of this life.
@pytest.mark.parametrize(
    ("act", "fault"),
    [
        (LOADS[0] + 2, {}),
        *(
            pytest.param(act, fault, marks=NIGHTLY)
            for act, fault in (
                (LOADS[0] + 4, {}),
                (LOADS[0], {"place": "read"}),
                (LOADS[0], {"place": "loaded"}),
                (LOADS[1], {"place": "loaded"}),
            )
        ),
    ],
)
@pytest.mark.parametrize("options", [(), pytest.param(("--replicate-every", "1"), marks=NIGHTLY)])
def test_state_lost_after_a_load_comes_back(
    tmp_path: Path, graph: medley.Graph, act: int, fault: dict[str, str], options: tuple[str, ...]
) -> None:
    folder = prepare(tmp_path / "run", graph, MATRIX["owners"].plan(graph))
    devices = medley.Plan.load(folder / "plan.json").devices
    fault = {"device": devices[0], **fault}
    check(folder, graph, devices, "--max-restarts", "1", *options, act=act, **fault)
