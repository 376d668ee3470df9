"""Checks of a model before it runs: scripted or lazy modules."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from medley.capture.errors import CaptureError


def check_model(model: Any) -> None:
    """Raises CaptureError for a model that can never be traced, naming the module and a
    replacement."""
    if not isinstance(model, nn.Module):
        raise CaptureError(
            f"model: expected a torch.nn.Module, found {type(model).__name__}: capture reads "
            "parameters by the names that they have in a module"
        )
    for path, module in model.named_modules():
        if reason := _reason(module):
            raise CaptureError(f"module {path!r}: {reason}")


def _reason(module: nn.Module) -> str:
    """Returns why a module cannot be traced, or ""."""
    if isinstance(module, torch.jit.ScriptModule):
        return (
            "it is a TorchScript module, which has no Python to trace: pass the nn.Module that it "
            "was made from"
        )
    lazy = [name for name, each in module._parameters.items() if each is not None and is_lazy(each)]
    if lazy:
        return (
            f"its parameter {lazy[0]!r} has no shape yet ({type(module).__name__}): call the model "
            "once on an example batch before"
        )
    return ""
