"""From a function of one element, an optimizer's, to the text of its graph (ops/update_ops.h)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functionalize
from torch.fx.experimental.proxy_tensor import make_fx

from medley.ambient import own_state
from medley.capture.convert import convert_function
from medley.capture.errors import CaptureError

_PRIME = 10007
_PIECES = (3, 1, 4)
_DTYPES = {"f32": torch.float32, "f64": torch.float64}


@own_state()
def capture_pointwise(
    function: Callable[..., Any], states: int, hyper: Mapping[str, float], dtype: str
) -> str:
    """Returns the graph of `function(x, grad, *states, lr=, step=, **hyper)`.

    Raises ValueError for a function that does not return what it was given, changed, or looks at
    more than one element.
    """
    kind = _DTYPES[dtype]

    def flat(*tensors: Tensor) -> list[Tensor]:
        *given, lr, step = tensors
        result = function(*given, lr=lr, step=step, **hyper)
        values = list(result) if isinstance(result, (tuple, list)) else [result]
        expected = f"{1 + states} tensors of the shape and type of x"
        if len(values) != 1 + states:
            raise ValueError(f"pointwise: found {len(values)} results, expected {expected}")
        for value in values:
            if not isinstance(value, Tensor):
                raise ValueError(f"pointwise: found {type(value)}, expected {expected}")
            if value.shape != given[0].shape or value.dtype != given[0].dtype:
                found = f"{value.dtype} of shape {list(value.shape)}"
                raise ValueError(f"pointwise: found {found}, expected {expected}")
        return values

    names = [str(i) for i in range(states)]
    inputs = [("parameter", "x"), ("batch", "grad"), *(("state", name) for name in names)]
    # Two tensors: tracing takes one that stands twice for one input.
    numbers = [torch.ones((), dtype=torch.float64), torch.ones((), dtype=torch.float64)]
    try:
        with torch.no_grad():
            _check_elements(flat, len(inputs), numbers, kind)
            example = [torch.ones(_PRIME, dtype=kind) for _ in inputs]
            traced = make_fx(functionalize(flat), tracing_mode="fake")(*example, *numbers)
        return convert_function(
            traced,
            _PRIME,
            [*inputs, ("scalar", "lr"), ("scalar", "step")],
            [("parameter", "x"), *(("state", name) for name in names)],
        )
    except (CaptureError, RuntimeError) as error:
        raise ValueError(f"pointwise: {error}") from error


def _check_elements(
    flat: Callable[..., list[Tensor]], count: int, numbers: list[Tensor], dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(0)
    whole = [torch.rand(sum(_PIECES), dtype=dtype, generator=generator) for _ in range(count)]
    parts = zip(*(torch.split(tensor, list(_PIECES)) for tensor in whole), strict=True)
    pieces = [flat(*(piece.clone() for piece in part), *numbers) for part in parts]
    together = flat(*(tensor.clone() for tensor in whole), *numbers)
    for found, wanted in zip(zip(*pieces, strict=True), together, strict=True):
        if not torch.allclose(torch.cat(found), wanted, rtol=1e-5, equal_nan=True):
            raise ValueError(
                "pointwise: found a result that depends on other elements, expected a function of "
                "each element alone: parameters are in shards"
            )
