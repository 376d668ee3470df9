"""`medley train` loses a process and continues. Each step occurs once in its metrics."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
from test_processes import LAUNCH

import warm_start
from medley import cli
from testbed.recovery import process_of, whole_lines

pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 3, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 10 us}
"""
ONE = CLUSTER.replace("count: 3", "count: 1")
STEPS = 60
PATIENCE_SECONDS = 120.0
MODEL = "medley_extras.models:gpt?vocabulary=128&positions=16&width=32&layers=1"
TRAIN = [
    *("train", MODEL, "--data", "text", "--steps", str(STEPS), "--lr", "1e-2"),
    *("--held-out", "0.2", "--evaluate-every", "20", "--log-every", "1", "--save-every", "15"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Text, two clusters and plans for them."""
    monkeypatch.chdir(tmp_path)
    random.seed(1)
    words = ["a", "model", "of", "unequal", "devices", "learns", "as", "one", "device"]
    (tmp_path / "text").mkdir()
    text = " ".join(random.choice(words) for _ in range(2000))
    (tmp_path / "text" / "a.txt").write_text(text)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "one.yaml").write_text(ONE)
    devices = [f"a/{i}/0" for i in range(3)]
    mesh = {"axes": ["x"], "shape": [3], "devices": devices}
    pipeline = {"microbatches": [{"rows": 12}], "stages": [{"mesh": mesh}]}
    plan = {"format": "medley-plan", "version": 1, "global_batch": 12, "pipelines": [pipeline]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return tmp_path


def start(*options: str) -> subprocess.Popen[str]:
    """Starts a run that may lose processes."""
    command = [*LAUNCH, "--elastic", *options, "plan.json", *TRAIN, "--cluster", "cluster.yaml"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, text=True, stdout=pipe, stderr=pipe)


def metrics(output: str) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl. The last may be incomplete."""
    return whole_lines(Path(output, "metrics.jsonl"))


def wait_for_step(run: subprocess.Popen[str], step: int) -> None:
    """Waits until a step is in the metrics."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not any(line["step"] >= step for line in metrics("out")):
        assert run.poll() is None, run.communicate()[1]
        assert time.monotonic() < end
        time.sleep(0.005)


def alone() -> list[dict[str, Any]]:
    """Returns the metrics of one device."""
    command = [*TRAIN, "--cluster", "one.yaml", "--global-batch", "12", "-o", "alone"]
    done = subprocess.run(warm_start.command([LAUNCH[0], "-m", "medley", *command]), check=False)
    assert done.returncode == 0
    return metrics("alone")


def values(lines: list[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """Returns (step, value) of the lines that have a value."""
    return [(line["step"], line[name]) for line in lines if name in line]


# The first process is the one that writes, saves and speaks for all.
def test_the_first_process_may_be_lost(folder: Path) -> None:
    run = start()
    wait_for_step(run, 3)
    os.kill(process_of(run.pid, "a/0/0"), signal.SIGKILL)
    _, errors = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, errors
    (line,) = [json.loads(text) for text in Path("elastic.jsonl").read_text().splitlines()]
    assert line["lost"] == ["a/0/0"]
    assert 2 <= line["step"] < STEPS - 1
    found, expected = metrics("out"), alone()
    for name in ("loss", "held_out_loss"):
        steps = [step for step, _ in values(expected, name)]
        assert [step for step, _ in values(found, name)] == steps
        assert [value for _, value in values(found, name)] == pytest.approx(
            [value for _, value in values(expected, name)], rel=1e-3
        )
    assert safetensors.torch.load_file("out/model.safetensors")
    assert cli.run(["check", "out"]) == 0


# Killed when the line of a step is there after which all compute the held-out loss.
@NIGHTLY
@pytest.mark.parametrize("name", ["a/0/0", "a/1/0"])
def test_a_process_that_is_lost_at_the_held_out_loss_comes_back(folder: Path, name: str) -> None:
    run = start("--max-restarts", "1")
    wait_for_step(run, 20)
    os.kill(process_of(run.pid, name), signal.SIGKILL)
    _, errors = run.communicate(timeout=PATIENCE_SECONDS)
    assert run.returncode == 0, errors
    found, expected = metrics("out"), alone()
    for kind in ("loss", "held_out_loss"):
        assert values(found, kind) == [
            (step, pytest.approx(value, rel=1e-3)) for step, value in values(expected, kind)
        ]
