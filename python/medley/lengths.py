"""Batches of sequences shorter than the planned ones."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from medley.capture.batch import map_named

_PADDING = {"labels": -100, "targets": -100}  # 0 for all others


@dataclasses.dataclass(frozen=True)
class Lengths:
    """The dims of a batch that have the sequence length, and the lengths to which batches are
    padded.

    `dynamic` names these dims: {"input_ids": {1: "length"}}. By default they are all dims as long
    as the token ids, which are i64 [rows, length] or [length, rows]. A batch may have any length up
    to the planned one. Each new length is prepared once.

    `buckets` lists the lengths to prepare. A batch is padded at the end to the next one. You assert
    that padding does not change the result. Labels are padded with -100, which losses ignore; masks
    and other inputs with 0, or with the value in `padding`. A causal model gives the same result as
    with a mask.

    Example:
        lengths = medley.Lengths(buckets=(128, 256))
        trainer = medley.Trainer(model, graph, plan, lengths=lengths)
    """

    dynamic: Mapping[str, Mapping[int, str]] | None = None  # dim to name, by input
    buckets: Sequence[int] = ()  # the planned length is always included
    padding: Mapping[str, float] = dataclasses.field(default_factory=dict)  # value by input


class LengthDims:
    """The length dims of the batch inputs of a graph."""

    def __init__(
        self, types: Mapping[str, tuple[torch.dtype, str]], chosen: Lengths | None
    ) -> None:
        """`types`: dtype and shape of the batch inputs. Raises ValueError for dims that are missing
        or of other lengths."""
        lengths = chosen or Lengths()
        sizes = {name: shape.strip("[]").split(", ") for name, (_, shape) in types.items()}
        self._padding = lengths.padding
        if lengths.dynamic is None:
            self.dims, self.planned = _found(types, sizes)
        else:
            self.dims, self.planned = _given(lengths.dynamic, sizes)
        self._buckets = sorted({*lengths.buckets, self.planned}) if lengths.buckets else []
        if self._buckets and (self._buckets[0] < 1 or self._buckets[-1] > self.planned):
            raise ValueError(
                f"Lengths: buckets: found {list(lengths.buckets)}, expected lengths from 1 to the "
                f"planned {self.planned}"
            )

    def length(self, tensors: Mapping[str, Tensor]) -> int:
        """Returns the sequence length of a batch. Raises ValueError if it exceeds the planned one,
        or if lengths differ."""
        found: dict[int, str] = {}
        for name, dims in self.dims.items():
            tensor = tensors.get(name)
            for dim in dims:
                if tensor is not None and dim < tensor.dim():
                    found.setdefault(tensor.shape[dim], f'batch["{name}"]')
        if not found:
            return self.planned
        if len(found) > 1:
            places = ", ".join(f"{where} of length {length}" for length, where in found.items())
            raise ValueError(f"found {places}, expected one length")
        ((length, where),) = found.items()
        if not 0 < length <= self.planned:
            raise ValueError(
                f"{where}: found a length of {length}, expected at most the planned {self.planned}"
            )
        return length

    def bucket(self, length: int) -> int:
        """Returns the length to which a batch is padded. Raises ValueError for a length of 1: a
        plan cannot divide that dim as planned."""
        padded = next((each for each in self._buckets if each >= length), length)
        if padded == 1 < self.planned:
            raise ValueError(
                "batch: found sequences of length 1, expected at least 2; "
                "lengths=medley.Lengths(buckets=[2, ...]) pads shorter ones"
            )
        return padded

    def padded(self, batch: Any, tensors: Mapping[str, Tensor], length: int) -> Any:
        """Returns the batch with its tensors padded to `length`."""
        if all(
            tensors[name].shape[dim] == length
            for name, dims in self.dims.items()
            for dim in dims
            if name in tensors and dim < tensors[name].dim()
        ):
            return batch

        def pad(name: str, value: Any) -> Any:
            for dim in self.dims.get(name, ()) if isinstance(value, Tensor) else ():
                if value.shape[dim] < length:
                    shape = list(value.shape)
                    shape[dim] = length - value.shape[dim]
                    fill = self._padding.get(name, _PADDING.get(name, 0))
                    value = torch.cat([value, value.new_full(shape, fill)], dim)
            return value

        return map_named(batch, pad)


def _found(
    types: Mapping[str, tuple[torch.dtype, str]], sizes: Mapping[str, list[str]]
) -> tuple[dict[str, Collection[int]], int]:
    """Returns the dims by name, and the planned length, of a model with token ids."""
    for name, (dtype, _) in types.items():
        if dtype == torch.int64 and len(sizes[name]) == 2 and "b" in sizes[name]:
            place = 1 - sizes[name].index("b")
            length = sizes[name][place]
            if not length.isdigit():
                continue
            first = 0 if place == 0 else 1  # a table [length, width] has no rows
            dims = {
                other: [dim for dim, size in enumerate(shape) if size == length and dim >= first]
                for other, shape in sizes.items()
                if "b" in shape or first
            }
            return {other: found for other, found in dims.items() if found}, int(length)
    return {}, 0


def _given(
    dynamic: Mapping[str, Mapping[int, str]], sizes: Mapping[str, list[str]]
) -> tuple[dict[str, Collection[int]], int]:
    dims: dict[str, Collection[int]] = {}
    planned: set[str] = set()
    for name, entries in dynamic.items():
        shape = sizes.get(name)
        if shape is None:
            raise ValueError(
                f"Lengths: dynamic: found {name!r}, expected one of {', '.join(sorted(sizes))}"
            )
        for dim in entries:
            if not 0 <= dim < len(shape) or not shape[dim].isdigit():
                raise ValueError(
                    f"Lengths: dynamic[{name!r}]: found dim {dim}, expected one of 0 to "
                    f"{len(shape) - 1}, which is no multiple of the rows"
                )
            planned.add(shape[dim])
        dims[name] = list(entries)
    if len(planned) != 1:
        raise ValueError(
            f"Lengths: dynamic: found dims of {len(planned)} lengths, expected one length"
        )
    return dims, int(planned.pop())
