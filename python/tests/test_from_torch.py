"""Optimizers and schedulers of PyTorch give the same results in a loop of Medley as in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import exactness
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

import medley
from medley.cluster import parse_cluster

CLUSTER = """
format: medley-cluster
version: 1
nodes: [{name: a, count: 1, device: CPU, devices_per_node: 2}]
networks: [{name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}]
"""
STEPS = 12
Make = Callable[[nn.Module], torch.optim.Optimizer]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x).tanh()).square().mean()


def split(model: nn.Module) -> list[dict[str, Any]]:
    """Returns two groups: weights, and biases without decay."""
    weights = [p for p in model.parameters() if p.dim() > 1]
    biases = [p for p in model.parameters() if p.dim() == 1]
    return [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}]


MAKES: dict[str, Make] = {
    "AdamW": lambda m: torch.optim.AdamW(split(m), lr=1e-2, betas=(0.8, 0.95)),
    "Adam": lambda m: torch.optim.Adam(m.parameters(), lr=1e-2, weight_decay=0.1),
    "SGD": lambda m: torch.optim.SGD(split(m), lr=0.1, momentum=0.9, nesterov=True),
    "plain SGD": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "RMSprop": lambda m: torch.optim.RMSprop(m.parameters(), momentum=0.5, centered=True),
    "Adadelta": lambda m: torch.optim.Adadelta(m.parameters()),
    "Adagrad": lambda m: torch.optim.Adagrad(m.parameters(), lr_decay=0.1),
    "NAdam": lambda m: torch.optim.NAdam(m.parameters(), weight_decay=0.1),
    "RAdam": lambda m: torch.optim.RAdam(m.parameters(), lr=1e-2),
    "Adamax": lambda m: torch.optim.Adamax(m.parameters()),
    "some": lambda m: torch.optim.SGD(m.get_submodule("second").parameters(), lr=0.1),
}


def no_change(optimizer: torch.optim.Optimizer) -> Callable[[int], None]:
    return lambda step: None


def by_hand(optimizer: torch.optim.Optimizer) -> Callable[[int], None]:
    def change(step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 / (1 + step)
            group["weight_decay"] = 0.01 * step

    return change


def one_cycle(optimizer: torch.optim.Optimizer) -> Callable[[int], None]:
    scheduler = lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=STEPS + 1)
    return lambda step: scheduler.step() if step else None


CHANGES = {"none": no_change, "by hand": by_hand, "OneCycleLR": one_cycle}
CASES = [
    *((name, "none") for name in MAKES),
    ("AdamW", "by hand"),
    ("AdamW", "OneCycleLR"),
    ("SGD", "OneCycleLR"),
]


def train_torch(model: nn.Module, make: Make, change: Any, batches: list[Tensor]) -> nn.Module:
    model = copy.deepcopy(model)
    optimizer = make(model)
    changed = change(optimizer)
    for step, x in enumerate(batches):
        changed(step)
        model.zero_grad()
        model(x).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return model


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(("name", "change"), CASES)
def test_a_torch_optimizer_trains_as_in_pytorch(name: str, change: str) -> None:
    torch.manual_seed(0)
    with exactness.double_precision():  # precision of NAdam's products in PyTorch
        check(name, change)


def check(name: str, change: str) -> None:
    model = Net()
    batches = [torch.randn(4, 6) for _ in range(STEPS)]
    want = train_torch(model, MAKES[name], CHANGES[change], batches)
    optimizer = MAKES[name](model)
    changed = CHANGES[change](optimizer)
    graph = medley.capture(model, batches[0])
    cluster = parse_cluster(CLUSTER)
    plan = medley.plan(graph, cluster, "data-parallel-even", global_batch=4)
    rule = medley.from_torch(optimizer, model, max_norm=0.1)
    trainer = medley.Trainer(model, graph, plan, rule, local=True)
    for step, x in enumerate(batches):
        changed(step)
        trainer.step(x)
    for key, value in want.state_dict().items():
        torch.testing.assert_close(trainer.parameters()[key], value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda m: torch.optim.AdamW(m.parameters(), amsgrad=True), "AdamW: amsgrad: found True"),
        (lambda m: torch.optim.SGD(m.parameters(), dampening=0.5), "SGD: dampening: found 0.5"),
        (lambda m: torch.optim.LBFGS(m.parameters()), "found torch.optim.lbfgs.LBFGS, expected"),
        (lambda m: torch.optim.SGD([torch.zeros(3)]), "that the model does not have"),
    ],
)
def test_an_optimizer_without_a_counterpart_is_refused(make: Make, says: str) -> None:
    model = Net()
    with pytest.raises(ValueError, match=says):
        medley.from_torch(make(model), model)
