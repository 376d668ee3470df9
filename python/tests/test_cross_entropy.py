"""Cross entropy of many classes, which keeps logits in the place of log-probabilities."""

from __future__ import annotations

import copy
import json
from typing import Any

import exactness
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import medley

CLASSES = 2100  # fewer rows are not fused
ROWS = 6
WEIGHT = torch.rand(CLASSES, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Tokens(nn.Module):
    """Predicts a token from each token."""

    def __init__(self, loss: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.loss = loss
        self.tokens = nn.Embedding(CLASSES, 16)
        self.body = nn.Linear(16, 16)
        self.head = nn.Linear(16, CLASSES, bias=False)
        self.register_buffer("weight", WEIGHT.float())

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        logits = self.head(torch.tanh(self.body(self.tokens(ids))))
        x, y = logits.view(-1, CLASSES), labels.view(-1)
        if self.loss == "weights":
            return cross_entropy(x, y, self.weight, ignore_index=7)
        if self.loss == "sum":
            return cross_entropy(x, y, reduction="sum") / 50
        if self.loss == "rows":
            return (cross_entropy(x, y, reduction="none") * y).mean() / 100
        if self.loss == "smoothing":
            return cross_entropy(x, y, label_smoothing=0.1)
        if self.loss == "z":  # logits are read again
            return cross_entropy(x, y) + 1e-3 * x.logsumexp(-1).square().mean()
        if self.loss == "float":  # as transformers have it
            return cross_entropy(logits.float().view(-1, CLASSES), y)
        return cross_entropy(x, y)


def make(loss: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a model and its batch, in which some targets are ignored."""
    model = Tokens(loss)
    labels = torch.randint(0, CLASSES, (ROWS, 5))
    if loss not in ("sum", "rows"):
        labels[::2, :2] = 7 if loss == "weights" else -100
    return model, {"ids": torch.randint(0, CLASSES, (ROWS, 5)), "labels": labels}


def plan_of(lengths: list[list[int]], **stage: Any) -> str:
    """Returns a plan of one stage. `lengths`: by micro-batch."""
    devices = [f"a/{i}/0" for i in range(len(lengths[0]))]
    microbatches = [{"rows": sum(each), "lengths": each} for each in lengths]
    if len(devices) == 1 or "placements" in stage:
        microbatches = [{"rows": ROWS}]  # on every device
    return json.dumps(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "parts": [{"name": "part", "lengths": [1300, 800]}],
            "pipelines": [
                {
                    "microbatches": microbatches,
                    "stages": [{"mesh": {"devices": devices}, **stage}],
                }
            ],
        }
    )


PLANS = {
    "one device": plan_of([[ROWS]]),
    "a device without rows": plan_of([[4, 0, 2]]),
    "micro-batches": plan_of([[3, 0, 1], [0, 2, 0]]),
    "recompute": plan_of([[ROWS]], recompute="all"),
    "recompute blocks": plan_of([[ROWS]], recompute="blocks"),
}
VOCABULARY = plan_of([[1, 1]], placements={"head.weight": "S(0, part)"})


def program(model: nn.Module, graph: Any, plan: str) -> str:
    """Returns the text of the program that a plan becomes."""
    trainer = medley.Trainer(
        copy.deepcopy(model),
        graph,
        medley.Plan(plan),
        optimizer=medley.AdamW(),
        local=True,
        cluster=exactness.cluster(),
    )
    return trainer.program_text()


@pytest.mark.parametrize(
    ("loss", "name"),
    [
        (loss, name)
        for loss in ("mean", "weights", "sum", "rows", "z")
        for name in PLANS
        # A loss weight that depends on a buffer is a cross-sample dependence.
        if (loss, name) != ("weights", "micro-batches")
    ],
)
def test_trains_like_pytorch(loss: str, name: str) -> None:
    with exactness.double_precision():
        model, batch = make(loss)
        model.double()
        graph = medley.capture(model, batch, check=False)
        text = program(model, graph, PLANS[name])
        assert "medley.cross_entropy_backward" in text
        assert "log_softmax" not in text
        exactness.check(model, batch, graph, PLANS[name], 3, clip=1.0, name=loss)


# Other ops need log-probabilities, or a device has only some of the classes.
@pytest.mark.parametrize(
    ("loss", "plan"), [("smoothing", PLANS["one device"]), ("weights", VOCABULARY)]
)
def test_is_left_alone(loss: str, plan: str) -> None:
    with exactness.double_precision():
        model, batch = make(loss)
        model.double()
        graph = medley.capture(model, batch, check=False)
        assert "medley.cross_entropy" not in program(model, graph, plan)
        exactness.check(model, batch, graph, plan, 3, clip=1.0, name=loss)


@pytest.mark.parametrize("loss", ["mean", "weights", "float"])
def test_bf16_is_that_of_autocast(loss: str) -> None:
    model, batch = make(loss)
    graph = medley.capture(model, batch, autocast=torch.bfloat16)
    plan = PLANS["one device"]
    assert f"f32[b*5, {CLASSES}]" not in program(model, graph, plan)

    eager = copy.deepcopy(model)
    with torch.autocast("cpu", torch.bfloat16):
        expected = eager(**batch)
    expected.backward()
    trainer = medley.Trainer(
        model,
        graph,
        medley.Plan(plan),
        optimizer=medley.SGD(lr=0.0),
        local=True,
        cluster=exactness.cluster(),
    )
    assert trainer.step(batch).loss == pytest.approx(expected.item(), rel=1e-5)
    gradients = trainer.gradients()
    for name, parameter in eager.named_parameters():
        error = (gradients[name] - parameter.grad).norm() / parameter.grad.norm()
        assert error < 1e-2, name
