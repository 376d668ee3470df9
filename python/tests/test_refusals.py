"""A refusal takes seconds, has a few lines, and names the line of the model."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from captured import capture_text
from torch import Tensor, nn

import medley
from medley.capture import CaptureError

sys.path.insert(0, str(Path(__file__).parent / "modules"))

import refusals
from module_table import TABLE
from module_training import small_and_precise

SECONDS = 20.0  # in this process
CHARACTERS = 600  # six lines
LINE = re.compile(r"\.py:\d+")


def refusal(model: nn.Module, batch: Any) -> str:
    """Returns the sentence of a refusal that comes in time and is short."""
    before = time.process_time()
    with pytest.raises(CaptureError) as caught:
        capture_text(model, batch)
    assert time.process_time() - before < SECONDS
    message = str(caught.value)
    assert len(message) <= CHARACTERS, message
    assert message.count("\n") < 6, message
    return message


class Net(nn.Module):
    """A layer, and a function of its rows."""

    def __init__(self, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.loss = loss

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.layer(x), x)


ROWS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "list": lambda h, x: torch.cat(list(h)).pow(2).mean(),
    "stack": lambda h, x: torch.stack(list(h)).pow(2).mean(),
    "split": lambda h, x: torch.cat(h.split(1)).pow(2).mean(),
    "chunk": lambda h, x: torch.cat(h.chunk(len(h))).pow(2).mean(),
    "two chunks": lambda h, x: torch.cat(h.chunk(2)).pow(2).mean(),
    "tensor_split": lambda h, x: torch.cat(h.tensor_split(len(h))).pow(2).mean(),
    "three tensor_splits": lambda h, x: torch.cat(h.tensor_split(3)).pow(2).mean(),
    "of the batch": lambda h, x: torch.stack(x.unbind()).mul(h.mean()).mean(),
    "in the loss": lambda h, x: torch.stack([row.pow(2).mean() for row in h]).mean(),
    "sum": lambda h, x: sum(h).pow(2).mean(),  # type: ignore[call-overload]
    "indices": lambda h, x: sum(h[i].pow(2).sum() for i in range(len(h))),  # type: ignore[return-value]
}


@pytest.mark.parametrize("name", ROWS)
def test_a_list_of_the_rows_is_refused_at_its_line(name: str) -> None:
    message = refusal(Net(ROWS[name]), torch.randn(6, 5, 3))
    assert re.search(r"test_refusals\.py:\d+", message), message
    assert "rows" in message


class TimeFirst(nn.Module):
    """A recurrent layer over [time, rows], PyTorch's default."""

    def __init__(self, recurrent: nn.Module) -> None:
        super().__init__()
        self.embedding, self.recurrent, self.last = nn.Embedding(9, 4), recurrent, nn.Linear(4, 9)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(self.last(self.recurrent(self.embedding(x))[0]), y.flatten())


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_layer_over_time_first_whose_model_fails_is_refused_at_its_line(kind: Any) -> None:
    batch = torch.randint(0, 9, (12, 8)), torch.randint(0, 9, (12, 8))
    message = refusal(TimeFirst(kind(4, 4)), batch)
    assert re.search(r"test_refusals\.py:\d+: a loop over the rows", message), message
    assert 'rows={"x": 1}' in message


def test_a_loop_that_no_rehearsal_sees_has_an_end() -> None:
    def loss(h: Tensor, x: Tensor) -> Tensor:
        total = h.sum()
        for _ in range(len(h) if len(h) > 1000 else 1):
            total = total.sin()
        return total

    message = refusal(Net(loss), torch.randn(6, 3))
    assert re.search(r"test_refusals\.py:\d+: a loop over the rows", message), message


_MODULES = [name for names in refusals.CAPTURE.values() for name in names]


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if number % 8 else [])
        for number, name in enumerate(_MODULES)
    ],
)
def test_a_module_of_the_tier_is_refused_shortly(name: str) -> None:
    with small_and_precise():
        model, batch = TABLE[name].make()
        message = refusal(model, batch)
    assert LINE.search(message), message


def test_a_scripted_model_is_refused_at_the_line_of_its_source() -> None:
    model = torch.jit.trace(Net(lambda h, x: h.pow(2).mean()), torch.randn(6, 3))
    assert "test_refusals.py:" in refusal(model, torch.randn(6, 3))


def test_an_output_that_the_model_does_not_return_is_refused_at_its_line() -> None:
    with pytest.raises(CaptureError, match=r"^test_refusals\.py:\d+: outputs: found 'logits'"):
        medley.capture(Net(lambda h, x: h.pow(2).mean()), torch.randn(6, 3), outputs="logits")


def test_a_parameter_that_forward_changes_is_named_at_its_line() -> None:
    def loss(h: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            model.layer.weight.data.mul_(0.9)
        return h.pow(2).mean()

    model = Net(loss)
    message = refusal(model, torch.randn(6, 3))
    assert re.search(
        r"test_refusals\.py:\d+: the model changes its parameter 'layer.weight'", message
    )
    assert "keep what forward changes in a buffer" in message


def test_a_buffer_with_something_for_each_row_is_named() -> None:
    model = Net(lambda h, x: (h + model.state).pow(2).mean())
    model.register_buffer("state", torch.zeros(6, 4))
    message = refusal(model, torch.randn(6, 3))
    assert "buffer 'state' is [6, 4], and the example batch has 6 rows" in message


def test_the_only_scalar_of_a_tuple_is_the_loss() -> None:
    found = [
        capture_text(Net(lambda h, x, only=only: only(h, h.pow(2).mean())), torch.randn(6, 3))
        for only in (
            lambda h, loss: loss,
            lambda h, loss: (h, loss),
            lambda h, loss: (h, None, loss),
        )
    ]
    texts = [re.sub(r" @.*", "", text) for text in found]
    assert texts[0] == texts[1] == texts[2]
