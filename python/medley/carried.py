"""State per row that one step gives to the next: buffers with the rows of the whole batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from medley.capture.batch import entries
from medley.data.loader import UnreadBatch
from medley.shapes import sizes_of
from medley.whole_tensors import CARRIED, Types, types_of

if TYPE_CHECKING:
    from medley.data.inputs import Inputs
    from medley.graph import Graph


def held_types(types: Types, carry: Collection[str], rows: int) -> dict[Any, Any]:
    """Returns the types of the tensors of a run of `rows` rows, from those of its graph. Carried
    inputs of the batch become buffers."""
    found = dict(types)
    for name in carry:
        dtype, shape = found.pop(("batch", name))
        sizes = [str(rows) if size == "b" else size for size in shape.strip("[]").split(", ")]
        found["buffer", f"{CARRIED}{name}"] = (dtype, f"[{', '.join(sizes)}]")
    return found


def zeros(types: Types) -> dict[str, Tensor]:
    """Returns the initial values of the carried buffers among `types`."""
    return {
        name: torch.zeros(sizes_of(shape), dtype=dtype)
        for (kind, name), (dtype, shape) in types.items()
        if kind == "buffer" and name.startswith(CARRIED)
    }


def require_without(batch: Any, carry: Collection[str]) -> None:
    """Raises ValueError if a batch of a step has a value that steps carry."""
    if carry and not isinstance(batch, UnreadBatch):
        for name in sorted(set(carry) & entries(batch).keys()):
            raise ValueError(
                f"batch[{name!r}]: found a value, expected none: it is carried from step to step; "
                "reset_carried() gives it values"
            )


def with_zeros(batch: Any, graph: Graph, inputs: Inputs) -> Any:
    """Returns the arguments of the model: a batch, and zeros for the carried inputs of its graph.
    Carried positional inputs follow those of the batch."""
    missing = [name for name in graph.carry if name not in entries(batch)]
    if not missing:
        return batch
    held = zeros(held_types(types_of(graph.core), missing, inputs.rows(batch)))
    given = {name.removeprefix(CARRIED): value for name, value in held.items()}
    if isinstance(batch, Mapping):
        return {**batch, **given}
    own = [batch] if isinstance(batch, Tensor) else list(batch)
    return (*own, *(given[name] for name in sorted(given, key=int)))


def checked(values: Mapping[str, Tensor], types: Types) -> dict[str, Tensor]:
    """Returns values of carried inputs by the names of their buffers. Raises ValueError for other
    names, shapes or types."""
    found = zeros(types)
    for name, value in values.items():
        key = f"{CARRIED}{name}"
        if key not in found:
            names = ", ".join(sorted(each.removeprefix(CARRIED) for each in found)) or "none"
            raise ValueError(f"reset_carried(): found {name!r}, expected among {names}")
        if value.shape != found[key].shape or value.dtype != found[key].dtype:
            raise ValueError(
                f"reset_carried(): {name!r}: found {value.dtype} of shape {list(value.shape)}, "
                f"expected {found[key].dtype} of shape {list(found[key].shape)}"
            )
        found[key] = value.detach().cpu().contiguous()
    return found
