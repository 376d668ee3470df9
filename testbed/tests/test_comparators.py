"""PyTorch's ways of training, as the testbed compares them, train like one device. On this machine,
without the testbed: needs no root."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import medley
from testbed import compare, contestants
from testbed.comparators import pipeline, timing, workloads
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
    model, example = workloads.load(WORKLOAD)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=workloads.LEARNING_RATE, weight_decay=0.01, foreach=True
    )
    data = workloads.batches(example, 4)
    losses = []
    for number in range(timing.WARM_UP + STEPS):
        optimizer.zero_grad()
        loss = model(**data[number % len(data)])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def losses_of(folder: Path, module: str, *options: str) -> list[float]:
    """Runs a contestant as two processes; returns the losses that it wrote."""
    (folder / "two.yaml").write_text(TWO)
    output = folder / "record.json"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["-m", module, WORKLOAD, str(folder / "two.yaml"), "--output", str(output)]
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


def test_pipelines_are_cut_into_all_blocks() -> None:
    model, _ = workloads.load(WORKLOAD)
    assert pipeline.even(5, 2) == [3, 2]
    parts = [pipeline.cut(model, [1, 3, 1], 3, stage) for stage in range(3)]
    assert [len(part.blocks) for part in parts] == [1, 3, 1]
    names = [id(p) for part in parts for p in part.parameters()]
    assert sorted(names) == sorted(id(p) for p in model.parameters())
    with pytest.raises(ValueError, match="--blocks: found 2 2, expected 2 numbers"):
        pipeline.cut(model, [2, 2], 2, 0)
    with pytest.raises(ValueError, match="pipeline: found another model"):
        pipeline.cut(workloads.load("vit")[0], None, 2, 0)


# The slowest stage of 3 3 1 1 takes 3 on devices of speed 2:2:1:1, that of 2 2 2 2 takes 4 (here
# in halves).
def test_uneven_cuts_fit_the_speeds() -> None:
    cuts = contestants.cuts(8, [1.0, 1.0, 0.5, 0.5])
    assert cuts[0] == [3, 3, 1, 1]
    assert [2, 2, 2, 2] not in cuts
    assert len(cuts) == 34  # 7 over 3, less the even one


def test_what_there_is_to_choose_from(tmp_path: Path) -> None:
    (tmp_path / "four.yaml").write_text(FOUR)
    cluster = tmp_path / "four.yaml"
    found = contestants.comparators(("ddp", "fsdp", "pipeline"), "gpt", cluster, [1.0, 5.0])
    assert [choices[0].name for choices in found] == [
        *("DDP even", "DDP proportional", "FSDP2 even", "FSDP2 proportional"),
        *("1F1B even", "1F1B uneven"),
    ]
    assert [len(choices) for choices in found] == [2, 2, 1, 1, 5, 20]
    assert "--blocks 3 3 1 1" in " ".join(found[5][0].command)


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
