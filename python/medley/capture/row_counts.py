"""Means and counts that scale with the rows of the batch, made by ops during capture."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

Function = Callable[..., Any]


def count(x: Tensor, *dims_and_keepdim: Any) -> Tensor:
    """Returns the number of elements of x, or of those along dims, as int64 ops that scale with the
    batch."""
    return torch.ones_like(x, dtype=torch.int64).sum(*dims_and_keepdim)


def mean_loss(total: Tensor, weight: Tensor) -> Tensor:
    """Returns total / weight, both []. The weight is first summed over the whole global batch."""
    if weight.requires_grad:
        weight = weight.detach()
    return torch.ops.medley.mean_loss(total, weight)  # type: ignore[no-any-return]


_DIVIDES = "medley: a scalar divided by a tensor"


def has_a_mean(loss: Tensor) -> bool:
    """Returns whether a scalar contains a mean over the batch: a division of scalars by a value
    without a gradient."""
    seen: set[Any] = set()
    following = [loss.grad_fn]
    while following:
        node = following.pop()
        if node is None or node in seen:
            continue
        metadata: Any = node.metadata
        if "mean_loss" in node.name() or _DIVIDES in metadata:
            return True
        seen.add(node)
        following += [each for each, _ in node.next_functions]
    return False


class RowCounts:
    """Replaces arithmetic of tensors with multiples of the rows."""

    def __init__(self, batch_size: Callable[[], int | None]) -> None:
        """`batch_size`: that of the current capture, or None in eager runs."""
        self._batch_size = batch_size

    def replacements(self) -> Iterator[tuple[Function, Function]]:
        """Yields functions of PyTorch and their replacements."""
        for divide in _DIVISIONS:
            yield divide, functools.partial(self.divide, divide)
        if self._batch_size() is None:
            return
        for function in _ARITHMETIC:
            yield function, functools.partial(self.with_rows, function)
        yield torch.tensor, self.tensor

    def divide(self, original: Function, input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        """Replaces a division. By a multiple of the rows it divides by a count; for a scalar it is
        a mean loss."""
        rows = self._rows(other)
        if rows is None or args or kwargs or not isinstance(input, Tensor):
            found = original(input, other, *args, **kwargs)
            scalars = isinstance(other, Tensor) and found.dim() == 0
            if scalars and found.grad_fn is not None and not other.requires_grad:
                found.grad_fn.metadata[_DIVIDES] = True
            return found
        if original in _IN_PLACE:
            return original(input, rows)
        if not (input.is_floating_point() or input.is_complex()):
            input = input.to(torch.get_default_dtype())
        if input.dim() == 0 and not input.is_complex():
            return mean_loss(input, rows)
        return original(input, rows)

    def with_rows(
        self, original: Function, input: Any, other: Any, *args: Any, **kwargs: Any
    ) -> Any:
        """Replaces a multiple of the rows in a sum, product or comparison by a count. A product
        with a share of one row, such as 1 / x.shape[0], is a division."""
        is_number = isinstance(input, Tensor) and input.is_floating_point()
        if original in _PRODUCTS and is_number and isinstance(other, float) and other:
            share = Fraction(1 / other).limit_denominator(100)
            rows = self._rows(share.numerator)
            if rows is not None and abs(float(share) * other - 1.0) < 4e-16:
                if share.denominator != 1:
                    input = original(input, share.denominator)
                return self.divide(torch.div, input, share.numerator)
        rows = self._rows(other)
        if rows is not None and original in _REVERSED and not (args or kwargs):
            return _REVERSED[original](rows, input)
        return original(input, other if rows is None else rows, *args, **kwargs)

    def tensor(self, data: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Replaces `torch.tensor`: a multiple of the rows becomes a count."""
        rows = self._rows(data)
        if rows is None:
            return torch.tensor(data, *args, **kwargs)
        default = torch.get_default_dtype() if isinstance(data, float) else torch.int64
        return rows.to(kwargs.get("dtype") or default)

    def _rows(self, number: Any) -> Tensor | None:
        """Returns a multiple of the rows as a tensor [], or None for another number."""
        rows = self._batch_size()
        if rows is None or isinstance(number, bool) or not isinstance(number, (int, float)):
            return None
        if not number or number % rows:
            return None
        return torch.ones(rows, dtype=torch.int64).sum() * int(number // rows)


_IN_PLACE: tuple[Function, ...] = (Tensor.div_, Tensor.__itruediv__)
_DIVISIONS: tuple[Function, ...] = (
    *(torch.div, torch.true_divide, Tensor.div, Tensor.true_divide, Tensor.__truediv__),
    *_IN_PLACE,
)
_PRODUCTS: tuple[Function, ...] = (
    torch.mul,
    torch.multiply,
    Tensor.mul,
    Tensor.__mul__,
    Tensor.__rmul__,
)
_REVERSED: dict[Function, Function] = {
    torch.rsub: torch.sub,
    Tensor.__rsub__: torch.sub,
    Tensor.__rtruediv__: torch.div,
    Tensor.__rdiv__: torch.div,
}
_ARITHMETIC: tuple[Function, ...] = (
    *_PRODUCTS,
    *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__),
    *(torch.sub, Tensor.sub, Tensor.__sub__, Tensor.sub_, Tensor.__isub__),
    *_REVERSED,
    *(torch.gt, Tensor.gt, Tensor.__gt__, torch.lt, Tensor.lt, Tensor.__lt__),
    *(torch.ge, Tensor.ge, Tensor.__ge__, torch.le, Tensor.le, Tensor.__le__),
)
