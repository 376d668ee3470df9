"""The dims of the rows in an example batch: dim 0, or the only other choice that the model
accepts."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from torch import Tensor, nn

from medley.capture.batch import Batch
from medley.capture.errors import CaptureError

_MOST = 64  # choices tried for one number of rows
_MOST_TRIALS = 128  # over all numbers of rows; a count gives the same result on slow machines

Runs = Callable[[Batch], bool]


def is_time_first(model: nn.Module) -> bool:
    """Returns whether layers of a model take [time, rows, width], or one time step of a
    sequence."""
    return any(
        getattr(module, "batch_first", True) is False or isinstance(module, nn.RNNCellBase)
        for module in model.modules()
    )


def found(
    batch: Batch, given: Mapping[str, int | None], runs: Runs, time_first: bool
) -> Iterator[Batch]:
    """Yields the batch with its rows in other dims, each the only choice for a number of rows that
    the model accepts. The first number is that of the batch, then follow other dims of its first
    tensor. The latter require `time_first` layers, or a tensor with as many rows in dim 0. Raises
    CaptureError if several choices work."""
    trials = 0
    for ways in _by_rows(batch, given):
        running = []
        for way in ways:
            has_reason = given or time_first or way.rows == batch.rows or 0 in way.dims
            if not has_reason or way.dims == batch.dims:
                continue
            if (trials := trials + 1) > _MOST_TRIALS:
                return
            if runs(way):
                running.append(way)
        best = _with_most_rows(running)
        if len(best) > 1:
            raise CaptureError(_ambiguous(best))
        yield from best


def time_first(batch: Batch, given: Mapping[str, int | None], runs: Runs) -> Iterator[Batch]:
    """Yields the batch with its rows in dim 1 of a first tensor [time, rows] or [time, rows,
    width], if the model accepts that."""
    place = _first(batch)
    first = batch.tensors[place]
    if given or first.dim() not in (2, 3) or batch.dims[place] != 0:
        return
    ways = [way for ways in _by_rows(batch, {batch.names[place]: 1}) for way in ways]
    best = _with_most_rows([way for way in ways if way.dims != batch.dims and runs(way)])
    if len(best) == 1:
        yield best[0]


def hint(batch: Batch) -> str:
    """Returns the fix if the rows of a tensor are in another dim than assumed, or "" if no other
    dim has their number."""
    for name, tensor, dim in zip(batch.names, batch.tensors, batch.dims, strict=True):
        others = [d for d, size in enumerate(tensor.shape) if size == batch.rows and d != dim]
        if (
            others
            and batch.rows > 1
            and (batch.pictures is None or name not in batch.pictures.names)
        ):
            has = "no rows" if dim is None else f"its rows in dim {dim}"
            return (
                f"batch[{name!r}] is {list(tensor.shape)} and is taken to have {has}; if dim "
                f"{others[0]} has them, pass rows={{{name!r}: {others[0]}}}"
            )
    return ""


def _by_rows(batch: Batch, given: Mapping[str, int | None]) -> Iterator[Sequence[Batch]]:
    """Yields all choices by number of rows."""
    known = [
        tensor.shape[dim]
        for name, tensor in zip(batch.names, batch.tensors, strict=True)
        if (dim := given.get(name)) is not None
    ]
    if known:
        yield _ways(batch, given, int(known[0]))
        return
    place = _first(batch)
    for dim, size in enumerate(batch.tensors[place].shape):
        if size > 0:
            yield _ways(batch, {**given, batch.names[place]: dim}, int(size))


def _first(batch: Batch) -> int:
    return next(each for each, tensor in enumerate(batch.tensors) if tensor.dim() > 0)


def _ways(batch: Batch, given: Mapping[str, int | None], rows: int) -> list[Batch]:
    of_pictures = () if batch.pictures is None else batch.pictures.names
    options = [
        [0] if name in of_pictures else [given[name]] if name in given else _options(tensor, rows)
        for name, tensor in zip(batch.names, batch.tensors, strict=True)
    ]
    dims = itertools.islice(itertools.product(*options), _MOST)
    return [dataclasses.replace(batch, rows=rows, dims=each) for each in dims]


def _options(tensor: Tensor, rows: int) -> list[int | None]:
    return [*(dim for dim, size in enumerate(tensor.shape) if size == rows), None]


def _with_most_rows(ways: Sequence[Batch]) -> list[Batch]:
    """Returns the choices that no other one extends by more tensors with rows."""
    return [way for way in ways if not any(_has_more(other, way) for other in ways)]


def _has_more(one: Batch, other: Batch) -> bool:
    """Returns whether `one` has the rows of `other`, and those of more tensors."""
    pairs = list(zip(one.dims, other.dims, strict=True))
    return one.dims != other.dims and all(b is None or a == b for a, b in pairs)


def _ambiguous(ways: Sequence[Batch]) -> str:
    one, two = ways[:2]
    for name, tensor, a, b in zip(one.names, one.tensors, one.dims, two.dims, strict=True):
        if a != b:
            return (
                f"batch[{name!r}] is {list(tensor.shape)}: found a model that runs with its rows "
                f"in {_named(a)} and in {_named(b)}: pass rows={{{name!r}: {a}}} or another dim"
            )
    return ""


def _named(dim: int | None) -> str:
    return "no dim" if dim is None else f"dim {dim}"
