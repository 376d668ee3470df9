"""Replacements inside peft while a model with its adapters is captured. LoHa and LoKr draw a random
value to decide whether to skip a layer, even if `module_dropout` is 0."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from medley.capture.errors import CaptureError
from medley.capture.patches import Patch


def peft_patches() -> Iterator[Patch]:
    """Yields (owner, name, replacement) for the imported modules of peft."""
    for kind in ("loha", "lokr"):
        layer = sys.modules.get(f"peft.tuners.{kind}.layer")
        if hasattr(layer, "torch"):
            yield layer, "torch", _Torch()


class _Torch:
    """PyTorch as these modules see it. They use rand() only for that decision."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    @staticmethod
    def rand(*_: Any) -> _Draw:
        return _Draw()


class _Draw:
    def __gt__(self, share: float) -> bool:
        if share:
            raise CaptureError(f"module_dropout: found {share}, expected 0: use dropout of values")
        return True
