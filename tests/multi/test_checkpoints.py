"""Checkpoints of a run of several processes: each writes and reads the values of its device."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import medley
from medley import _core, _testing

sys.path.insert(0, str(Path(__file__).parent))
import train
from exactness import double_precision

import warm_start

pytestmark = [pytest.mark.multi]

SCRIPT = str(Path(__file__).with_name("save.py"))
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 3, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 1 Gbit/s, latency: 50 us}
"""


@pytest.fixture(scope="module")
def graph() -> medley.Graph:
    """Returns the graph of a small language model in fp64."""
    with double_precision():
        return medley.capture(*train.make("gpt"))


@pytest.fixture
def folder(tmp_path: Path, graph: medley.Graph) -> Path:
    """The graph, a cluster and three plans: uneven rows with cut states, stages, and pipelines."""
    (tmp_path / "gpt.graph").write_text(graph.text())
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    devices = [f"a/{i}/0" for i in range(3)]
    for name, draw in (
        ("mesh", _testing.random_plan),
        ("stages", _testing.random_pipeline),
        ("pipelines", _testing.random_pipelines),
    ):
        text = draw(graph.core.text(), devices, train.ROWS, 4)
        (tmp_path / f"{name}.json").write_text(text)
    return tmp_path


def run(folder: Path, plan: str, steps: int, *command: str) -> list[float]:
    """Trains under a plan, with one process per device. Returns the losses."""
    path = os.pathsep.join([*(entry for entry in sys.path if entry), str(Path(SCRIPT).parent)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    launch = [sys.executable, "-m", "medley", "launch", str(folder / f"{plan}.json")]
    if plan == "alone":
        launch = [sys.executable]
    given = [SCRIPT, str(folder), f"{plan.replace('alone', 'mesh')}.json", str(steps)]
    done = subprocess.run(
        warm_start.command([*(command or launch), *given]),
        capture_output=True,
        text=True,
        env=environment,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    losses: list[float] = json.loads((folder / "losses.json").read_text())
    return losses


def state(folder: Path) -> dict[Any, bytes]:
    """Returns the bytes of every value of the newest checkpoint."""
    path = _core.find_checkpoints(str(folder / "run"))[0][0]
    manifest = _core.Manifest.open(path)
    return {(k, n): manifest.read(path, k, n) for k, n, _, _ in manifest.values}


# Saved by processes; read, and saved again, by processes under two other plans and as threads.
def test_processes_write_what_others_read(folder: Path) -> None:
    run(folder, "mesh", 2)
    saved = state(folder)
    assert any(kind == "state" for kind, _ in saved)
    for plan in ("stages", "pipelines", "alone", "mesh"):
        assert run(folder, plan, 2) == []
        assert state(folder) == saved, plan
        assert not list((folder / "run").glob("*.tmp"))
    assert len(json.loads(newest(folder).read_text())["files"]) == 3


def newest(folder: Path) -> Path:
    """Returns the manifest of the newest checkpoint."""
    return Path(_core.find_checkpoints(str(folder / "run"))[0][0], "manifest.json")


# A process dies. torchrun restarts all of them, and they resume from the checkpoint.
def test_torchrun_starts_a_run_again(folder: Path) -> None:
    want = run(folder, "mesh", 4)
    after = state(folder)
    for file in sorted((folder / "run").rglob("*"), reverse=True):
        file.unlink() if not file.is_dir() else file.rmdir()
    (folder / "die").write_text("")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    again = run(folder, "mesh", 4, *torchrun, "--nproc-per-node=3", "--max-restarts=1")
    assert not (folder / "die").exists()
    assert again == want[-len(again) :]
    assert 2 <= len(again) < 4
    assert state(folder) == after
