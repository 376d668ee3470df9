"""What is replaced inside bitsandbytes while a model with its 4-bit layers is captured.

The packed weight stays as it is, a frozen parameter of bytes, and is made numbers of where it is
used: once in forward, and once more in backward, so that nothing of its full size is kept between.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from medley.capture.errors import CaptureError

_PER_BYTE = 2
_scales: weakref.WeakKeyDictionary[Any, Tensor] = weakref.WeakKeyDictionary()


def bitsandbytes_patches() -> Iterator[tuple[Any, str, Any]]:
    """Yields (owner, name, replacement) for bitsandbytes, if it has been imported."""
    modules = sys.modules.get("bitsandbytes.nn.modules")
    if modules is not None and hasattr(modules, "Linear4bit"):
        yield modules.Linear4bit, "forward", linear_4bit


def linear_4bit(self: Any, x: Tensor) -> Tensor:
    """The forward of bitsandbytes.nn.Linear4bit, of ops that rules know."""
    state = self.quant_state
    if state is None:
        raise CaptureError(
            "a Linear4bit whose weight is not quantised yet: expected model.to(device) before"
        )
    rows, columns = state.shape
    if rows * columns % state.blocksize:
        raise CaptureError(
            f"a Linear4bit of {rows} x {columns}: expected a multiple of its blocks of "
            f"{state.blocksize} numbers"
        )
    dtype = self.compute_dtype or x.dtype
    packed = self.weight.view(torch.uint8).view(-1, state.blocksize // _PER_BYTE)
    scales = _scales_of(state)
    y: Tensor = _Linear.apply(x.to(dtype), packed, scales, state.code, (rows, columns))
    if self.bias is not None:
        y = y + self.bias.to(dtype)
    return y.to(x.dtype)


def _scales_of(state: Any) -> Tensor:
    """Returns the largest number of each block, which may be quantised itself."""
    if not state.nested:
        return state.absmax  # type: ignore[no-any-return]
    if state not in _scales:
        from bitsandbytes import functional

        with _disable_current_modes(), torch.no_grad():
            scales = functional.dequantize_blockwise(state.absmax, state.state2)
            _scales[state] = (scales + state.offset).float()
    return _scales[state]


def _weight(packed: Tensor, scales: Tensor, code: Tensor, sizes: Any, dtype: torch.dtype) -> Tensor:
    return torch.ops.medley.dequantize_4bit(  # type: ignore[no-any-return]
        packed, scales, code, dtype
    ).view(sizes)


class _Linear(torch.autograd.Function):
    """x times a weight that is not kept for backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, scales: Tensor, code: Tensor, sizes: Any) -> Tensor:
        """Returns x @ weight.T."""
        ctx.save_for_backward(packed, scales, code)
        ctx.sizes = sizes
        return F.linear(x, _weight(packed, scales, code, sizes, x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradient of x; nothing else is trained."""
        (grad,) = grads
        weight = _weight(*ctx.saved_tensors, ctx.sizes, grad.dtype)
        return grad @ weight, None, None, None, None
