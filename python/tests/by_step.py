"""Comparison with plain PyTorch over 50 steps, with changing hyperparameters: shared by tests."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

import exactness
import torch
from test_optimizers import plan_of
from torch import Tensor, nn

import medley

STEPS, ROWS, BOUND = 50, 6, 1e-12
KINDS = ("zero", "tensor", "owners", "1", "2")  # of plans


class Net(nn.Module):
    """Matrices, vectors and a kernel of four dims, without sums of zero gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 4), nn.Conv2d(2, 2, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the loss."""
        y = self.b(torch.tanh(self.a(x)))
        return (self.c(y.view(-1, 2, 2, 1).expand(-1, -1, -1, 2)).tanh() - 0.3).pow(2).mean()


@functools.cache
def made() -> tuple[nn.Module, Tensor, medley.Graph]:
    """Returns a model in float64, its batch and its graph, which callers must not change. Called in
    double_precision()."""
    torch.manual_seed(0)
    model, batch = Net().double(), torch.randn(ROWS, 6, dtype=torch.float64)
    return model, batch, medley.capture(model, batch, check=False)


def trainer_of(
    model: nn.Module, graph: medley.Graph, optimizer: medley.optimizer.Optimizer, kind: str
) -> medley.Trainer:
    """Returns a trainer with a plan of this kind."""
    plan = plan_of(kind, graph, optimizer)
    devices = {
        d for p in json.loads(plan)["pipelines"] for s in p["stages"] for d in s["mesh"]["devices"]
    }
    nodes = max(int(device.split("/")[1]) for device in devices) + 1
    return medley.Trainer(
        model,
        graph,
        medley.Plan(plan),
        optimizer,
        local=True,
        cluster=exactness.cluster(max(4, nodes)),
    )


def train_torch(
    model: nn.Module,
    batch: Tensor,
    optimizer_of: Callable[[nn.Module], Any],
    by_step: Mapping[str, Callable[[int], Any]] | None = None,
    each: Callable[[nn.Module, int], Any] = lambda model, step: None,
    clip: Callable[[nn.Module, int], Any] = lambda model, step: None,
) -> tuple[nn.Module, list[float]]:
    """Trains a copy of a model with plain PyTorch. `each` is called after every step, `clip` before
    that of the optimizer. Returns the copy and the losses."""
    model, losses = copy.deepcopy(model), []
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group.update({name: value(step) for name, value in (by_step or {}).items()})
        optimizer.zero_grad()
        loss = model(batch)
        loss.backward()
        losses.append(loss.item())
        clip(model, step)
        optimizer.step()
        each(model, step)
    return model, losses


def compare(got: Mapping[str, Tensor], want: Mapping[str, Tensor], bound: float = BOUND) -> float:
    """Asserts that tensors agree relative to their largest element. Returns the largest
    deviation."""
    worst = 0.0
    assert set(got) == set(want)
    for name, tensor in want.items():
        difference = ((got[name] - tensor).abs().max() / tensor.abs().max().clamp_min(1e-3)).item()
        assert difference <= bound, (name, difference)
        worst = max(worst, difference)
    return worst


def check(
    ours: medley.optimizer.Optimizer,
    optimizer_of: Callable[[nn.Module], Any],
    kinds: tuple[str, ...],
    **options: Any,
) -> None:
    """Asserts that an optimizer trains like plain PyTorch, under plans of these kinds."""
    with exactness.double_precision():
        model, batch, graph = made()
        want, losses = train_torch(model, batch, optimizer_of, **options)
        for kind in kinds:
            trainer = trainer_of(model, graph, ours, kind)
            for loss in losses:
                found = trainer.step(batch).loss
                assert abs(found - loss) <= BOUND * max(1.0, abs(loss))
            parameters = {n: p.detach() for n, p in want.named_parameters()}
            print(f"{kind}: {compare(trainer.parameters(), parameters):.1e}")
