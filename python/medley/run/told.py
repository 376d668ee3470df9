"""Text in which a process tells values to others: JSON, where a tensor is a safetensors file."""

from __future__ import annotations

import base64
import json
from typing import Any

import safetensors.torch
from torch import Tensor

_TENSOR = "tensor"
_FILE = "safetensors"  # the only key of an entry that stands for a tensor


def to_text(value: Any) -> str:
    """Returns the text of a value that `parse` reads."""
    return json.dumps(value, default=_packed)


def parse(text: str) -> Any:
    """Returns the value whose text this is."""
    return json.loads(text, object_hook=_unpacked)


def _packed(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return float(value)
    file = safetensors.torch.save({_TENSOR: value.detach().cpu().contiguous()})
    return {_FILE: base64.b64encode(file).decode()}


def _unpacked(found: dict[str, Any]) -> Any:
    if found.keys() != {_FILE}:
        return found
    return safetensors.torch.load(base64.b64decode(found[_FILE]))[_TENSOR]
