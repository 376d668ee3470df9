"""Carried values and outputs of rows in processes: killed, and resumed under another plan, or
continued without the lost process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
import exactness
import test_carry
import test_outputs
from carry import RESET

import medley
import warm_start

pytestmark = [pytest.mark.multi]

STEPS = 6
SCRIPT = Path(__file__).with_name("carry.py")


def launched(folder: Path, plan: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Trains to the end under a plan, one process for each of its devices."""
    (folder / "plan.json").write_text(plan)
    path = os.pathsep.join([*(entry for entry in sys.path if entry), str(SCRIPT.parent)])
    command = [sys.executable, "-m", "medley", "launch", *options, str(folder / "plan.json")]
    return subprocess.run(
        warm_start.command([*command, str(SCRIPT), str(folder), str(STEPS)]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        timeout=300,
        cwd=folder,
    )


def compare(folder: Path, ranks: list[int]) -> int:
    """Asserts that the last steps equal those of the loop in PyTorch. Returns their number."""
    eager, held_out = test_carry.Eager(test_carry.reader()[0]), test_carry.pieces(2, 2)
    wanted = []
    for step, piece in enumerate(test_carry.pieces(1, STEPS)):
        if step == RESET:
            eager.carried = test_carry.zeros()
        wanted.append((eager.step(piece), eager.evaluate(held_out)))
    for rank in ranks:
        seen = torch.load(folder / f"{rank}.pt")
        count = len(seen["losses"])
        for i, (want, evaluated) in enumerate(wanted[-count:]):
            assert seen["losses"][i] == pytest.approx(want["loss"].item(), rel=1e-10)
            assert seen["evaluated"][i] == pytest.approx(evaluated, rel=1e-10)
            torch.testing.assert_close(seen["logits"][i], want["logits"], rtol=1e-10, atol=1e-12)
        for name, value in seen["carried"].items():
            torch.testing.assert_close(value, eager.carried[name], rtol=1e-10, atol=1e-12)
    return count


@pytest.fixture
def graph(tmp_path: Path) -> medley.Graph:
    """The graph, which the processes read."""
    with exactness.double_precision():
        graph = test_carry.reader()[1]
    (tmp_path / "reader.graph").write_text(graph.text())
    return graph


def test_a_killed_run_resumes_under_another_plan(tmp_path: Path, graph: medley.Graph) -> None:
    rows, stages = test_outputs.plans(graph)[:2]
    (tmp_path / "die").write_text("3")
    assert launched(tmp_path, rows).returncode != 0
    assert not (tmp_path / "die").exists()
    done = launched(tmp_path, stages)
    assert done.returncode == 0, done.stderr
    with exactness.double_precision():
        assert 3 <= compare(tmp_path, [0, 1]) < STEPS


@pytest.mark.nightly
def test_an_elastic_run_goes_on(tmp_path: Path, graph: medley.Graph) -> None:
    (tmp_path / "die").write_text("3")
    log = str(tmp_path / "elastic.jsonl")
    done = launched(tmp_path, test_outputs.plans(graph)[0], "--elastic", "--elastic-log", log)
    assert done.returncode == 0, done.stderr
    with exactness.double_precision():
        assert compare(tmp_path, [0, 2]) == STEPS
