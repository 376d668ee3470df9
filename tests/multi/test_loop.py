"""The loop around steps in processes: it does what it does in the threads of one."""

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

import medley
from medley import _testing

sys.path.insert(0, str(Path(__file__).parent))
import loop
import train
from exactness import double_precision

pytestmark = [pytest.mark.multi]

SCRIPT = str(Path(loop.__file__))
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 3, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 1 Gbit/s, latency: 50 us}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A graph, a cluster and a plan of several pipelines."""
    with double_precision():
        graph = medley.capture(*train.make("gpt"))
    (tmp_path / "gpt.graph").write_text(graph.text())
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    devices = [f"a/{i}/0" for i in range(3)]
    plan = _testing.random_pipelines(graph.core.text(), devices, train.ROWS, 4)
    (tmp_path / "plan.json").write_text(plan)
    return tmp_path


def run(folder: Path, *launch: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what the first process has seen, and the weights."""
    path = os.pathsep.join([*(entry for entry in sys.path if entry), str(Path(SCRIPT).parent)])
    done = subprocess.run(
        [sys.executable, *launch, SCRIPT, str(folder), "plan.json"],
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


def test_processes_do_what_threads_do(folder: Path) -> None:
    want, weights = run(folder)
    got, found = run(folder, "-m", "medley", "launch", str(folder / "plan.json"))
    assert got["steps"] == loop.EPOCHS * 3 and not got["interrupted"]
    for key in ("evaluated", "steps of whole batches"):
        assert got[key] == pytest.approx(want[key], rel=1e-10), key
    for kind in ("loss", "eval_loss"):
        told, expected = (
            [line[kind] for line in each["lines"] if kind in line] for each in (got, want)
        )
        assert told == pytest.approx(expected, rel=1e-10), kind
    for name, value in weights.items():
        assert (found[name] - value).abs().max() <= 1e-10 * value.abs().max(), name
