"""The dim of a batch tensor that has the rows, as the shape in a graph says: "[3, b, 5]"."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


@dataclasses.dataclass(frozen=True)
class RowDim:
    """Which dim has the rows, and how many elements of it belong to each row."""

    dim: int
    elements: int

    def size(self, tensor: Tensor) -> int:
        """Returns how long a tensor is in the dim; 0 if it has fewer dims."""
        return int(tensor.shape[self.dim]) if self.dim < tensor.dim() else 0

    def part(self, tensor: Tensor, first: int, count: int) -> Tensor:
        """Returns `count` rows of a tensor from the row `first` on."""
        return tensor.narrow(self.dim, first * self.elements, count * self.elements)

    def at(self, tensor: Tensor, rows: Sequence[int]) -> Tensor:
        """Returns these rows of a tensor."""
        places = torch.tensor(rows, dtype=torch.int64).reshape(-1, 1) * self.elements
        places = (places + torch.arange(self.elements)).flatten()
        return tensor.index_select(self.dim, places.to(tensor.device))


def row_dim(shape: str) -> RowDim | None:
    """Returns the first dim of a shape that is a multiple of the rows, b; None if there is none."""
    for dim, size in enumerate(shape.strip("[]").split(", ")):
        factors = size.split("*")
        if "b" in factors:
            return RowDim(dim, math.prod(int(each) for each in factors if each != "b"))
    return None


def row_dims(types: Mapping[tuple[str, str], tuple[torch.dtype, str]]) -> dict[str, int | None]:
    """Returns the dim that has the rows of each batch input of a graph; None: it has no rows.
    `types`: dtype and shape of all that the graph takes, by kind and name."""
    found = {name: row_dim(shape) for (kind, name), (_, shape) in types.items() if kind == "batch"}
    return {name: None if each is None else each.dim for name, each in found.items()}
