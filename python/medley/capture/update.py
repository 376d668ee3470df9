"""From the function of an optimizer, on one element or whole tensors, to the text of its graph
(ops/update_ops.h)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from medley.ambient import own_state
from medley.capture.convert import convert_function
from medley.capture.errors import CaptureError
from medley.whole_tensors import DTYPES

_PRIME = 10007  # elements of a pointwise function's tensors
_NO_PRIME = 2**31 - 1  # sizes of whole tensors are no multiples of it
_PIECES = (3, 1, 4)
_NUMBERS_ARE_TENSORS = (
    "`lr`, `step` and hyperparameters that are functions of the step are tensors without dims: use "
    "torch.where in place of `if`, and hyper={'name': lambda step: table[step]} in place of a table"
)


@dataclasses.dataclass(frozen=True)
class Update:
    """A function `(x, grad, *states, lr=, step=, **hyper)` that returns the new x and states.
    Functions of the step in `hyper` are passed as 0-dim tensors."""

    name: str  # for messages
    function: Callable[..., Any]
    hyper: Mapping[str, Any]
    states: int
    dtype: str

    @property
    def scalars(self) -> list[str]:
        """The names of the values that vary with the step."""
        return ["lr", "step", *(name for name, each in self.hyper.items() if callable(each))]

    def __call__(self, *tensors: Tensor) -> list[Tensor]:
        """Returns the validated results for x, grad, states and scalars."""
        given, numbers = tensors[: 2 + self.states], tensors[2 + self.states :]
        named = dict(zip(self.scalars, numbers, strict=True))
        result = self.function(*given, **{**self.hyper, **named})
        values = list(result) if isinstance(result, (tuple, list)) else [result]
        kept = [given[0], *given[2:]]
        if len(values) != len(kept):
            raise ValueError(
                f"{self.name}: found {len(values)} results, expected {len(kept)}: x and its states"
            )
        for value, like in zip(values, kept, strict=True):
            if not isinstance(value, Tensor):
                raise ValueError(f"{self.name}: found {type(value)}, expected {_shown(like)}")
            if value.shape != like.shape or value.dtype != like.dtype:
                raise ValueError(f"{self.name}: found {_shown(value)}, expected {_shown(like)}")
        return values


@own_state()
def capture_update(update: Update, shapes: Sequence[tuple[int, ...]] | None = None) -> str:
    """Returns the graph of a function of one element, or of tensors of these shapes: x and states.
    Raises ValueError if the results have other types or shapes than the arguments, or if the
    function reads more than one element without `shapes`."""
    kind = DTYPES[update.dtype]
    states = [str(i) for i in range(update.states)]
    inputs = [("parameter", "x"), ("batch", "grad"), *(("state", name) for name in states)]
    sizes = [(_PRIME,)] * len(inputs) if shapes is None else [shapes[0], *shapes]
    # One tensor each: tracing merges inputs that are the same tensor.
    numbers = [torch.ones((), dtype=torch.float64) for _ in update.scalars]
    try:
        with torch.no_grad():
            if shapes is None:
                _check_elements(update, len(inputs), numbers, kind)
            example = [torch.ones(each, dtype=kind) for each in sizes]
            traced = make_fx(functionalize(update.__call__), tracing_mode="fake")(
                *example, *numbers
            )
        return convert_function(
            traced,
            _PRIME if shapes is None else _NO_PRIME,
            [*inputs, *(("scalar", name) for name in update.scalars)],
            [("parameter", "x"), *(("state", name) for name in states)],
        )
    except (CaptureError, RuntimeError) as error:
        line = str(error).strip().splitlines()[0]
        raise ValueError(f"{update.name}: {line}. {_NUMBERS_ARE_TENSORS}") from error


def _shown(tensor: Tensor) -> str:
    return f"{tensor.dtype} of shape {list(tensor.shape)}"


def _check_elements(
    update: Update, count: int, numbers: Sequence[Tensor], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    whole = [torch.rand(sum(_PIECES), dtype=dtype, generator=generator) for _ in range(count)]
    parts = zip(*(torch.split(tensor, list(_PIECES)) for tensor in whole), strict=True)
    pieces = [update(*(piece.clone() for piece in part), *numbers) for part in parts]
    together = update(*(tensor.clone() for tensor in whole), *numbers)
    for found, wanted in zip(zip(*pieces, strict=True), together, strict=True):
        if not torch.allclose(torch.cat(found), wanted, rtol=1e-5, equal_nan=True):
            raise ValueError(
                f"{update.name}: found a result that depends on other elements, expected a "
                "function of each element alone, as parameters are in shards: "
                "medley.optimizer.whole takes functions of whole tensors"
            )
