"""What is replaced inside the peft package while a model with its adapters is captured: LoHa and
LoKr ask a random number whether to leave a layer out, also where `module_dropout` is zero."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import torch

from medley.capture.errors import CaptureError
from medley.capture.patches import Patch


def peft_patches() -> Iterator[Patch]:
    """Yields (owner, name, replacement) for what of peft has been imported."""
    for kind in ("loha", "lokr"):
        layer = sys.modules.get(f"peft.tuners.{kind}.layer")
        if hasattr(layer, "torch"):
            yield layer, "torch", _Torch()


class _Torch:
    """PyTorch for these modules, whose rand() serves that question only."""

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
