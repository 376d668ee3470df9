"""A batch norm that a step calls twice plans under every strategy, and trains like PyTorch."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import medley

CLUSTER = """
format: medley-cluster
version: 1
nodes: [{name: a, count: 1, device: CPU, devices_per_node: 2}]
networks: [{name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}]
"""


class Siamese(nn.Module):
    """Two views of each row through one net, and a norm behind both."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 6))
        self.last = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 6))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        one, other = self.net(x), self.net(y)
        loss: Tensor = (self.last(one) - other.detach()).square().mean()
        return loss + (self.last(other) - one.detach()).square().mean()


@pytest.mark.parametrize("strategy", ["auto", "harp", "hap"])
def test_it_plans_and_trains_like_pytorch(strategy: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text(CLUSTER)
    model = Siamese().double()
    batch = torch.randn(12, 6).double(), torch.randn(12, 6).double()
    graph = medley.capture(model, batch, check=False)
    plan = medley.plan(graph, str(cluster), global_batch=12, strategy=strategy)
    trainer = medley.Trainer(model, graph, plan, medley.SGD(lr=0.1), local=True)
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
