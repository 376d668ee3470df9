"""Replacements inside bitsandbytes while a model with its 4-bit layers is captured. The packed
weight stays a frozen parameter of bytes. It is dequantised where it is used, once in forward and
once in backward, so the full-size weight is never stored."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from medley.capture.errors import CaptureError
from medley.capture.patches import Patch

_PER_BYTE = 2  # values per byte


def bitsandbytes_patches() -> Iterator[Patch]:
    """Yields (owner, name, replacement) for bitsandbytes if it is imported."""
    modules = sys.modules.get("bitsandbytes.nn.modules")
    if modules is not None and hasattr(modules, "Linear4bit"):
        yield modules.Linear4bit, "forward", linear_4bit
    if modules is not None and hasattr(modules, "Linear8bitLt"):
        yield modules.Linear8bitLt, "forward", _refuse_8bit


def linear_4bit(self: Any, x: Tensor) -> Tensor:
    """Computes the forward of bitsandbytes.nn.Linear4bit by ops with sharding rules. Requires:
    `quantized.as_buffers` has given the layer its buffers."""
    state = self.quant_state
    if state is None:
        raise CaptureError(
            "a Linear4bit whose weight is not quantised yet: expected model.to(device) before"
        )
    if getattr(state, "packing_format_for_cpu", False):
        raise CaptureError(
            "a Linear4bit that an evaluation on the CPU has repacked: expected a model that is "
            "captured before it is evaluated"
        )
    rows, columns = state.shape
    if rows * columns % state.blocksize:
        raise CaptureError(
            f"a Linear4bit of {rows} x {columns}: expected a multiple of its blocks of "
            f"{state.blocksize} numbers"
        )
    packed = self.weight
    if packed.dtype != torch.uint8:
        raise CaptureError(
            f"a Linear4bit whose bytes are stored as {packed.dtype}: expected "
            "bnb_4bit_quant_storage=torch.uint8"
        )
    dtype = self.compute_dtype or x.dtype
    y: Tensor = _Linear.apply(  # type: ignore[no-untyped-call]
        x.to(dtype),
        packed.view(-1, state.blocksize // _PER_BYTE),
        self.weight_absmax,
        self.weight_code,
        (rows, columns),
        state.dtype,
    )
    if self.bias is not None:
        y = y + self.bias.to(dtype)
    return y.to(x.dtype)


def _refuse_8bit(*_: Any, **__: Any) -> Tensor:
    raise CaptureError(
        "bitsandbytes' Linear8bitLt looks into its input for outliers, whose number is not known: "
        "expected load_in_4bit"
    )


class _Linear(torch.autograd.Function):
    """Multiplies x by a frozen weight and saves only its bytes for backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        packed: Tensor,
        absmax: Tensor,
        code: Tensor,
        sizes: tuple[int, int],
        dtype: torch.dtype,
    ) -> Tensor:
        """Returns x @ weight.T. `dtype`: that of the weight before packing, to which it is rounded
        first."""
        ctx.save_for_backward(packed, absmax, code)
        ctx.sizes, ctx.dtype = sizes, dtype
        return F.linear(x, _weight(packed, absmax, code, sizes, dtype).to(x.dtype))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Returns the gradient of x, the only trained input."""
        (grad,) = grads
        packed, absmax, code = ctx.saved_tensors
        weight = _weight(packed, absmax, code, ctx.sizes, ctx.dtype).to(grad.dtype)
        return grad @ weight, None, None, None, None, None


def _weight(
    packed: Tensor, absmax: Tensor, code: Tensor, sizes: tuple[int, int], dtype: torch.dtype
) -> Tensor:
    return torch.ops.medley.dequantize_4bit(  # type: ignore[no-any-return]
        packed, absmax, code, dtype
    ).view(sizes)
