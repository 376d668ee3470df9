"""Batches: their tensors, the names of these, and the call of the model with them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from medley.capture.errors import CaptureError
from medley.data.pictures import Pictures
from medley.whole_tensors import CARRIED

Beside = Callable[[Any], dict[str, Tensor]]  # selects further results from the output of a model


@dataclasses.dataclass(frozen=True)
class Batch:
    """The tensors of an example batch by name, and the way to rebuild the call.

    `rows` is the batch size of the example. `dims` is the dim of the rows of each tensor, or None.

    Example:
        found = read_batch({"x": torch.zeros(8, 4), "y": torch.zeros(8)})
        print(found.names, found.rows)
        loss = found.call(model, found.tensors)
    """

    example: Any
    names: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    rows: int
    dims: tuple[int | None, ...]
    elements: tuple[int, ...]  # entries of the dim per row
    pictures: Pictures | None = None

    def call(self, model: nn.Module, tensors: Sequence[Tensor]) -> Any:
        """Calls the model with `tensors` in place of the example's."""
        values = iter(tensors)
        given = map_named(
            self.example, lambda _, old: next(values) if isinstance(old, Tensor) else old
        )
        if isinstance(given, Mapping):
            return model(**given)
        return model(*given) if isinstance(given, (tuple, list)) else model(given)

    def shapes(self, rows: int) -> list[list[int]]:
        """Returns the shapes of the tensors for a batch of `rows` rows."""
        shapes = [list(tensor.shape) for tensor in self.tensors]
        for shape, dim, elements in zip(shapes, self.dims, self.elements, strict=True):
            if dim is not None:
                shape[dim] = rows * elements
        return shapes

    def empty(self, rows: int) -> list[Tensor]:
        """Returns tensors without values for a batch of `rows` rows."""
        pairs = zip(self.tensors, self.shapes(rows), strict=True)
        return [torch.empty(shape, dtype=tensor.dtype) for tensor, shape in pairs]


def entries(batch: Any) -> dict[str, Any]:
    """Returns the entries of a batch by name: "0" for a tensor, positions for a tuple or list, keys
    for a dict. Nested entries are joined by a point: "targets.boxes", "1.0". Raises CaptureError
    for a batch of another type, and for a duplicate name."""
    if isinstance(batch, Tensor):
        return {"0": batch}
    if isinstance(batch, Mapping) and not all(isinstance(key, str) for key in batch):
        raise CaptureError("batch: the keys of a dict must be names of arguments of the model")
    if not isinstance(batch, (Mapping, tuple, list)):
        raise CaptureError(
            "batch: expected a tensor, a tuple or list of tensors, or a dict of tensors by "
            f"argument name; found {type(batch).__name__}"
        )
    found: dict[str, Any] = {}
    for name, value in _leaves(batch, ""):
        if name in found:
            raise CaptureError(f"batch: two values are called {name!r}")
        found[name] = value
    return found


def _leaves(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (Mapping, tuple, list)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, each in items:
            yield from _leaves(each, f"{name}.{key}" if name else str(key))
    else:
        yield name, value


def map_named(batch: Any, change: Callable[[str, Any], Any]) -> Any:
    """Returns a batch of the same form with change(name, value) of each entry, named as in
    `entries`."""

    def rebuilt(value: Any, name: str) -> Any:
        behind = f"{name}." if name else ""
        if isinstance(value, Mapping):
            return {key: rebuilt(each, f"{behind}{key}") for key, each in value.items()}
        if isinstance(value, (tuple, list)):
            each = [rebuilt(one, f"{behind}{place}") for place, one in enumerate(value)]
            return _like(value, each)
        return change(name, value)

    return change("0", batch) if isinstance(batch, Tensor) else rebuilt(batch, "")


def _like(container: tuple[Any, ...] | list[Any], values: list[Any]) -> Any:
    if hasattr(container, "_fields"):  # a named tuple
        return type(container)(*values)
    return type(container)(values)


def read_batch(
    example: Any,
    rows: Mapping[str, int | None] | None = None,
    pictures: Pictures | None = None,
) -> Batch:
    """Returns the tensors of a batch: a tensor, a tuple or list, a dict by argument name, or nested
    ones. `rows` maps names to the dim of the rows, or None. By default it is dim 0 if its size is
    the number of rows: that of the first given dim, else dim 0 of the first tensor. `pictures`: all
    rows have equally many. Other values are passed to the model unchanged. Raises CaptureError for
    any other batch."""
    found = [(n, value) for n, value in entries(example).items() if isinstance(value, Tensor)]
    for name, value in found:
        if value.layout is not torch.strided:
            raise CaptureError(f"batch: {name!r} is sparse: pass it dense (to_dense())")
    of_pictures = set() if pictures is None else {n for n, _ in found} & set(pictures.names)
    known = {name: dim for name, dim in (rows or {}).items() if name not in of_pictures}
    given = _given_dims(dict(found), known)
    others = [(name, value) for name, value in found if name not in of_pictures]
    sizes = [value.shape[dim] for n, value in others if (dim := given.get(n)) is not None]
    sizes += [value.shape[0] for name, value in others if value.dim() > 0 and name not in given]
    count = int(next(iter(sizes), 0))
    if count == 0:
        raise CaptureError("batch: expected at least one tensor with a leading batch size > 0")
    given |= dict.fromkeys(of_pictures, 0)
    dims = tuple(
        given[name] if name in given else 0 if value.dim() > 0 and len(value) == count else None
        for name, value in found
    )
    names, tensors = tuple(name for name, _ in found), tuple(value for _, value in found)
    elements = tuple(len(v) // count if n in of_pictures else 1 for n, v in found)
    return Batch(example, names, tensors, count, dims, elements, pictures)


def _given_dims(
    tensors: Mapping[str, Tensor], rows: Mapping[str, int | None]
) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    sizes: dict[int, str] = {}
    for name, dim in rows.items():
        if name not in tensors:
            raise CaptureError(f"rows: found {name!r}, expected one of {', '.join(tensors)}")
        shape = list(tensors[name].shape)
        if dim is not None and not -len(shape) <= dim < len(shape):
            raise CaptureError(f"rows[{name!r}]: found dim {dim} of shape {shape}, which lacks it")
        found[name] = None if dim is None else dim % len(shape)
        if dim is not None:
            sizes.setdefault(shape[dim], f"{shape[dim]} rows in dim {dim} of {name!r}")
    if len(sizes) > 1:
        raise CaptureError(f"rows: found {', '.join(sizes.values())}, expected as many in all")
    return found


def metrics_of(result: Any) -> dict[str, Tensor]:
    """Returns the scalars other than the loss in the output of a model, by the names of
    `outputs_of`. Integers become floating point."""
    wide = torch.promote_types(torch.get_default_dtype(), torch.float32)  # exact for counts
    return {
        name: _scalar(value if value.is_floating_point() else value.to(wide))
        for name, value in outputs_of(result).items()
        if _is_scalar(value)
    }


def reported(
    result: Any, is_wanted: Callable[[str], bool], carry: Mapping[str, str]
) -> dict[str, Tensor]:
    """Returns the outputs of a step: scalars, wanted tensors of rows, and as "carried:<input>" the
    output that `carry` maps to an input of the next step."""
    held, found = outputs_of(result), metrics_of(result)
    found |= {name: each for name, each in held.items() if name not in found and is_wanted(name)}
    for given, name in carry.items():
        if name not in held:
            raise CaptureError(
                f"carry: found {name!r}, expected one of what the model returns beside the loss: "
                f"{', '.join(held) or 'nothing'}"
            )
        found[f"{CARRIED}{given}"] = held[name]
    return found


def outputs_of(result: Any) -> dict[str, Tensor]:
    """Returns the tensors other than the loss in the output of a model, by name. Names are the keys
    of a dict, the fields of an object, or the positions of a tuple. Nested ones are joined by a
    point: "hidden_states.0"."""
    if isinstance(result, Tensor):  # a Tensor has fields of PyTorch
        return {}
    if hasattr(result, "_asdict"):
        result = result._asdict()
    if isinstance(result, (tuple, list)):
        scalars = [place for place, each in enumerate(result) if _is_scalar(each)]
        if len(scalars) == len(result) == 2:  # (loss sum, normaliser)
            return {}
        held: Mapping[Any, Any] = {
            str(place): each for place, each in enumerate(result) if place not in scalars[:1]
        }
    else:
        held = result if isinstance(result, Mapping) else getattr(result, "__dict__", {})
    named = {name: each for name, each in held.items() if isinstance(name, str) and name != "loss"}
    return {name: each for name, each in _leaves(named, "") if isinstance(each, Tensor)}


def loss_of(result: Any) -> Tensor | tuple[Tensor, Tensor]:
    """Returns the loss, or (loss sum, normaliser), in the output of a model.

    The output is a scalar tensor, an object with `.loss`, a dict with "loss", or two scalars. It
    may be a tuple whose first element is the loss, as in transformers with return_dict=False, or a
    dict of losses to sum, as in detectors of torchvision. Otherwise the loss is the only scalar of
    a tuple, such as (logits, loss).
    """
    if isinstance(result, Mapping) and "loss" not in result and _are_losses(result):
        result = sum(result.values())
    if isinstance(result, Mapping) and "loss" in result:
        result = result["loss"]
    elif not isinstance(result, (Tensor, tuple)) and hasattr(result, "loss"):
        result = result.loss
    if isinstance(result, tuple) and hasattr(result, "loss"):
        result = result.loss
    expected = (
        "expected a scalar tensor, an object with .loss, a dict with 'loss', a tuple that starts "
        "with the loss, or (loss sum, normaliser)"
    )
    if isinstance(result, (tuple, list)):
        scalars = [each for each in result if _is_scalar(each)]
        if len(scalars) == 1 or _starts_with_loss(result):
            result = scalars[0]
    if isinstance(result, tuple) and len(result) == 2:
        total, normaliser = result
        if not isinstance(total, Tensor) or not isinstance(normaliser, Tensor):
            raise CaptureError(
                f"the model returned no loss: {expected}; found a tuple of other things"
            )
        if total.numel() != 1 or normaliser.numel() != 1 or not total.is_floating_point():
            raise CaptureError(
                "the model returned no loss: (loss sum, normaliser) must be two scalars; "
                f"found shapes {list(total.shape)} and {list(normaliser.shape)}: return the loss "
                "first, or alone"
            )
        return _scalar(total), _scalar(normaliser)
    if not isinstance(result, Tensor):
        raise CaptureError(f"the model returned no loss: {expected}; found {type(result).__name__}")
    if result.numel() != 1 or not result.is_floating_point():
        raise CaptureError(
            f"the model returned no loss: {expected}; "
            f"found a {result.dtype} tensor of shape {list(result.shape)}"
        )
    return _scalar(result)


def _starts_with_loss(results: Sequence[Any]) -> bool:
    """Returns whether only the first result is a scalar. Two scalars are a sum and its
    normaliser."""
    scalars = [_is_scalar(each) for each in results]
    return bool(scalars) and scalars[0] and scalars != [True, True]


def _are_losses(results: Mapping[Any, Any]) -> bool:
    return bool(results) and all(
        "loss" in str(name) and _is_scalar(each) and each.is_floating_point()
        for name, each in results.items()
    )


def _is_scalar(x: Any) -> bool:
    return isinstance(x, Tensor) and x.numel() == 1


def _scalar(x: Tensor) -> Tensor:
    return x if x.dim() == 0 else x.reshape(())
