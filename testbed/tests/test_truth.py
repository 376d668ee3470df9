"""Speeds, links and losses in the testbed compared with their targets. Real time; needs root."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

import medley
from medley.capture import model_name
from testbed.comparators.timing import Record
from testbed.tests.clusters import Testbed, run

pytestmark = [pytest.mark.testbed, pytest.mark.slow]

PROGRAMS = Path(__file__).parent / "programs"
RATE = 12.5e6  # bytes/s of the cluster's links


def measure(
    testbed: Testbed, four: str, folder: Path, program: str, *words: str
) -> dict[str, float]:
    """Runs a program of ours. Returns its results by file."""
    folder = folder / "measured"
    folder.mkdir(exist_ok=True)
    command = [sys.executable, str(PROGRAMS / program), str(folder), *words]
    done = run(testbed("--when-ready", four, "--", *command))
    assert done.returncode == 0, done.stdout + done.stderr
    return {path.name: float(path.read_text()) for path in sorted(folder.iterdir())}


def test_fast_devices_compute_twice_as_much(testbed: Testbed, four: str, tmp_path: Path) -> None:
    rounds = list(measure(testbed, four, tmp_path, "spin.py").values())
    for fast, slow in itertools.product(rounds[:2], rounds[2:]):
        assert fast / slow == pytest.approx(2.0, rel=0.1)


def test_a_flow_alone_gets_what_the_cluster_says(
    testbed: Testbed, four: str, tmp_path: Path
) -> None:
    seen = measure(testbed, four, tmp_path, "flows.py", "0-1")
    assert seen["0-1"] == pytest.approx(RATE, rel=0.05)


@pytest.mark.parametrize("pairs", [["0-1", "2-1"], ["0-1", "0-2", "0-3"]], ids=["to", "from"])
def test_flows_share_a_port_fairly(
    testbed: Testbed, four: str, tmp_path: Path, pairs: list[str]
) -> None:
    seen = measure(testbed, four, tmp_path, "flows.py", *pairs)
    for pair in pairs:
        assert seen[pair] == pytest.approx(RATE / len(pairs), rel=0.1)


# A ring sends 2 (n - 1) / n of the bytes over every port: 15 MB at 12.5 MB/s.
def test_all_reduce_takes_what_a_ring_takes(testbed: Testbed, four: str, tmp_path: Path) -> None:
    seen = measure(testbed, four, tmp_path, "all_reduce.py")
    assert seen["seconds"] == pytest.approx(1.2, rel=0.08)


# Every device sends three quarters of 8 MB and receives as much at the same time, at 12.5 MB/s. An
# exchange that uses a link in one direction at a time takes at least half as long again: 0.72 s.
def test_exchange_uses_links_both_ways(testbed: Testbed, four: str, tmp_path: Path) -> None:
    seen = measure(testbed, four, tmp_path, "exchange.py")
    assert 0.46 < seen["seconds"] < 0.65


# All train the same. The differences are rounding.
@pytest.mark.parametrize("workload", ["vgg", "moe", "bert_moe", "bert", "vit"])
def test_medley_and_ddp_have_the_same_losses(
    testbed: Testbed, four: str, tmp_path: Path, workload: str
) -> None:
    model, example = model_name.load(f"testbed.comparators.workloads:{workload}")
    graph = medley.capture(model, example)
    rows = len(example["labels"])
    plan = tmp_path / "plan.json"
    medley.plan(graph, four, "data-parallel-proportional", global_batch=rows).save(plan)
    losses = {}
    for name, options, words in (
        ("medley", ["--plan", str(plan)], ["medley_job", workload, four]),
        ("even", [], ["ddp", workload, four, "--split", "even"]),
        ("proportional", [], ["ddp", workload, four, "--split", "proportional"]),
    ):
        output = tmp_path / f"{name}.json"
        command = [sys.executable, "-m", f"testbed.comparators.{words[0]}", *words[1:]]
        more = ["--output", str(output), "--steps", "2"]
        done = run(testbed("--when-ready", *options, four, "--", *command, *more))
        assert done.returncode == 0, done.stdout + done.stderr
        losses[name] = Record(**json.loads(output.read_text())).losses
    for name in ("even", "proportional"):
        assert losses[name] == pytest.approx(losses["medley"], rel=1e-4), name
        assert losses[name][0] == pytest.approx(losses["medley"][0], rel=2e-6), name
