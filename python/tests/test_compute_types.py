"""Devices without bf16 compute in f16 under one loss scale, or in f32, beside those that have it."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch
from torch import nn
from zoo import ZOO

import medley
from medley.capture import substitute
from medley.cluster import parse_cluster

pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")

ROWS, STEPS = 6, 10
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: new, count: 1, device: CPU, devices_per_node: 1}
  - {name: old, count: 1, device: volta, devices_per_node: 1}
  - {name: older, count: 1, device: pascal, devices_per_node: 1}
networks:
  - {name: lan, connects: [new, old, older], bandwidth: 10 Gbit/s, latency: 50 us}
devices:
  volta: {based_on: CPU, bf16_as: f16}
  pascal: {based_on: CPU, bf16_as: f32}
"""
DEVICES = ["new/0/0", "old/0/0", "older/0/0"]


def cluster() -> Any:
    """A device of each type."""
    return parse_cluster(CLUSTER)


def stage(devices: list[str], **fields: Any) -> dict[str, Any]:
    """Returns a stage of a plan."""
    return {"mesh": {"devices": devices}, **fields}


def plan_of(kind: str, first: tuple[str, str] = ("", "")) -> medley.Plan:
    """Returns a plan of all three devices: rows, tensor or stages."""
    microbatch: dict[str, Any] = {"rows": ROWS}
    parts = []
    if kind == "rows":
        microbatch["lengths"] = [1, 3, 2]
        stages = [stage(DEVICES)]
    elif kind == "tensor":
        parts = [{"name": "part", "shares": [2, 1, 1]}]
        stages = [stage(DEVICES, ops={"*mlp.up/*addmm*": "n part", "*mlp.up/*mm*": "n part"})]
    else:
        stages = [
            stage(DEVICES[:1]),
            stage(DEVICES[1:2], first=first[0]),
            stage(DEVICES[2:], first=first[1]),
        ]
    return medley.Plan(
        json.dumps(
            {
                "format": "medley-plan",
                "version": 1,
                "global_batch": ROWS,
                "parts": parts,
                "pipelines": [{"microbatches": [microbatch], "stages": stages}],
            }
        )
    )


def train(model: nn.Module, batch: Any, autocast: bool) -> list[float]:
    """Returns the losses of plain PyTorch on one device."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with substitute(model), torch.autocast("cpu", torch.bfloat16, autocast):
            loss = exactness.loss_of(exactness.call(model, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.item())
    return losses


def distance(a: list[float], b: list[float]) -> float:
    """Returns the root of the mean square difference of two curves."""
    return math.sqrt(math.fsum((x - y) ** 2 for x, y in zip(a, b, strict=True)) / len(a))


def trainer_of(
    model: nn.Module, graph: medley.Graph, plan: medley.Plan, **fields: Any
) -> medley.Trainer:
    """Returns a trainer on threads."""
    optimizer = medley.AdamW(lr=1e-3, weight_decay=0.01, **fields)
    return medley.Trainer(model, graph, plan, optimizer, local=True, cluster=cluster())


@pytest.mark.parametrize("kind", ["rows", "tensor", "stages"])
def test_three_types_are_as_near_to_f32_as_bf16_is(kind: str) -> None:
    torch.manual_seed(0)
    model, batch = ZOO["gpt"](batch=ROWS)
    graph = medley.capture(model, batch, check=False, autocast=torch.bfloat16)
    f32 = train(model, batch, False)
    limit = distance(train(model, batch, True), f32)
    plan = plan_of(kind, ("blocks.0.mlp.up/addmm#0", "blocks.1.mlp.up/addmm#0"))
    trainer = trainer_of(model, graph, plan)
    losses = []
    for _ in range(STEPS):
        losses.append(trainer.step(batch).loss)
        assert not trainer._run.disagreements()
    print(f"{kind}: {distance(losses, f32):.2e}, bf16 itself {limit:.2e}")
    assert trainer.loss_scale == 65536
    assert distance(losses, f32) <= limit
    assert all(tensor.dtype == torch.float32 for tensor in trainer.parameters().values())
