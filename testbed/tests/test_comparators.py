"""PyTorch's ways of training, as the testbed compares them, train like one device. On this machine,
without the testbed: needs no root."""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import medley
from testbed import compare, contestants
from testbed.comparators import pipeline, timing, workloads
from testbed.reference import losses_of_one_device
from testbed.tests.clusters import FOUR, first_of, run

WORKLOAD = "gpt?rows=12&layers=5"
STEPS = 3
TWO = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 1}
  - {name: slow, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 100 Mbit/s, latency: 50 us}
devices:
  half: {based_on: CPU, speed: 0.5, memory: 8 GiB}
"""


@pytest.fixture(scope="module")
def alone() -> list[float]:
    """Returns the losses of one device."""
    return losses_of_one_device(WORKLOAD, timing.WARM_UP + STEPS)


def losses_of(folder: Path, module: str, *options: str, processes: int = 2) -> list[float]:
    """Runs a contestant as several processes. Returns the losses that it wrote."""
    (folder / "two.yaml").write_text(TWO)
    output = folder / "record.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", "-m", module, WORKLOAD]
    command += [str(folder / "two.yaml"), "--output", str(output)]
    done = run([*command, "--steps", str(STEPS), *options])
    assert done.returncode == 0, done.stderr
    return timing.Record.load(output).losses


@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("ddp", ["--split", "proportional"]),
        ("fsdp", ["--split", "even"]),
        ("fsdp", ["--split", "proportional"]),
        ("pipeline", ["--microbatches", "4"]),
        ("pipeline", ["--microbatches", "2", "--blocks", "4", "1"]),
    ],
)
def test_trains_like_one_device(
    tmp_path: Path, alone: list[float], module: str, options: list[str]
) -> None:
    losses = losses_of(tmp_path, f"testbed.comparators.{module}", *options)
    assert losses[:3] == pytest.approx(alone[:3], rel=1e-6)
    assert losses == pytest.approx(alone, rel=1e-4)


# Two pipelines of two stages; two of one stage each, which is data parallelism in micro-batches.
@pytest.mark.slow
@pytest.mark.testbed
@pytest.mark.parametrize(
    ("processes", "options"),
    [
        (4, ["--replicas", "2", "--microbatches", "3", "--blocks", "2", "3"]),
        (2, ["--replicas", "2", "--microbatches", "2", "--bucket-mb", "0.5"]),
    ],
)
def test_a_grid_trains_like_one_device(
    tmp_path: Path, alone: list[float], processes: int, options: list[str]
) -> None:
    losses = losses_of(tmp_path, "testbed.comparators.pipeline", *options, processes=processes)
    assert losses[:3] == pytest.approx(alone[:3], rel=1e-6)
    assert losses == pytest.approx(alone, rel=1e-4)


def test_a_grid_divides_devices_and_rows_evenly() -> None:
    pipeline.check(12, 4, 2, 3)
    with pytest.raises(ValueError, match="--replicas: found 3, expected a divisor of 4"):
        pipeline.check(12, 4, 3, 4)
    with pytest.raises(ValueError, match="found 1, expected at least 2, the stages"):
        pipeline.check(12, 4, 2, 1)
    with pytest.raises(ValueError, match="a divisor of 6, the rows of a pipeline"):
        pipeline.check(12, 4, 2, 4)
    batch = {"labels": torch.arange(12), "input_ids": torch.arange(12)}
    seen = [pipeline.own_rows(batch, 2, replica)["labels"] for replica in range(2)]
    assert torch.cat(seen).tolist() == list(range(12))


def test_pipelines_are_cut_into_all_blocks() -> None:
    model, _ = workloads.load(WORKLOAD)
    parts = [pipeline.cut(model, [1, 3, 1], 3, stage) for stage in range(3)]
    assert [len(part.blocks) for part in parts] == [1, 3, 1]
    names = [id(p) for part in parts for p in part.parameters()]
    assert sorted(names) == sorted(id(p) for p in model.parameters())
    with pytest.raises(ValueError, match="--blocks: found 2 2, expected 2 numbers"):
        pipeline.cut(model, [2, 2], 2, 0)
    with pytest.raises(ValueError, match="pipeline: found another model"):
        pipeline.cut(workloads.load("vit")[0], [1, 1], 2, 0)


def test_choices_are_listed(tmp_path: Path) -> None:
    (tmp_path / "four.yaml").write_text(FOUR)
    cluster = tmp_path / "four.yaml"
    names = ("ddp", "fsdp", "pipeline", "3d")
    found = contestants.comparators(names, "gpt", cluster, [1.0, 5.0])
    assert [choices[0][0].name for choices in found] == [
        *("DDP even", "DDP proportional", "FSDP2 even", "FSDP2 proportional"),
        *("1F1B even", "3D even", "1F1B uneven", "3D uneven"),
    ]
    assert [len(group) for choices in found[:4] for group in choices] == [2, 2, 1, 1]
    pipelines, grid = found[6], found[7]
    commands = [" ".join(one.command) for group in pipelines for one in group]
    assert any("--blocks 3 3 1 1" in command for command in commands)
    assert any("--blocks 1 1 3 3" in command for command in commands)
    assert all("--replicas 1 " in command for command in commands)
    assert not any("--replicas 1 " in " ".join(one.command) for group in grid for one in group)
    with pytest.raises(ValueError, match="3D: no grid divides 47 rows"):
        contestants.comparators(("3d",), "gpt?rows=47", cluster, [1.0])
    assert {"1.0", "5.0"} == {one.command[one.command.index("--bucket-mb") + 1] for one in grid[0]}


class Runs:
    """Replaces the testbed: seconds per step by choice, or a crash."""

    def __init__(self, seconds: dict[str, list[float]]) -> None:
        self._seconds = seconds
        self.order: list[str] = []

    def __call__(
        self, contestant: contestants.Contestant, cluster: Path, steps: int, folder: Path
    ) -> timing.Record:
        word = contestant.tuned or contestant.name
        self.order.append(word)
        left = self._seconds[word]
        seconds = left.pop(0) if len(left) > 1 else left[0]
        if math.isinf(seconds):
            raise OSError(f"{word}: Gloo says no")
        return timing.Record([1.0] * 5, [seconds] * 5)


def alternatives(*words: str) -> list[contestants.Contestant]:
    return [contestants.Contestant("A", (), ("module",), word) for word in words]


def test_the_best_list_is_tried_to_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = Runs({"a": [0.3], "a2": [0.1], "b": [0.2], "b2": [0.25], "b3": [math.inf], "c": [0.4]})
    monkeypatch.setattr(contestants, "run", runs)
    groups = [alternatives("a", "a2"), alternatives("b", "b2", "b3"), alternatives("c")]
    assert contestants.fastest(groups, tmp_path, tmp_path).tuned == "b"
    assert runs.order == ["a", "b", "c", "b2", "b3", "b3"]
    with pytest.raises(OSError, match="A: every choice died"):
        contestants.fastest([alternatives("b3", "b3")], tmp_path, tmp_path)


# The first crashes once, the second each time. The runs of the others are kept.
def test_crashed_contestant_is_run_again_and_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = Runs({"X": [math.inf, 0.2], "Y": [math.inf], "Z": [0.3]})
    monkeypatch.setattr(contestants, "run", runs)
    everybody = [contestants.Contestant(name, (), ("module",)) for name in "XYZ"]
    kept: list[int] = []
    options = argparse.Namespace(runs=2, steps=2, once_beyond=math.inf)
    results = compare.interleave(
        everybody, tmp_path, options, tmp_path, lambda seen: kept.append(len(seen[2].records))
    )
    assert runs.order == [*"XXYYZ", *"YYZX"]
    assert [len(result.records) for result in results] == [2, 0, 2]
    assert [len(result.deaths) for result in results] == [1, 4, 0]
    assert kept == [0, 0, 1, 1, 2, 2]
    assert "died, 1 of 2 attempts: X: Gloo says no" in capsys.readouterr().out
    lines = compare.table("gpt", results, 2).splitlines()
    assert lines[3] == "| Y | died each time | | | | |"
    assert lines[4].startswith("| Z | 300 ms | 300 to 300 ms | 0.67x | infx ")
    assert compare.disagreements(results) == []


def test_slow_contestant_is_run_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = Runs({"X": [0.5], "Y": [0.2], "Z": [0.3]})
    monkeypatch.setattr(contestants, "run", runs)
    everybody = [contestants.Contestant(name, (), ("module",)) for name in "XYZ"]
    options = argparse.Namespace(runs=3, steps=2, once_beyond=2.0)
    results = compare.interleave(everybody, tmp_path, options, tmp_path, lambda _: None)
    assert runs.order == [*"XYZ", *"YZ", *"ZY"]
    assert [len(result.records) for result in results] == [1, 3, 3]


def test_sigterm_ends_the_contestant(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    contestant = ["sh", "-c", f"kill -TERM {os.getpid()}; exec sleep 500"]
    monkeypatch.setattr(compare, "compare", lambda *_: subprocess.run(contestant))
    (tmp_path / "two.yaml").write_text(TWO)
    monkeypatch.setattr(sys, "argv", ["compare", str(tmp_path / "two.yaml"), "--workloads", "gpt"])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match=str(128 + signal.SIGTERM)):
            compare.main()
    finally:
        signal.signal(signal.SIGTERM, before)


def test_losses_that_are_no_numbers_disagree() -> None:
    good = timing.Record([1.0] * 5, [0.1] * 5)
    bad = timing.Record([1.0, 1.0, math.nan, 1.0, 1.0], [0.1] * 5)
    results = [compare.Result("A", [good]), compare.Result("B", [bad])]
    assert [sentence.split(":")[0] for sentence in compare.disagreements(results)] == ["B"]


def test_choices_of_short_runs_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cluster = tmp_path / "two.yaml"
    cluster.write_text(TWO)
    runs = Runs({"a": [0.3], "b": [0.2]})
    monkeypatch.setattr(contestants, "run", runs)
    groups = [alternatives("a"), alternatives("b")]
    file = tmp_path / "tuned.json"
    for _ in range(2):
        chosen = compare.Chosen(file, cluster).choose("gpt", groups, cluster, tmp_path)
        assert chosen == groups[1][0]
    assert runs.order == ["a", "b"]
    cluster.write_text(TWO.replace("speed: 0.5", "speed: 0.4"))
    with pytest.raises(ValueError, match="found choices for another cluster"):
        compare.Chosen(file, cluster)


def test_the_table_has_a_ratio_to_each_of_theirs() -> None:
    def result(name: str, seconds: float) -> compare.Result:
        record = timing.Record([1.0] * 5, [seconds] * 5)
        return compare.Result(name, [record])

    table = compare.table("gpt", [result("A", 0.4), result("B", 0.3), result("Ours", 0.2)], 2)
    lines = table.splitlines()
    assert lines[0].count("|") == lines[1].count("|") == lines[4].count("|") == 7
    assert lines[4] == "| Ours | 200 ms | 200 to 200 ms | 2.00x | 1.50x | 1.50x |"


def test_a_plan_of_several_stages_takes_part(tmp_path: Path) -> None:
    (tmp_path / "two.yaml").write_text(TWO)
    model, example = workloads.load(WORKLOAD)
    graph = medley.capture(model, example)
    stages = [
        {"mesh": {"devices": ["fast/0/0"]}},
        {"mesh": {"devices": ["slow/0/0"]}, "first": first_of(graph, 3)},
    ]
    pipelines = [{"microbatches": [{"rows": 3}] * 4, "stages": stages}]
    plan = {"format": "medley-plan", "version": 1, "global_batch": 12, "pipelines": pipelines}
    (tmp_path / "stages.json").write_text(json.dumps(plan))

    (found,) = compare.plans(
        WORKLOAD, tmp_path / "two.yaml", tmp_path, (), [tmp_path / "stages.json"]
    )
    assert found.name == "Medley stages.json"
    assert found.testbed_options == ("--plan", str(tmp_path / "stages.json"))
