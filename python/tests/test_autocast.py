"""Under autocast to bf16 a plan trains as eager autocast does, with fp32 weights and optimizer."""

from __future__ import annotations

import copy
import math
import re
from typing import Any

import exactness
import pytest
import torch
from torch import nn
from zoo import ZOO
from zoo_names import names_but

import medley
from medley import _core
from medley.capture import CaptureError, substitute

ROWS, STEPS, LIMIT = 6, 10, 3.0
# Models with different cast ops: embeddings, convolutions, norms, routed experts, encoder-decoder.
MODELS = [
    "gpt",
    "resnet",
    pytest.param("hf-qwen3-moe", marks=pytest.mark.slow),
    pytest.param("hf-t5", marks=pytest.mark.slow),
]


# One model of each family runs always. test_fallbacks.py tests that ops have rules.
SOME = ("gpt", "vgg-bn", "moe", "hf-bert")


@pytest.mark.parametrize("name", names_but([name for name in ZOO if name not in SOME]))
def test_every_op_has_a_rule(name: str) -> None:
    model, batch = ZOO[name]()
    graph = medley.capture(model, batch, check=False, autocast=torch.bfloat16)
    assert _core.fallbacks(graph.core) == []
    assert "bf16[" in graph.text()
    assert not re.search(r" = parameter .* : bf16", graph.text())


def train(model: nn.Module, batch: Any, autocast: bool, order: torch.Tensor) -> list[float]:
    """Returns the losses of plain PyTorch."""
    model = copy.deepcopy(model)
    batch = {name: tensor[order] for name, tensor in batch.items()}
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


@pytest.mark.parametrize("name", MODELS)
def test_no_further_than_eager_from_itself(name: str) -> None:
    torch.manual_seed(0)
    model, batch = ZOO[name](batch=ROWS)
    here, order = torch.arange(ROWS), torch.arange(ROWS).flip(0)
    want = train(model, batch, True, here)
    # Rounding differs between orders of the rows, and between bf16 and fp32.
    itself = max(
        distance(train(model, batch, True, order), want),
        distance(train(model, batch, False, here), want),
    )
    graph = medley.capture(model, batch, check=False, autocast=torch.bfloat16)
    plan = exactness.random_plan(graph, 1, ROWS, devices=3)
    got = exactness.train_plan(model, graph, plan, batch, STEPS, lr=1e-3)
    print(f"{name}: {distance(got.losses, want):.2e}, eager from itself {itself:.2e}")
    assert distance(got.losses, want) <= LIMIT * itself
    assert all(tensor.dtype == torch.float32 for tensor in got.parameters.values())


def test_other_types_are_refused() -> None:
    model, batch = ZOO["mlp"]()
    with pytest.raises(CaptureError, match="autocast: found torch.float16, expected"):
        medley.capture(model, batch, autocast=torch.float16)
