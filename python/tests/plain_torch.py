"""Plans compared with plain PyTorch, without any replacement of ours in PyTorch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import exactness
import torch
from test_pipelines import Case, plan_of
from torch import nn

import medley

ROWS = 6
# Two unequal devices, two stages, and three devices of two stages, with micro-batches of unequal
# rows.
PLANS = {
    "one device": Case("", (1,), microbatches=(6,)),
    "two devices": Case("", (2,), ((2, 1),), microbatches=(3, 3)),
    "two stages": Case("", (1, 1), microbatches=(1, 3, 2)),
    "three devices": Case("", (2, 1), ((1, 2), ()), microbatches=(3, 2, 1)),
}


def train(model: nn.Module, batches: Sequence[Any], lr: float) -> exactness.Curve:
    """Trains a copy of the model with SGD of plain PyTorch, one step for each batch."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    curve = exactness.Curve([], {}, {})
    for batch in batches:
        optimizer.zero_grad()
        loss = exactness.loss_of(exactness.call(model, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        curve.losses.append(loss.item())
    trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
    # A parameter without effect on the loss has no gradient here, but zeros in a plan.
    curve.gradients = {
        name: torch.zeros_like(each) if each.grad is None else each.grad.clone()
        for name, each in trained.items()
    }
    curve.parameters = {name: each.detach().clone() for name, each in trained.items()}
    return curve


def check(
    model: nn.Module,
    batches: Sequence[Any],
    plans: Sequence[str] = ("one device", "two devices"),
    *,
    lr: float = 0.05,
) -> medley.Graph:
    """Asserts that plans, names in `PLANS` or texts, train on batches of `ROWS` rows like plain
    PyTorch. Returns the graph. Call it in `exactness.double_precision()`."""
    graph = medley.capture(model, batches[0], check=False)
    want = train(model, batches, lr)
    for name in plans:
        trainer = medley.Trainer(
            copy.deepcopy(model),
            graph,
            medley.Plan(plan_of(PLANS[name], graph) if name in PLANS else name),
            medley.SGD(lr=lr),
            local=True,
            cluster=exactness.cluster(),
        )
        losses = [trainer.step(batch).loss for batch in batches]
        found = trainer.parameters()
        got = exactness.Curve(
            losses, trainer.gradients(), {each: found[each] for each in want.parameters}
        )
        exactness.compare(got, want)
    return graph
