"""Checks of values that only raise are not in the graph. Those inside a `try` are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from captured import capture_text
from torch import Tensor, _assert, nn
from transformers.utils import torch_compilable_check

from medley.capture import CaptureError


class Checked(nn.Module):
    """A layer after a check that its input is finite."""

    def __init__(self, check: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.check = check
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.check(x.isfinite().all())
        return self.layer(x).pow(2).mean()


X = torch.randn(6, 4)


def ops_of(check: Callable[[Tensor], Any]) -> set[str]:
    """Returns the ops of the captured graph, without the names of values."""
    text = capture_text(Checked(check), X, check=False)
    return {re.sub(r"%\d+", "", line.partition(" @")[0]) for line in text.splitlines()}


UNCHECKED = ops_of(lambda ok: None)


def statement(ok: Tensor) -> None:
    if not ok:
        raise ValueError("not finite")


def several_lines(ok: Tensor) -> None:
    torch._check_with(
        ValueError,
        not (ok.logical_not() or ok.sum().item() == 3) and bool(ok),
        lambda: f"found {ok.item()}",
    )


CHECKS: dict[str, Callable[[Tensor], Any]] = {
    "if": statement,
    "_assert": lambda ok: torch._assert(ok, "not finite"),
    "_assert imported": lambda ok: _assert(ok, "not finite"),
    "_assert of a number": lambda ok: torch._assert(ok.sum().item() == 1 and ok.item(), "no"),
    "_assert_async": lambda ok: torch._assert_async(ok, "not finite"),
    "_assert_scalar": lambda ok: torch._assert_scalar(ok.item(), "not finite"),
    "_check": lambda ok: torch._check(bool(ok)),
    "_check of two": lambda ok: torch._check(ok.sum() < 5 and ok.sum() > 3, lambda: "no"),
    "_check_index": lambda ok: torch._check_index(ok.item()),
    "_check_value": lambda ok: torch._check_value(ok.tolist()),
    "_check_type": lambda ok: torch._check_type(not ok.logical_not().is_nonzero()),
    "_check_not_implemented": lambda ok: torch._check_not_implemented(torch.equal(ok, ok)),
    "_check_with": several_lines,
    "_check_tensor_all": lambda ok: torch._check_tensor_all(ok, lambda: "not finite"),
    "_check_tensor_all_with": lambda ok: torch._check_tensor_all_with(ValueError, ok),
    "transformers": lambda ok: torch_compilable_check(ok, "not finite"),
    "transformers, of a number": lambda ok: torch_compilable_check(
        ok.sum() == 2, lambda: f"found {ok.sum()}"
    ),
}


@pytest.mark.parametrize("name", CHECKS)
def test_a_check_is_no_part_of_the_graph(name: str) -> None:
    found = ops_of(CHECKS[name])
    assert found >= UNCHECKED
    assert not [op for op in found - UNCHECKED if "_local_scalar" in op or "assert" in op]


def _caught(check: Callable[[Tensor], Any], ok: Tensor) -> None:
    try:  # noqa: SIM105
        check(ok)
    except (RuntimeError, ValueError, AssertionError):
        pass


@pytest.mark.parametrize("name", ["_assert", "_check", "_check_tensor_all", "transformers"])
def test_a_check_whose_error_the_model_catches_is_refused(name: str) -> None:
    with pytest.raises(CaptureError, match="depends on the values in the batch"):
        capture_text(Checked(lambda ok: _caught(CHECKS[name], ok)), X)


def test_a_question_whose_error_the_model_catches_is_refused() -> None:
    class Falls(nn.Module):
        """Computes something else if the value is unavailable."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            try:
                scale = x.max().item()
            except RuntimeError:
                scale = 1.0
            return (self.layer(x) * scale).mean()

    with pytest.raises(CaptureError, match=r"test_value_checks.py:\d+: .*keep it a tensor"):
        capture_text(Falls(), X)


def test_a_check_of_python_values_raises() -> None:
    with pytest.raises(CaptureError, match="three features"):
        capture_text(Checked(lambda ok: torch._check(X.shape[1] == 3, lambda: "three features")), X)
