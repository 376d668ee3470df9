"""Any plan trains like plain PyTorch on one device, to 1e-10 in fp64, in both shipped forms:
threads of one process, and one process per device."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
import exactness
from cells import CELLS, LEARNING_RATE, MATRIX, NUMBERS
from test_processes import TORCHRUN, run

pytestmark = [pytest.mark.multi, pytest.mark.slow]

SCRIPT = str(Path(__file__).parent / "cells.py")
NAMES = [
    pytest.param(name, marks=[] if name in MATRIX else [pytest.mark.nightly]) for name in CELLS
]


@functools.cache
def eager(name: str) -> exactness.Curve:
    """Returns the curve of a cell in plain PyTorch."""
    cell = CELLS[name]
    with exactness.double_precision():
        model, batch, _, _ = cell.make()
        return exactness.train_eager(model, batch, cell.steps, LEARNING_RATE, cell.clip)


class Processes:
    """The curves of cells in processes. All cells for a number of devices are trained in sequence
    by the same processes; after a failure new ones continue."""

    def __init__(self, folder: Path, wanted: list[str]) -> None:
        self._folder = folder
        self._wanted = wanted
        self._failed: dict[str, str] = {}  # outputs of the processes

    def curve(self, name: str) -> exactness.Curve:
        """Returns the curve of a cell."""
        file = self._folder / f"{NUMBERS[name]}.pt"
        if not file.exists() and name not in self._failed:
            self._train(CELLS[name].devices)
        assert file.exists(), self._failed[name]
        return exactness.Curve(**torch.load(file))

    def _train(self, devices: int) -> None:
        left = [name for name in self._wanted if CELLS[name].devices == devices]
        for name in left:
            with exactness.double_precision():
                graph = CELLS[name].make()[2]
            if not graph.constants:  # constants are not in its text
                (self._folder / f"{NUMBERS[name]}.graph").write_text(graph.text())
        while left:
            script = [SCRIPT, str(self._folder), *left]
            done = run([*TORCHRUN, f"--nproc-per-node={devices}", *script])
            while left and (self._folder / f"{NUMBERS[left[0]]}.pt").exists():
                left.pop(0)
            if left:
                self._failed[left.pop(0)] = done.stderr


@pytest.fixture(scope="module")
def processes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Processes:
    items = [item for item in request.session.items if isinstance(item, pytest.Function)]
    names = [
        item.callspec.params["name"]
        for item in items
        if item.originalname == test_in_processes.__name__
    ]
    return Processes(tmp_path_factory.mktemp("curves"), names)


# python/tests runs the others as threads.
@pytest.mark.parametrize("name", MATRIX)
def test_in_threads(name: str) -> None:
    cell = CELLS[name]
    with exactness.double_precision():
        model, batch, graph, plan = cell.make()
        got = exactness.train_plan(model, graph, plan, batch, cell.steps, LEARNING_RATE, cell.clip)
    print(f"{name}: {exactness.compare(got, eager(name), model=cell.model):.1e} in threads")


@pytest.mark.parametrize("name", NAMES)
def test_in_processes(name: str, processes: Processes) -> None:
    got = processes.curve(name)
    worst = exactness.compare(got, eager(name), model=CELLS[name].model)
    print(f"{name}: {worst:.1e} in processes")
