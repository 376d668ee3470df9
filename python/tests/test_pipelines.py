"""Pipelines train like one device: different meshes on both sides of a boundary, unequal shares,
skip connections, tied weights, dropout and every schedule, written by hand and drawn at random."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from typing import Any, cast

import exactness
import pytest
from zoo import ZOO

import medley
from medley import _core, _testing
from medley.cluster import parse_cluster
from medley.run import job

ROWS = exactness.ROWS
STEPS = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A pipeline over the first devices of the cluster."""

    model: str
    sizes: tuple[int, ...]  # devices of each stage
    rows: tuple[tuple[float, ...], ...] = ()  # shares by stage; () for all rows on every device
    states: tuple[dict[str, str], ...] = ()  # by stage
    parts: tuple[dict[str, Any], ...] = ()
    microbatches: tuple[int, ...] = (2, 2, 2)
    schedule: dict[str, Any] = dataclasses.field(default_factory=dict)
    steps: int = STEPS
    recompute: str = "none"


CASES = {
    "one device each": Case("mlp", (1, 1)),
    "50 steps": Case("mlp", (1, 1), steps=50),
    "two and two, other rows": Case("gpt", (2, 2), ((1, 2), (3, 1))),
    "two to one": Case("gpt", (2, 1), ((2, 1), ())),
    "one to three": Case("gpt", (1, 3), ((), (1, 1, 2))),
    "rows to none": Case("llama", (2, 2), ((1, 1), ())),
    "none to rows": Case("llama", (2, 2), ((), (2, 1))),
    "three stages": Case(
        "gpt", (1, 2, 1), ((), (1, 1), ()), schedule={"deferred_weights": [0, 2, 2]}
    ),
    "four stages": Case("llama", (1, 1, 1, 1), microbatches=(1, 1, 1, 1, 1, 1)),
    "gpipe": Case("gpt", (1, 1, 1), schedule={"schedule": "gpipe"}),
    "eager": Case("gpt", (1, 1, 1), schedule={"schedule": "eager-1f1b"}),
    "h1f1b": Case("gpt", (1, 1, 1), schedule={"schedule": "h1f1b", "in_flight": [3, 1, 1]}),
    "deferred weights": Case("gpt", (1, 1, 1), schedule={"deferred_weights": [0, 1, 3]}),
    "deferred weights in a mesh": Case(
        "llama",
        (2, 2),
        ((2, 1), (1, 1)),
        microbatches=(2, 2, 1, 1),
        schedule={"deferred_weights": [0, 2]},
    ),
    "deferred weights, recompute": Case(
        "gpt-dropout", (1, 2), ((), (2, 1)), recompute="all", schedule={"deferred_weights": [0, 2]}
    ),
    "deferred weights of experts": Case(
        "hf-mixtral", (1, 1, 1), schedule={"deferred_weights": [0, 2, 2]}
    ),
    "micro-batches of two sizes": Case("llama", (2, 1), ((2, 1), ()), microbatches=(2, 2, 1, 1)),
    "a device without rows": Case("llama", (2, 2), ((1, 0), (0, 1))),
    "two stacks": Case("hf-t5", (1, 2, 1), ((), (2, 1), ())),
    "a mask": Case("hf-bert", (1, 2), ((), (1, 2))),
    "convolutions": Case("vgg", (2, 2), ((2, 1), (1, 1))),
    "vision": Case("hf-vit", (1, 2), ((), (1, 2))),
    "experts": Case("hf-mixtral", (1, 2), ((), (1, 2))),
    "a loss in the first stage": Case("moe", (1, 1), microbatches=(1, 5)),
    "dropout": Case("gpt-dropout", (2, 1), ((2, 1), ())),
    "recompute": Case("gpt", (1, 2), ((), (1, 2)), recompute="all"),
    "recompute blocks": Case("llama", (2, 1), ((2, 1), ()), recompute="blocks"),
    "recompute dropout": Case("gpt-dropout", (1, 2), ((), (2, 1)), recompute="all"),
    "recompute experts": Case("hf-mixtral", (1, 2), ((), (1, 2)), recompute="blocks"),
}


def cuts(graph: medley.Graph, stages: int) -> list[str]:
    """Returns the names at which forward ops are divided into about equally many."""
    forward = [
        name for name in graph.core.stable_names() if "/~" not in name and not name.startswith("~")
    ]
    return [forward[len(forward) * i // stages] for i in range(1, stages)]


def plan_of(case: Case, graph: medley.Graph) -> str:
    """Returns the plan's text."""
    firsts = ["", *cuts(graph, len(case.sizes))]
    stages: list[dict[str, Any]] = []
    device = 0
    for s, size in enumerate(case.sizes):
        stage: dict[str, Any] = {
            "mesh": {"devices": [f"a/{device + i}/0" for i in range(size)]},
            "recompute": case.recompute,
        }
        if s > 0:
            stage["first"] = firsts[s]
            if case.rows and case.rows[s]:
                stage["rows"] = list(case.rows[s])
        if case.states and case.states[s]:
            stage["placements"] = case.states[s]
        stages.append(stage)
        device += size
    microbatches: list[dict[str, Any]] = []
    for rows in case.microbatches:
        entry: dict[str, Any] = {"rows": rows}
        if case.rows and case.rows[0]:
            shares = case.rows[0]
            lengths = [int(rows * share / sum(shares)) for share in shares]
            lengths[0] += rows - sum(lengths)
            entry["lengths"] = lengths
        microbatches.append(entry)
    return json.dumps(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": sum(case.microbatches),
            "parts": list(case.parts),
            "pipelines": [{"microbatches": microbatches, "stages": stages, **case.schedule}],
        }
    )


@pytest.mark.parametrize("name", CASES)
def test_pipeline_trains_like_one_device(name: str) -> None:
    case = CASES[name]
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[case.model], ROWS)
        plan = plan_of(case, graph)
        exactness.check(model, batch, graph, plan, case.steps, clip=1.0, name=case.model)


# Running statistics change once per step, and dropout repeats its draws. Results are not equal bit
# by bit: the rounding of a matmul depends on the memory location of its operands.
@pytest.mark.parametrize("name", ["mlp", "gpt-dropout", "resnet", "hf-mixtral"])
@pytest.mark.parametrize("how", ["all", "blocks"])
def test_recompute_changes_nothing(name: str, how: str) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        case = Case(name, (1,), microbatches=(ROWS,))
        want, got = (
            exactness.train_plan(
                model,
                graph,
                plan_of(dataclasses.replace(case, recompute=each), graph),
                batch,
                2,
                lr=1e-3,
                clip=1.0,
            )
            for each in ("none", how)
        )
        exactness.compare(got, want, model=name)


# Models without cross-sample dependence.
RANDOM = [name for name in ZOO if name not in ("resnet", "vgg-bn", "hf-mixtral-balanced")]
SEEDS = int(os.environ.get("MEDLEY_PLAN_SEEDS", "2"))


@pytest.mark.parametrize("name", RANDOM)
def test_random_pipelines_train_like_one_device(name: str) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        want = exactness.train_eager(model, batch, 2, lr=1e-3)
        for seed in range(SEEDS):
            devices = [f"a/{i}/0" for i in range(2 + (seed + len(name)) % 3)]
            plan = _testing.random_pipeline(graph.core.text(), devices, ROWS, seed)
            got = exactness.train_plan(model, graph, plan, batch, 2, lr=1e-3)
            exactness.compare(got, want, model=name)


# Two pools of two devices joined by a low-bandwidth link, where a pipeline is fastest.
POOLS = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: whole, devices_per_node: 2}
  - {name: slow, count: 1, device: half, devices_per_node: 2}
networks:
  - {name: fabric, inside: node, bandwidth: 10 GB/s, latency: 1 us}
  - {name: wan, connects: [fast, slow], bandwidth: 100 Mbit/s, latency: 100 us}
devices:
  whole: {based_on: CPU, memory: MEMORY B}
  half: {based_on: CPU, speed: 0.5, memory: MEMORY B}
"""


def planned(graph: medley.Graph, strategy: str, memory: int = 10**12) -> tuple[dict[str, Any], int]:
    """Returns a plan for the devices of the cluster, and the most that one of them needs."""
    machines = parse_cluster(POOLS.replace("MEMORY", str(memory)), "pools.yaml")
    found = medley.plan(graph, machines, strategy, global_batch=ROWS, microbatches=3)
    simulated = cast(
        "dict[str, Any]", _core.simulate(_core.Program(graph.core, found.core, machines), machines)
    )
    text = found.text
    for i, device in enumerate(["fast/0/0", "fast/0/1", "slow/0/0", "slow/0/1"]):
        text = text.replace(device, f"a/{i}/0")
    plan = json.loads(text)
    del plan["cluster_hash"]
    return plan, max(device["peak"] for device in simulated["devices"].values())


@pytest.mark.parametrize("name", ["gpt", "gpt-dropout", "llama", "moe", "hf-vit"])
@pytest.mark.parametrize("strategy", ["harp", "megatron"])
def test_planned_pipelines_train_like_one_device(name: str, strategy: str) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        plan, _ = planned(graph, strategy)
        assert strategy == "megatron" or len(plan["pipelines"][0]["stages"]) > 1
        exactness.check(model, batch, graph, json.dumps(plan), 2, clip=1.0, name=name)


NODES = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 2, device: whole, devices_per_node: 2}
networks:
  - {name: fabric, inside: node, bandwidth: 100 GB/s, latency: 1 us}
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 10 us}
devices:
  whole: {based_on: CPU, speed: 0.001}
"""


# Four devices cannot share six rows evenly: rows between the nodes, tensors inside them.
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_grids_train_like_one_device(name: str) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        machines = parse_cluster(NODES, "nodes.yaml")
        found = medley.plan(graph, machines, "megatron", global_batch=ROWS, microbatches=1)
        text = found.text
        for i, device in enumerate(["a/0/0", "a/0/1", "a/1/0", "a/1/1"]):
            text = text.replace(f'"{device}"', f'"a/{i}/ "')
        plan = json.loads(text.replace("/ ", "/0"))
        del plan["cluster_hash"]
        assert plan["pipelines"][0]["stages"][0]["mesh"]["shape"] == [2, 2]
        exactness.check(model, batch, graph, json.dumps(plan), 2, clip=1.0, name=name)


# In half the memory some stage recomputes activations that it would otherwise keep.
@pytest.mark.parametrize("name", ["gpt", "gpt-dropout", "llama"])
def test_pipelines_planned_for_little_memory_recompute(name: str) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        _, most = planned(graph, "harp")
        plan, _ = planned(graph, "harp", most // 2)
        assert any("recompute" in stage for stage in plan["pipelines"][0]["stages"])
        exactness.check(model, batch, graph, json.dumps(plan), 2, clip=1.0, name=name)


@pytest.mark.parametrize("name", ["three stages", "two to one"])
def test_emulated_pipelines_train_equally_in_the_simulated_time(name: str) -> None:
    case = CASES[name]
    model, batch = ZOO[case.model](batch=ROWS)
    graph = medley.capture(model, batch)
    text = plan_of(case, graph)
    plan = medley.Plan(text)
    cluster = exactness.cluster()
    unhurried = medley.Trainer(copy.deepcopy(model), graph, plan, local=True, cluster=cluster)
    want = unhurried.step(batch)
    predicted = cast(
        "dict[str, Any]", _core.simulate(_core.Program(graph.core, plan.core, cluster), cluster)
    )
    with job.emulated():
        trainer = medley.Trainer(
            model, graph, plan, local=True, cluster=cluster, keep_gradients=False
        )
        got = trainer.step(batch)
    assert got.loss == want.loss
    assert round(got.step_seconds * 1e9) == predicted["step"]
    for device, peak in trainer.peak_bytes().items():
        assert peak == predicted["devices"][device]["peak"], device
