"""The inputs of a graph in a batch."""

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
    """The size of a batch."""

    rows: int  # rows of the global batch
    length: int  # sequence length; 0 without sequences


@dataclasses.dataclass(frozen=True)
class StepBatch:
    """The part of a batch that a process has for a step."""

    tensors: dict[str, Tensor]
    size: Size
    example: Any = None  # arguments of the model, with at least one row


class OwnRows(Protocol):
    """The assignment of rows of a batch to the processes of a run."""

    def own_rows(self, rows: int) -> Sequence[int]:
        """Returns the rows, of this many, that this process computes."""

    def agreed(self, rows: int, digest: Callable[[], str]) -> int:
        """Returns the number of rows of the whole batch, given the number that this process
        received: all, or those that it computes. `digest` identifies them. Raises ValueError for
        other numbers."""

    def check_same(self, tensors: Mapping[str, tuple[Tensor, RowDim]], rows: int) -> None:
        """Raises ValueError in some steps if the processes have read different data in the batch
        before. `tensors` are those of this batch of `rows` rows, with the dims of the rows."""


class Inputs:
    """The inputs of a graph that come from batches, by name."""

    def __init__(
        self,
        types: Mapping[tuple[str, str], tuple[torch.dtype, str]],
        lengths: Lengths | None = None,
        agree: Callable[[float], float] | None = None,
        pictures: Pictures | None = None,
    ) -> None:
        """`types`: dtype and shape of all inputs of the graph, by kind and name. `agree`: returns
        the largest length among the processes. `pictures`: images of the rows."""
        self._types = {name: type for (kind, name), type in types.items() if kind == "batch"}
        self._rows = {name: row_dim(shape) for name, (_, shape) in self._types.items()}
        self._chosen = lengths
        self._lengths = LengthDims(self._types, lengths)
        self._agree = agree
        self._pictures = pictures

    @property
    def names(self) -> Collection[str]:
        """The names of all inputs."""
        return self._types

    @property
    def pictures(self) -> Pictures | None:
        """The images of a row, as far as known from batches."""
        return self._pictures

    def of(self, types: Mapping[tuple[str, str], tuple[torch.dtype, str]]) -> Inputs:
        """Returns the inputs of another graph of the same model."""
        return Inputs(types, self._chosen, self._agree, self._pictures)

    def read(
        self, batch: Any, global_batch: int, rows: OwnRows, own: bool, whole: bool = False
    ) -> StepBatch:
        """Returns the tensors of a batch; of a batch that is not yet read, those of this process's
        rows. It may have fewer rows than `global_batch`. With `own`, tensors may have only the rows
        that this process computes. With `whole`, they have all rows. Raises ValueError for an
        invalid batch."""
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
        if own or whole:  # not the only process
            rows.check_same({n: (t, dim) for n, t, dim in self._with_rows(tensors)}, count)
        length = self._length(tensors)
        padded = self._lengths.padded(batch, tensors, length)
        if padded is not batch:
            tensors = _named(padded, self._types)
        if not mine:
            # A process without rows receives one, because an empty batch cannot be collated.
            tensors |= {
                name: dim.part(tensor, 0, 0)
                for name, tensor, dim in self._with_rows(tensors)
                if dim.size(tensor) == dim.elements
            }
        return StepBatch(tensors, Size(count, length), padded)

    def rows(self, batch: Any) -> int:
        """Returns the number of rows of a batch here, or 0 if it is unknown."""
        if isinstance(batch, UnreadBatch):
            return batch.size or 0
        of_pictures = () if self._pictures is None else self._pictures.names
        for name, tensor, dim in self._with_rows(_named(batch, self._types)):
            if name not in of_pictures:
                return dim.size(tensor) // dim.elements
        return 0

    def fingerprint(self, batch: Any, global_batch: int) -> str:
        """Returns a digest of a batch that must be equal in all processes: its number of rows and,
        below `global_batch`, its values. It distinguishes a process's own rows from all rows."""
        if isinstance(batch, UnreadBatch):
            return f"{batch.size or global_batch} rows"
        tensors = _named(self._with_pictures(batch), self._types)
        count = self._count(tensors, global_batch, None)
        return f"{count} rows" + (f" {self._digest(tensors)}" if count < global_batch else "")

    def longest(self, batch: Any) -> Any:
        """Returns the batch padded to the planned length and number of images."""
        batch = self._with_pictures(batch)
        return self._lengths.padded(batch, _named(batch, self._types), self._lengths.planned)

    def planned(self, rows: int) -> Size:
        """Returns the size of a batch of `rows` rows with the planned length."""
        return Size(rows, self._lengths.planned)

    def tokens(self, size: Size) -> float:
        """Returns the number of token ids in a global batch, or of its rows if it has none."""
        return float(size.rows * (size.length or 1))

    def _with_pictures(self, batch: Any) -> Any:
        """Returns the batch with equally many images in each row, if rows have images."""
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
        """Returns the rows of the global batch of these tensors. They have all rows, or those of
        this process if `processes` is given."""
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
        """Yields name, tensor and row dim of the inputs with rows."""
        for name, tensor in tensors.items():
            dim = self._rows.get(name)
            if dim is not None and tensor.dim() > 0:
                yield name, tensor, dim


def _named(batch: Any, inputs: Collection[str]) -> dict[str, Tensor]:
    """Returns the tensors of a batch by name. Raises ValueError for inputs that are no tensors or
    have no memory of their own."""
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
