"""The dim of a batch tensor that has the rows, given by a shape in a graph: "[3, b, 5]"."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class RowDim:
    """The dim of the rows, and the number of its elements per row."""

    dim: int
    elements: int

    def size(self, tensor: Tensor) -> int:
        """Returns the size of a tensor in this dim, or 0 if it has fewer dims."""
        return int(tensor.shape[self.dim]) if self.dim < tensor.dim() else 0

    def part(self, tensor: Tensor, first: int, count: int) -> Tensor:
        """Returns `count` rows of a tensor, starting at row `first`."""
        return tensor.narrow(self.dim, first * self.elements, count * self.elements)

    def at(self, tensor: Tensor, rows: Sequence[int]) -> Tensor:
        """Returns these rows of a tensor."""
        places = torch.tensor(rows, dtype=torch.int64).reshape(-1, 1) * self.elements
        places = (places + torch.arange(self.elements)).flatten()
        return tensor.index_select(self.dim, places.to(tensor.device))


def row_dim(shape: str) -> RowDim | None:
    """Returns the first dim of a shape that is a multiple of the rows, b, or None."""
    for dim, size in enumerate(shape.strip("[]").split(", ")):
        factors = size.split("*")
        if "b" in factors:
            return RowDim(dim, math.prod(int(each) for each in factors if each != "b"))
    return None


def row_dims(types: Mapping[tuple[str, str], tuple[torch.dtype, str]]) -> dict[str, int | None]:
    """Returns the dim of the rows of each batch input of a graph, or None. `types`: dtype and shape
    of all inputs by kind and name."""
    found = {name: row_dim(shape) for (kind, name), (_, shape) in types.items() if kind == "batch"}
    return {name: None if each is None else each.dim for name, each in found.items()}
