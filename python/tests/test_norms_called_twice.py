"""A batch norm called twice per step can be planned with every strategy, and trains like
PyTorch."""

from __future__ import annotations

import copy
import functools
import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import medley
from medley.cluster import parse_cluster

CLUSTER = """
format: medley-cluster
version: 1
nodes: [{name: a, count: 1, device: CPU, devices_per_node: 2}]
networks: [{name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}]
"""


class Siamese(nn.Module):
    """Two views of each row through one net, and a norm after both."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6))
        self.last = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one, other = self.net(x), self.net(y)
        loss: Tensor = (self.last(one) - other.detach()).square().mean()
        return loss + (self.last(other) - one.detach()).square().mean()


@functools.cache
def captured(keeps_statistics: bool) -> tuple[Siamese, tuple[Tensor, Tensor], medley.Graph]:
    """Returns a model, its batch and its graph. Backward ops read the last running statistics if
    the graph keeps them there, as PyTorch writes them."""
    torch.manual_seed(0)
    model = Siamese().double()
    batch = torch.randn(12, 6).double(), torch.randn(12, 6).double()
    trace = importlib.import_module("medley.capture.trace")
    with pytest.MonkeyPatch.context() as patch:
        if keeps_statistics:
            patch.setattr(trace, "_leave_out_running_statistics", lambda graph: None)
        return model, batch, medley.capture(model, batch, check=False)


def check(keeps_statistics: bool, plan_of: Callable[[medley.Graph], medley.Plan]) -> None:
    """Asserts that three steps equal those of PyTorch."""
    model, batch, graph = captured(keeps_statistics)
    model = copy.deepcopy(model)
    plan = plan_of(graph)
    trainer = medley.Trainer(
        model, graph, plan, medley.SGD(lr=0.1), local=True, cluster=parse_cluster(CLUSTER)
    )
    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD(eager.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = eager(*batch)
        loss.backward()
        optimizer.step()
        assert trainer.step(batch).loss == pytest.approx(loss.item(), rel=1e-10)
    for name, value in (trainer.parameters() | trainer.buffers()).items():
        torch.testing.assert_close(value, eager.state_dict()[name], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("keeps_statistics", [False, True])
@pytest.mark.parametrize("strategy", ["auto", "harp", "hap"])
def test_it_plans_and_trains_like_pytorch(
    strategy: str, keeps_statistics: bool, tmp_path: Path
) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    check(
        keeps_statistics,
        lambda graph: medley.plan(graph, cluster, global_batch=12, strategy=strategy),
    )


# The new statistics are made in the second stage. The first one holds the buffers and reads these
# statistics on the way back only.
def test_every_cut_of_a_graph_that_keeps_the_statistics() -> None:
    found = 0
    for first in captured(True)[2].core.stable_names():
        stages: list[dict[str, Any]] = [{"mesh": {"devices": [f"a/0/{i}"]}} for i in range(2)]
        stages[1]["first"] = first
        pipeline = {"microbatches": [{"rows": 12}], "stages": stages}
        plan = {"format": "medley-plan", "version": 1, "global_batch": 12, "pipelines": [pipeline]}
        if "~" in first:
            continue
        try:
            check(True, lambda _, plan=plan: medley.Plan(json.dumps(plan)))  # type: ignore[misc]
            found += 1
        except ValueError as error:  # no op is left for a stage
            assert "expected an op" in str(error)
    assert found > 40
