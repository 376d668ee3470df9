"""A few rows of an example batch, and variants with other values."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from medley.capture.batch import Batch

_PRIME = 10_000_019  # a number of rows that no batch has


def few_rows(batch: Batch, count: int, first: int = 0) -> list[Tensor]:
    """Returns `count` rows of the example's tensors, starting at `first` and repeated as needed."""
    found = []
    for tensor, dim, times in _places(batch):
        if dim is not None:
            order = torch.arange(first * times, (first + count) * times) % tensor.shape[dim]
            tensor = tensor.index_select(dim, order.to(tensor.device))
        found.append(tensor.detach().clone())
    return found


def others(batch: Batch, tensors: Sequence[Tensor]) -> Iterator[tuple[str, list[Tensor]]]:
    """Yields batches of other values with a description, the most different one first: hidden rows,
    texts that restart inside a row, other tokens, and last the rows in another order."""
    places = list(_places(batch))
    order = [
        tensor if dim is None else tensor.roll(times, dim)
        for tensor, (_, dim, times) in zip(tensors, places, strict=True)
    ]
    for what, change in (
        (
            "with hidden rows and texts in the middle of rows",
            functools.partial(_other, hide_all=True),
        ),
        (
            "with hidden positions and texts in the middle of rows",
            functools.partial(_other, hide_all=False),
        ),
        ("with its rows in another order", _scaled),
    ):
        yield (
            what,
            [
                tensor.clone() if dim is None else change(tensor.movedim(dim, 0)).movedim(0, dim)
                for tensor, (_, dim, _) in zip(order, places, strict=True)
            ],
        )


def _places(batch: Batch) -> Iterator[tuple[Tensor, int | None, int]]:
    """Yields each tensor with the dim of its rows and its entries per row."""
    for tensor, sizes in zip(batch.tensors, batch.shapes(_PRIME), strict=True):
        dims = [dim for dim, size in enumerate(sizes) if size != tensor.shape[dim]]
        dim = dims[0] if dims else None
        yield tensor, dim, 0 if dim is None else sizes[dim] // _PRIME


def _scaled(rows: Tensor) -> Tensor:
    if not rows.is_floating_point() or _is_mask(rows):
        return rows.clone()
    return rows * 0.9


def _other(rows: Tensor, hide_all: bool) -> Tensor:
    """Returns rows of the same type as these: masks, additive masks, positions, class indices."""
    change: Callable[[Tensor], Tensor] = _reflected
    if _is_mask(rows):
        seen = bool(rows.double().mean() >= 0.5)  # value at most positions
        return _hidden(rows, torch.full_like(rows, not seen), hide_all)
    if _is_additive_mask(rows):
        return _hidden(rows, torch.full_like(rows, rows.min().item()), hide_all)
    if rows.is_floating_point():
        return rows * 0.9
    if _is_positions(rows):
        change = _begun_anew
    return change(rows)


def _is_mask(rows: Tensor) -> bool:
    if rows.dim() < 2:
        return False
    return rows.dtype == torch.bool or bool(((rows == 0) | (rows == 1)).all())


def _is_additive_mask(rows: Tensor) -> bool:
    if not rows.is_floating_point() or rows.dim() < 2 or not rows.numel():
        return False
    return bool(((rows == 0) | (rows <= -1e4)).all())


def _is_positions(rows: Tensor) -> bool:
    if rows.dim() < 2 or rows.shape[-1] < 4 or rows.is_complex():
        return False
    steps = rows.diff(dim=-1)
    return bool(((steps == 1) | (rows[..., 1:] == 0)).all())


def _hidden(rows: Tensor, hidden: Tensor, hide_all: bool) -> Tensor:
    """Returns masks that hide all of the first row, or its first half, and the end of the last row.
    The last dim has the keys."""
    changed, length = rows.clone(), rows.shape[-1]
    first = length if hide_all else length // 2
    changed[:1, ..., :first] = hidden[:1, ..., :first]
    end = length - max(1, length // 3)
    if len(rows) > 1:
        changed[-1:, ..., end:] = hidden[-1:, ..., end:]
    return changed


def _begun_anew(rows: Tensor) -> Tensor:
    """Returns positions that restart at zero in the middle, at another place in each row."""
    changed, length = rows.clone(), rows.shape[-1]
    for row in range(len(rows)):
        cut = 1 + (length // 2 + row - 1) % (length - 1)
        changed[row, ..., cut:] = changed[row, ..., cut:] - changed[row, ..., cut : cut + 1]
    return changed


def _reflected(rows: Tensor) -> Tensor:
    """Returns integers from the same range: the least becomes the greatest. Negative ones, which
    mean no class, stay."""
    if rows.dtype == torch.bool or not rows.numel():
        return rows.clone()
    counted = rows[rows >= 0]
    if not counted.numel():
        return rows.clone()
    return torch.where(rows >= 0, counted.min() + counted.max() - rows, rows)
