"""The loop around steps in processes gives the results of threads in one process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from torch import Tensor

import medley
from medley import _testing

sys.path.insert(0, str(Path(__file__).parent))
import loop
import train
from exactness import double_precision

import warm_start

pytestmark = [pytest.mark.multi, pytest.mark.slow]

SCRIPT = str(Path(loop.__file__))
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 3, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 1 Gbit/s, latency: 50 us}
"""


DEVICES = [f"a/{i}/0" for i in range(3)]
# Every part is on all devices.
ROWS = {
    "format": "medley-plan",
    "version": 1,
    "global_batch": train.ROWS,
    "pipelines": [
        {
            "microbatches": [{"rows": 5, "lengths": [2, 1, 2]}, {"rows": 3, "lengths": [1, 1, 1]}],
            "stages": [{"mesh": {"axes": ["x"], "shape": [3], "devices": DEVICES}}],
        }
    ],
}


@pytest.fixture(scope="module")
def graph() -> medley.Graph:
    """Returns the graph that loop.py trains, captured once."""
    with double_precision():
        return medley.capture(*train.make("gpt"))


def prepare(folder: Path, graph: medley.Graph, plan: str) -> None:
    """Writes the files that the processes read."""
    (folder / "gpt.graph").write_text(graph.text())
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "plan.json").write_text(plan)


def run(
    folder: Path, *launch: str, killed: int = 0, how: str = "loader"
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Returns the results of the first process, and the weights."""
    path = os.pathsep.join([*(entry for entry in sys.path if entry), str(Path(SCRIPT).parent)])
    done = subprocess.run(
        warm_start.command(
            [sys.executable, *launch, SCRIPT, str(folder), "plan.json", str(killed), how]
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    weights = safetensors.torch.load_file(folder / "model" / "model.safetensors")
    seen = json.loads((folder / "seen.json").read_text())
    shutil.rmtree(folder / "run")
    return seen, weights


def compare(
    got: tuple[dict[str, Any], dict[str, Tensor]], want: tuple[dict[str, Any], dict[str, Tensor]]
) -> None:
    """Asserts that two runs have equal reports and weights."""
    assert got[0]["steps"] == loop.EPOCHS * 3 and not got[0]["interrupted"]
    for key in ("evaluated", "steps of whole batches"):
        assert got[0][key] == pytest.approx(want[0][key], rel=1e-10), key
    for kind in ("loss", "eval_loss"):
        reported, expected = (
            [(line["step"], line[kind]) for line in each[0]["lines"] if kind in line]
            for each in (got, want)
        )
        assert reported == [(step, pytest.approx(value, rel=1e-10)) for step, value in expected], (
            kind
        )
    for name, value in want[1].items():
        assert (got[1][name] - value).abs().max() <= 1e-10 * value.abs().max(), name


def test_processes_do_what_threads_do(tmp_path: Path, graph: medley.Graph) -> None:
    plan = _testing.random_pipelines(graph.core.text(), DEVICES, train.ROWS, 4)
    prepare(tmp_path, graph, plan)
    want = run(tmp_path)
    compare(run(tmp_path, "-m", "medley", "launch", str(tmp_path / "plan.json")), want)


# Killed after step 4, the first of an epoch, or in the evaluation after it. The last step of each
# epoch has three rows. The next first process receives the results.
@pytest.mark.parametrize("killed", [4, pytest.param(-4, marks=pytest.mark.nightly)])
def test_one_that_loses_its_first_process_goes_on(
    tmp_path: Path, graph: medley.Graph, killed: int
) -> None:
    prepare(tmp_path, graph, json.dumps(ROWS))
    want = run(tmp_path, killed=killed)
    elastic = ("-m", "medley", "launch", "--elastic", str(tmp_path / "plan.json"))
    got = run(tmp_path, *elastic, killed=killed)
    compare(got, want)
    assert [steps for steps, _ in want[0]["reported"]] == ([] if killed > 0 else [2, 4, 6])
    assert got[0]["reported"] == [
        pytest.approx(each, rel=1e-10) for each in want[0]["reported"][1:]
    ]
    assert (tmp_path / "killed").exists()


# It receives the earlier results, joins the current evaluation, and continues.
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("killed", "how"), [(4, "loader"), (-4, "loader"), (-4, "function"), (-6, "function")]
)
def test_a_process_that_comes_back_goes_on_with_the_loop(
    tmp_path: Path, graph: medley.Graph, killed: int, how: str
) -> None:
    prepare(tmp_path, graph, json.dumps(ROWS))
    want = run(tmp_path, killed=killed, how=how)
    launch = ("-m", "medley", "launch", "--elastic", "--max-restarts", "1")
    got = run(tmp_path, *launch, str(tmp_path / "plan.json"), killed=killed, how=how)
    compare(got, want)
    assert (tmp_path / "killed").exists()
