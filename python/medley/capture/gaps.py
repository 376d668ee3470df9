"""Differences between the values of a graph and those of its model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import torch
from torch import Tensor

Values = dict[str, Tensor]  # named as in GraphRunner: "loss", "gradient:fc.weight"

_PART = 1 << 18  # elements compared at a time, to fit into a cache


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Sets the number of threads of PyTorch inside the block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def agree(name: str, wanted: Values, found: Values, scale: float) -> bool:
    """Returns whether two tensors agree in float64. `scale`: the largest gradient."""
    gap, size = gap_of(wanted.get(name), found.get(name))
    floor = 1e-12 * scale if name.startswith("gradient:") else 0.0
    return gap <= 1e-9 * size + floor


def gap_of(wanted: Tensor | None, found: Tensor | None) -> tuple[float, float]:
    """Returns the largest difference of two tensors, and the largest value of the first. A value
    and a NaN differ infinitely; two NaNs are equal."""
    if wanted is None:
        wanted = torch.zeros_like(found) if found is not None else torch.zeros(())
    wanted = wanted.detach()
    found = torch.zeros_like(wanted) if found is None else found.detach()
    if wanted.shape != found.shape:
        return math.inf, 0.0
    if not wanted.numel():
        return 0.0, 0.0
    a, b = (_comparable(each) for each in (wanted, found.to(wanted.device)))
    parts = zip(*(torch.split(each.reshape(-1), _PART) for each in (a, b)), strict=True)
    ends = [torch.cat((torch.stack(x.aminmax()), torch.stack((x - y).aminmax()))) for x, y in parts]
    first, last, least, most = torch.stack(ends).abs().amax(0).tolist()
    gap, size = max(least, most), max(first, last)
    if math.isfinite(gap) and math.isfinite(size):
        return gap, size
    if not torch.equal(a.isfinite(), b.isfinite()) or not torch.equal(a.isnan(), b.isnan()):
        return math.inf, 0.0
    is_number = a.isfinite()
    if not torch.equal(a[a.isinf()], b[b.isinf()]):
        return math.inf, 0.0
    return gap_of(a[is_number], b[is_number])


def is_same(a: Tensor, b: Tensor) -> bool:
    """Returns whether all elements are equal, or NaN on both sides."""
    return torch.equal(a, b) or gap_of(a, b)[0] == 0.0


def gap_text(name: str, wanted: Tensor | None, found: Tensor | None) -> str:
    """Returns the difference of two tensors as text."""
    gap, size = gap_of(wanted, found)
    if wanted is not None and found is not None and wanted.numel() == 1 == found.numel():
        return f"{name} is {float(found):.9g}, expected {float(wanted):.9g}"
    if wanted is None or found is None:
        return f"{name} is {'missing' if found is None else 'in the graph only'}"
    return f"{name} is {gap:.3g} apart, expected at most rounding of {size:.3g}"


def _comparable(x: Tensor) -> Tensor:
    return x if x.dtype in (torch.float32, torch.float64) else x.double()
