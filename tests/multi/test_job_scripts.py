"""The scripts of examples/ that start runs on clusters, checked by linters and run with stand-ins
for the cluster's launchers."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.multi]

EXAMPLES = Path(__file__).parents[2] / "examples"
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 10 us}
"""
# Two processes on this machine. The first time one of them is killed once there is a checkpoint.
SRUN = """#!/bin/bash
while [[ $1 == --* ]]; do shift; done
export SLURM_NTASKS=2
for i in 0 1; do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & pids[i]=$!; done
if mkdir attempted 2>/dev/null; then
  until compgen -G 'out/step-*/COMMIT' >/dev/null; do sleep 0.02; done
  kill -9 "${pids[1]}"
fi
code=0
for i in 0 1; do wait "${pids[i]}" || { now=$?; ((now > code)) && code=$now; }; done
exit $code
"""
SCONTROL = """#!/bin/bash
[[ $1 == requeue ]] && echo requeued >>requeued
echo 127.0.0.1
"""


def linter(name: str) -> str:
    """Returns the path of a linter. Skips the test if it is not installed."""
    path = shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.defpath]))
    if path is None:
        pytest.skip(f"needs {name} (requirements-all.txt)")
    return path


def test_the_slurm_script_is_clean() -> None:
    done = subprocess.run([linter("shellcheck"), EXAMPLES / "slurm.sh"], text=True, check=False)
    assert done.returncode == 0


def test_the_kubernetes_job_fits_the_schemas() -> None:
    command = [linter("kubernetes-validate"), "--strict", EXAMPLES / "kubernetes.yaml"]
    assert subprocess.run(command, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.nightly
def test_the_slurm_script_goes_on_after_a_kill(tmp_path: Path) -> None:
    tools = tmp_path / "bin"
    tools.mkdir()
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    path = [str(tools), str(Path(sys.executable).parent), os.environ["PATH"]]
    mesh = {"axes": ["x"], "shape": [2], "devices": ["a/0/0", "a/1/0"]}
    pipeline = {"microbatches": [{"rows": 8}], "stages": [{"mesh": mesh}]}
    plan = {"format": "medley-plan", "version": 1, "global_batch": 8, "pipelines": [pipeline]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "text").mkdir()
    random.seed(1)
    words = " ".join(random.choice(["one", "device", "of", "many"]) for _ in range(1000))
    (tmp_path / "text" / "a.txt").write_text(words)
    model = "medley_extras.models:gpt?vocabulary=128&positions=16&width=32&layers=1"
    given = ["--data", "text", "--steps", "200", "--save-every", "20", "--log-every", "1"]
    done = subprocess.run(
        [EXAMPLES / "slurm.sh", model, *given],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": os.pathsep.join(path),
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_JOB_NODELIST": "here",
            "OMP_NUM_THREADS": "1",
        },
        text=True,
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "attempt 1 of 3 ended with" in done.stderr
    assert "going on from out/step-" in done.stderr
    assert not (tmp_path / "requeued").exists()
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    steps = [line["step"] for line in map(json.loads, lines) if "loss" in line]
    assert steps == list(range(1, 201))
