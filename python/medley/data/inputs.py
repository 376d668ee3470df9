"""What a graph takes of a batch."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from medley.capture.batch import entries
from medley.data.loader import UnreadBatch


class Inputs:
    """The inputs of a graph that come from batches, by name."""

    def __init__(self, types: Mapping[tuple[str, str], tuple[torch.dtype, str]]) -> None:
        """`types`: dtype and shape of everything that the graph takes, by kind and name."""
        self._types = {name: type for (kind, name), type in types.items() if kind == "batch"}

    def read(
        self, batch: Any, rows: Sequence[int], global_batch: int, own: bool
    ) -> dict[str, Tensor]:
        """Returns the tensors of a batch: those of `rows` where that is still to be read. Raises
        ValueError for what is no batch, and unless `own` is true for some rows of one."""
        if isinstance(batch, UnreadBatch):
            tensors = _named(batch.rows(rows or [0]), self._types)
        else:
            tensors = _named(batch, self._types)
            if not own:
                self._require_global(tensors, global_batch)
        if rows:
            return tensors
        # Who has none is given one, since nobody collates nothing.
        return {
            name: tensor[:0] if self._rows_of(name) and len(tensor) == 1 else tensor
            for name, tensor in tensors.items()
        }

    def tokens(self, global_batch: int) -> float:
        """Returns the token ids in a global batch, or its rows if it has none."""
        for dtype, shape in self._types.values():
            sizes = shape.strip("[]").split(", ")
            if dtype == torch.int64 and len(sizes) == 2 and sizes[0] == "b":
                return float(global_batch * int(sizes[1]))
        return float(global_batch)

    def _require_global(self, tensors: Mapping[str, Tensor], global_batch: int) -> None:
        for name, tensor in tensors.items():
            rows = self._rows_of(name) * global_batch
            if rows and tensor.dim() and len(tensor) != rows:
                raise ValueError(
                    f'batch["{name}"]: found {len(tensor)} rows, expected the {rows} of the global '
                    "batch: in an elastic run a step may be made again with other rows, which "
                    "medley.Loader then reads"
                )

    def _rows_of(self, name: str) -> int:
        """Returns how long a tensor is for each row of a batch; 0 if it has no rows."""
        _, shape = self._types.get(name, (None, ""))
        factors = shape.strip("[]").split(", ")[0].split("*")
        if "b" not in factors:
            return 0
        return math.prod(int(each) for each in factors if each != "b")


def _named(batch: Any, inputs: Collection[str]) -> dict[str, Tensor]:
    """Returns the tensors of a batch by name. Raises ValueError for inputs that are none, or that
    have no values of their own."""
    held = entries(batch)
    for name in held.keys() & inputs:
        value = held[name]
        found = "" if isinstance(value, Tensor) else type(value).__name__
        if not found and value.is_meta:
            found = "a tensor on meta"
        elif not found and value.layout != torch.strided:
            found = "a sparse tensor"
        if found:
            raise ValueError(f'batch["{name}"]: found {found}, expected a dense tensor')
    return {name: value for name, value in held.items() if isinstance(value, Tensor)}
