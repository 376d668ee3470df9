"""A captured graph, run op by op, computes what eager PyTorch computes."""

from __future__ import annotations

import copy
import pathlib
from typing import Any

import graph_interpreter
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from zoo import ZOO

from medley import custom_ops
from medley.capture import capture_text, substitute
from medley.capture.batch import read_batch
from medley.capture.convert import convert
from medley.capture.trace import trace

GOLDEN = pathlib.Path(__file__).parent / "golden"
RNG = custom_ops.make_rng(2024, 7)


class Float64(TorchDispatchMode):
    """Turns casts to float32 into casts to float64: models of transformers have such islands."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if kwargs.get("dtype") is torch.float32:
            kwargs["dtype"] = torch.float64
        return func(*args, **kwargs)


def make(name: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a model of the zoo and its batch, in float64."""
    torch.manual_seed(0)
    model, batch = ZOO[name]()
    return model.double(), {
        k: t.double() if t.is_floating_point() else t for k, t in batch.items()
    }


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {k: t.clone() for k, t in (*model.named_parameters(), *model.named_buffers())}


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    scale = 1e-3 + float(expected.detach().double().abs().max())
    error = float((found.double() - expected.double()).abs().max()) / scale
    assert error < 1e-12, f"{what}: {error}"


def assert_runs_like_eager(model: nn.Module, batch: dict[str, Tensor], text: str) -> None:
    """Compares loss, gradients and buffers of the graph with those of eager autograd."""
    state = state_of(model)
    eager = copy.deepcopy(model)
    custom_ops.set_rng(*RNG.tolist())
    with Float64():
        if "medley.dropout" in text:
            with substitute(eager):
                result = eager(**batch)
        else:
            result = eager(**batch)
        loss = result if isinstance(result, Tensor) else result["loss"]
        loss.backward()
    found = graph_interpreter.run(text.replace("f32", "f64"), state, batch, RNG)
    assert_close(found.loss, loss.detach(), "loss")
    expected = {k: p.grad for k, p in eager.named_parameters() if p.grad is not None}
    assert found.gradients.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_close(found.gradients[name], gradient, name)
    buffers = dict(eager.named_buffers())
    for name, value in buffers.items():
        assert_close(found.buffers.get(name, state[name]), value, name)


@pytest.mark.parametrize("name", ZOO)
def test_graph_runs_like_eager_at_another_batch_size(name: str) -> None:
    model, batch = make(name)
    text = capture_text(model, batch, name)
    # The example has four rows; nothing in the graph may know.
    assert_runs_like_eager(model, {k: t[:3] for k, t in batch.items()}, text)
