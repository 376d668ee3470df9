"""State that forward writes outside of autograd. A trace cannot see it, so it is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from medley.capture.errors import CaptureError
from medley.capture.modules import is_user_file
from medley.capture.patches import Patch

# The fix for a parameter that forward changes.
KEPT = (
    "keep what forward changes in a buffer or a frozen parameter, and change it by x.copy_(value); "
    "of a trained parameter, compute with a changed copy"
)
_INSTEAD = "for a tensor of this call write x = value"


def replacements() -> Mapping[Any, Callable[..., Any]]:
    """Returns replacements of the functions that give a tensor other memory."""
    return {
        Tensor.data.__set__: _refuse("sets x.data"),  # type: ignore[attr-defined]
        Tensor.grad.__set__: _set_grad,  # type: ignore[union-attr]
    }


def side_door_patches() -> Iterator[Patch]:
    """Yields (owner, name, replacement) for functions that no torch function mode sees."""
    yield Tensor, "set_", _set(Tensor.set_)
    yield nn.Module, "load_state_dict", _load(nn.Module.load_state_dict)
    yield torch._C, "_swap_tensor_impl", _refuse("calls torch.utils.swap_tensors(...)")


def explained(error: Exception) -> str:
    """Returns the fix for a PyTorch error raised by a write to a storage, or ""."""
    if "python storage" in str(error):
        return f"forward writes to the storage of a tensor: {KEPT}; {_INSTEAD}"
    return ""


def _refuse(what: str) -> Callable[..., Any]:
    def refused(*_: Any) -> Any:
        raise CaptureError(f"forward {what}, which no graph sees: {KEPT}; {_INSTEAD}")

    return refused


def _set(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Returns a function that refuses `x.set_(...)` of a model. PyTorch's own calls in a trace
    pass."""
    refused = _refuse("calls x.set_(...)")

    def set_(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        by_model = is_user_file(sys._getframe(1).f_code.co_filename)
        return (refused if by_model else original)(x, *args, **kwargs)

    return set_


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that refuses `module.load_state_dict(state, assign=True)`. A copy
    passes."""
    refused = _refuse("calls load_state_dict(assign=True)")

    def load(module: nn.Module, state: Any, strict: bool = True, assign: bool = False) -> Any:
        return refused() if assign else original(module, state, strict)

    return load


def _set_grad(x: Tensor, value: Tensor | None) -> None:
    """Replaces `x.grad = value`: only the loss makes gradients."""
    if value is not None:
        raise CaptureError(
            "forward sets x.grad, which no graph sees: add a term to the loss, or take a "
            "hook, x.register_hook(f)"
        )
