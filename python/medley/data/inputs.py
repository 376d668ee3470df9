"""What a graph takes of a batch."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from medley.capture.batch import entries
from medley.data.loader import UnreadBatch
from medley.data.pictures import Pictures
from medley.data.row_dim import RowDim, row_dim
from medley.lengths import LengthDims, Lengths


@dataclasses.dataclass(frozen=True)
class Size:
    """Of a batch, beside its planned one."""

    rows: int  # of the global batch
    length: int  # of its sequences; 0 of a batch that has none


@dataclasses.dataclass(frozen=True)
class StepBatch:
    """What a process has of a batch for a step."""

    tensors: dict[str, Tensor]
    size: Size
    example: Any = None  # what the model is called with, of at least one row


class OwnRows(Protocol):
    """Which rows of a batch the processes of a run compute."""

    def own_rows(self, rows: int) -> Sequence[int]:
        """Returns which of so many rows this process computes."""

    def agreed(self, rows: int, digest: Callable[[], str]) -> int:
        """Returns of how many rows the batch is of which this process is given so many, all or
        those that it computes; `digest` tells what these are. Raises ValueError for others."""

    def check_same(self, tensors: Mapping[str, tuple[Tensor, RowDim]], rows: int) -> None:
        """Raises ValueError, now and then, if the processes have not read the same of the batch
        before; given the tensors of this one, which has so many rows, with where those are."""


class Inputs:
    """The inputs of a graph that come from batches, by name."""

    def __init__(
        self,
        types: Mapping[tuple[str, str], tuple[torch.dtype, str]],
        lengths: Lengths | None = None,
        agree: Callable[[float], float] | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        """`types`: dtype and shape of everything that the graph takes, by kind and name. `agree`
        returns the largest of the lengths that the processes have. `pictures`: of the rows."""
        self._types = {name: type for (kind, name), type in types.items() if kind == "batch"}
        self._rows = {name: row_dim(shape) for name, (_, shape) in self._types.items()}
        self._chosen = lengths
        self._lengths = LengthDims(self._types, lengths)
        self._agree = agree
        self._pictures = pictures

    @property
    def names(self) -> Collection[str]:
        """Those of all."""
        return self._types

    @property
    def pictures(self) -> Pictures | None:
        """The pictures of a row, as far as batches have shown them."""
        return self._pictures

    def of(self, types: Mapping[tuple[str, str], tuple[torch.dtype, str]]) -> Inputs:
        """Returns those of another graph of the same model."""
        return Inputs(types, self._chosen, self._agree, self._pictures)

    def read(
        self, batch: Any, global_batch: int, rows: OwnRows, own: bool, whole: bool = False
    ) -> StepBatch:
        """Returns the tensors of a batch: where it is still to be read, those of this process's
        rows. Fewer rows than `global_batch` are a batch, too; if `own`, tensors may have only the
        rows that this process computes of a whole one; if `whole`, they have all of one. Raises
        ValueError for what is no batch."""
        if isinstance(batch, UnreadBatch):
            count = batch.size or global_batch
            mine = rows.own_rows(count)
            batch = self._with_pictures(batch.rows(mine or [0]))
            tensors = _named(batch, self._types)
        else:
            batch = self._with_pictures(batch)
            tensors = _named(batch, self._types)
            if whole:
                self._require_whole(tensors, global_batch)
            count = self._count(tensors, global_batch, rows if own else None)
            mine = rows.own_rows(count)
        if own or whole:  # not alone
            rows.check_same({n: (t, dim) for n, t, dim in self._with_rows(tensors)}, count)
        length = self._length(tensors)
        padded = self._lengths.padded(batch, tensors, length)
        if padded is not batch:
            tensors = _named(padded, self._types)
        if not mine:
            # Who has none is given one, since nobody collates nothing.
            tensors |= {
                name: dim.part(tensor, 0, 0)
                for name, tensor, dim in self._with_rows(tensors)
                if dim.size(tensor) == dim.elements
            }
        return StepBatch(tensors, Size(count, length), padded)

    def rows(self, batch: Any) -> int:
        """Returns how many rows a batch has here; 0 of one that does not say."""
        if isinstance(batch, UnreadBatch):
            return batch.size or 0
        of_pictures = () if self._pictures is None else self._pictures.names
        for name, tensor, dim in self._with_rows(_named(batch, self._types)):
            if name not in of_pictures:
                return dim.size(tensor) // dim.elements
        return 0

    def told(self, batch: Any, global_batch: int) -> str:
        """Returns what is the same in all processes of a batch of which each has all rows, or reads
        its own: how many there are and, of fewer than `global_batch`, what they are, so that
        nobody takes its own ones for all."""
        if isinstance(batch, UnreadBatch):
            return f"{batch.size or global_batch} rows"
        tensors = _named(self._with_pictures(batch), self._types)
        count = self._count(tensors, global_batch, None)
        return f"{count} rows" + (f" {self._digest(tensors)}" if count < global_batch else "")

    def longest(self, batch: Any) -> Any:
        """Returns the batch with sequences as long as planned, and as many pictures."""
        batch = self._with_pictures(batch)
        return self._lengths.padded(batch, _named(batch, self._types), self._lengths.planned)

    def planned(self, rows: int) -> Size:
        """Returns the size of a batch of so many rows that is as long as planned."""
        return Size(rows, self._lengths.planned)

    def tokens(self, size: Size) -> float:
        """Returns the token ids in a global batch, or its rows if it has none."""
        return float(size.rows * (size.length or 1))

    def _with_pictures(self, batch: Any) -> Any:
        """Returns the batch with equally many pictures for each row, if rows have some."""
        if self._pictures is None or not self._pictures.are_in(batch):
            return batch
        self._pictures = self._pictures.of(batch)
        like = {
            name: (dtype, [int(size) for size in shape.strip("[]").split(", ")[1:]])
            for name, (dtype, shape) in self._types.items()
            if name in self._pictures.names
        }
        return self._pictures.padded(batch, like)

    def _length(self, tensors: Mapping[str, Tensor]) -> int:
        length = self._lengths.length(tensors)
        if self._agree is not None:
            length = int(self._agree(length))
        return self._lengths.bucket(length)

    def _count(self, tensors: Mapping[str, Tensor], most: int, processes: OwnRows | None) -> int:
        """Returns the rows of the global batch that these are of: all of them, unless `processes`
        may be given a part."""
        for name, tensor, dim in self._with_rows(tensors):
            rows, rest = divmod(dim.size(tensor), dim.elements)
            if rest or not 0 < rows <= most:
                raise ValueError(
                    f'batch["{name}"]: found {dim.size(tensor)} rows'
                    f"{f' in dim {dim.dim}' if dim.dim else ''}, expected {most * dim.elements} or "
                    "fewer" + (f" in multiples of {dim.elements}" if dim.elements > 1 else "")
                )
            if processes is None:
                return rows
            return processes.agreed(rows, lambda: self._digest(tensors))
        return most

    def _require_whole(self, tensors: Mapping[str, Tensor], global_batch: int) -> None:
        for name, tensor, dim in self._with_rows(tensors):
            if dim.size(tensor) != dim.elements * global_batch:
                raise ValueError(
                    f'batch["{name}"]: found {dim.size(tensor)} rows, expected the '
                    f"{dim.elements * global_batch} of the global batch: in an elastic run a step "
                    "may be made again with other rows, which medley.Loader then reads"
                )

    def _digest(self, tensors: Mapping[str, Tensor]) -> str:
        found = zlib.crc32(b"")
        for _, tensor, _ in sorted(self._with_rows(tensors), key=lambda each: each[0]):
            flat = tensor.detach().cpu().contiguous().reshape(-1)
            found = zlib.crc32(flat.view(torch.uint8).numpy().data, found)
        return str(found)

    def _with_rows(self, tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor, RowDim]]:
        """Yields name and tensor of what has rows, and where those are."""
        for name, tensor in tensors.items():
            dim = self._rows.get(name)
            if dim is not None and tensor.dim() > 0:
                yield name, tensor, dim


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
