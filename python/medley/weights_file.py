"""The safetensors format (https://huggingface.co/docs/safetensors), written in parts. The package
safetensors writes only to file names and keeps all tensors in memory or renames itself."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import BinaryIO

import torch
from torch import Tensor

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}


def write_weights(file: BinaryIO, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors by name. Raises ValueError for a dtype outside the format."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in order:
        tensor = tensors[name]
        if tensor.dtype not in _NAMES:
            known = ", ".join(str(dtype) for dtype in _NAMES)
            raise ValueError(f"{name}: found {tensor.dtype}, expected one of {known}")
        begin, end = end, end + math.prod(tensor.shape) * tensor.element_size()
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        if tensors[name].numel():
            flat = tensors[name].detach().cpu().contiguous().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
