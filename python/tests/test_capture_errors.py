"""A failed capture raises one sentence: op, module, line and a rewrite."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from captured import capture_text
from torch import Tensor, nn

from medley.capture import CaptureError


class Body(nn.Module):
    """A linear layer in a submodule, and a function of its output."""

    def __init__(self, body: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.inner = Inner(body)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


class Inner(nn.Module):
    def __init__(self, body: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.body = body

    def forward(self, x: Tensor) -> Any:
        return self.body(self.linear(x))


X = torch.randn(4, 8)


def refuse(body: Callable[[Tensor], Any], *expected: str, batch: Any = X) -> str:
    """Returns the message of the refusal, which holds all of `expected`."""
    with pytest.raises(CaptureError) as caught:
        capture_text(Body(body), batch)
    message = str(caught.value)
    for part in expected:
        assert part in message, message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert isinstance(caught.value, ValueError)
    return message


def line_of(function: Callable[..., Any], text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if text in line)}"


# --- shapes and numbers that depend on values -----------------------------------------------------


def branch(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x.sum()
    return -x.sum()


def select(x: Tensor) -> Tensor:
    return x[x > 0].sum()


def nonzero(x: Tensor) -> Tensor:
    return x.sum() * len(torch.nonzero(x))


def item(x: Tensor) -> Tensor:
    return x.sum() * x.max().item()


@pytest.mark.parametrize(
    ("body", "op", "text"),
    [
        (branch, "aten._local_scalar_dense", "if x.sum()"),
        (select, "aten.", "x[x > 0]"),
        (nonzero, "aten.nonzero", "torch.nonzero(x)"),
        (item, "aten._local_scalar_dense", "x.max()"),
    ],
)
def test_data_dependence_names_op_module_line_and_rewrite(
    body: Callable[[Tensor], Tensor], op: str, text: str
) -> None:
    message = refuse(body, op, "module 'inner'", line_of(body, text))
    assert (
        "keep it a tensor" in message or "torch.where(mask" in message or "torch.where" in message
    )


def spectrum(x: Tensor) -> Tensor:
    return torch.fft.fft(x).log().abs().sum()


# --- batch sizes that are baked in ---------------------------------------------------------------


def divide(x: Tensor) -> Tensor:
    return x.sum() / x.shape[0]


def divide_by_elements(x: Tensor) -> Tensor:
    return x.sum() / (x.numel() * 3)


def scale(x: Tensor) -> Tensor:
    return (x * (1.0 / x.shape[0])).sum()


def add_rows(x: Tensor) -> Tensor:
    return (x + x.shape[0]).sum()


def minus_one(x: Tensor) -> Tensor:
    return x.sum() / (x.shape[0] - 1)


def root(x: Tensor) -> Tensor:
    return x.sum() / x.shape[0] ** 0.5


def at_most_rows(x: Tensor) -> Tensor:
    return x.clamp(max=x.shape[0]).sum()


def to_the_rows(x: Tensor) -> Tensor:
    return torch.pow(x, x.shape[0]).sum()


@pytest.mark.parametrize("body", [at_most_rows, to_the_rows])
def test_a_literal_that_holds_the_batch_names_op_module_line_and_rewrite(
    body: Callable[[Tensor], Tensor],
) -> None:
    where = line_of(body, "return").rpartition("/")[2]
    refuse(body, "aten.", "module 'inner'", where, "size of the batch", "ones_like")


@pytest.mark.parametrize("body", [divide, divide_by_elements])
def test_a_division_by_rows_counts_them(body: Callable[[Tensor], Tensor]) -> None:
    text = capture_text(Body(body), X)
    assert "medley.mean_loss.default" in text
    assert "10007" not in text


@pytest.mark.parametrize("body", [scale, add_rows])
def test_a_sum_or_product_with_rows_counts_them(body: Callable[[Tensor], Tensor]) -> None:
    assert "10007" not in capture_text(Body(body), X)


@pytest.mark.parametrize("body", [minus_one, root])
def test_a_second_capture_finds_other_functions_of_the_batch(
    body: Callable[[Tensor], Tensor],
) -> None:
    where = line_of(body, "return").rpartition("/")[2]
    refuse(body, "aten.div.Tensor", '"inner"', where, "B - 1")


def test_sizes_next_to_the_batch_are_looked_at_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    def pad(x: Tensor) -> Tensor:
        return torch.cat([x, torch.ones(3, 8)]).pow(2).sum()

    refuse(pad, "aten.cat", "B - 1")
    monkeypatch.setattr(sys.modules["medley.capture"], "_CHECK_BELOW_OPS", 20)
    model = Body(lambda x: pad(x) + sum(x.sin().sum() for _ in range(20)))
    with pytest.raises(CaptureError, match="B - 1"):  # too many ops for a check of every graph
        capture_text(model, X)


def test_a_loop_over_the_rows_is_refused() -> None:
    refuse(lambda x: sum(x[i].sum() for i in range(x.shape[0] // 5004)), "a loop over the rows")


def test_a_constant_made_for_one_batch_size_is_refused() -> None:
    constant = torch.arange(4.0).unsqueeze(1)
    refuse(lambda x: (x * constant).sum(), "module 'inner'", "x.shape[0]")


def test_a_fixed_batch_in_a_view_is_refused() -> None:
    refuse(lambda x: x.view(4, 2, 4).sum(), "module 'inner'", "x.shape[0]")


@pytest.mark.parametrize(
    ("query", "key", "value", "shares_heads"),
    [
        ((4, 1, 2), (2, 2, 2), (2, 2, 2), False),  # fewer heads, not marked as shared
        ((2, 2, 2), (4, 1, 2), (4, 1, 2), True),  # more heads
        ((1, 2, 4), (1, 4, 2), (1, 4, 2), False),  # another width
        ((2, 2, 2), (2, 2, 2), (2, 1, 4), False),  # values of other positions
    ],
)
def test_attention_that_does_not_fit_together_is_refused(
    query: tuple[int, ...], key: tuple[int, ...], value: tuple[int, ...], shares_heads: bool
) -> None:
    def body(x: Tensor) -> Tensor:
        rows = x.shape[0]
        q, k, v = x.view(rows, *query), x.view(rows, *key), x.view(rows, *value)
        return F.scaled_dot_product_attention(q, k, v, enable_gqa=shares_heads).sum()

    with pytest.raises(RuntimeError):
        Body(body)(X)
    refuse(body, "scaled_dot_product_attention: found query", "module 'inner'")


def test_random_numbers_that_depend_on_the_split_are_refused() -> None:
    refuse(lambda x: (x + torch.poisson(x.exp())).sum(), "poisson", "module 'inner'", "torch.rand")


# --- losses and batches ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        lambda x: x,
        lambda x: None,
        lambda x: {"logits": x},
        lambda x: (x, x),
        lambda x: x.sum().long(),
        lambda x: x.sum().item,
    ],
)
def test_a_model_without_a_loss_is_refused(body: Callable[[Tensor], Any]) -> None:
    refuse(body, "the model returned no loss")


def test_a_loss_that_needs_no_parameter_is_refused() -> None:
    refuse(lambda x: x.detach().sum(), "depends on its parameters")


@pytest.mark.parametrize("batch", [None, 3, "text", {}, (), {1: X}, torch.tensor(1.0)])
def test_a_batch_of_another_type_is_refused(batch: Any) -> None:
    refuse(lambda x: x.sum(), "batch: ", batch=batch)


def test_an_error_of_the_model_names_module_and_line() -> None:
    def wrong(x: Tensor) -> Tensor:
        return (x @ torch.ones(3, 3)).sum()

    refuse(wrong, "module 'inner'", line_of(wrong, "return"), "RuntimeError")


def test_an_error_of_the_outermost_module_is_that_error() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            self.linear(x)
            raise AttributeError("no start token")

    with pytest.raises(CaptureError, match="AttributeError: no start token"):
        capture_text(Broken(), X)


def test_types_that_graphs_do_not_have_are_refused() -> None:
    where = line_of(spectrum, "fft").rpartition("/")[2]
    found = "complex numbers (torch.complex64) are not supported in aten.log.default: "
    refuse(spectrum, "module 'inner'", where, found)


def test_a_model_is_left_as_it_was_after_an_error() -> None:
    model = Body(select)
    parameters = list(model.parameters())
    with pytest.raises(CaptureError):
        capture_text(model, X)
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert not model._forward_hooks
    assert F.mse_loss.__module__ == "torch.nn.functional"
