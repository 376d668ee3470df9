"""`medley convert`: the parameters of a checkpoint in the form that other programs read."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from medley import _core, dcp
from medley.files import make_folder, whole_file, write_atomically
from medley.model_files import INDEX_FILE, MODEL_FILE
from medley.weights_file import write_weights
from medley.whole_tensors import DTYPES

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclasses.dataclass(frozen=True)
class Weight:
    """A value of a checkpoint."""

    kind: str
    name: str
    dtype: torch.dtype
    shape: list[int]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * self.dtype.itemsize


def read_size(text: str) -> int:
    """Returns the bytes in "5GB"."""
    number, unit = text[:-2].strip(), text[-2:].upper()
    if not (number.isdigit() and int(number) > 0 and unit in _UNITS):
        raise ValueError(f"--max-shard: found {text}, expected a size such as 5GB or 200MB")
    return int(number) * _UNITS[unit]


def newest_whole(folder: str) -> str:
    """Returns the newest complete checkpoint in a folder, or the folder if it is one."""
    if Path(folder, "COMMIT").exists():
        return folder
    for path, _, is_complete in _core.find_checkpoints(folder):
        if is_complete:
            return str(path)
    raise ValueError(f"{folder}: found no checkpoint, expected one")


def to_hf(folder: str, output: str, max_shard: int) -> list[str]:
    """Writes the parameters and buffers of a checkpoint, ours or one of torch.distributed's, as
    `from_pretrained` of the transformers package reads them; returns the names of the files. Tied
    weights stand once."""
    if dcp.is_dcp(Path(folder)):
        tensors = dcp.read(Path(folder))
        weights = [Weight("", name, t.dtype, list(t.shape)) for name, t in tensors.items()]
        return _write_hf(weights, lambda weight: tensors[weight.name], output, max_shard)
    path = newest_whole(folder)
    manifest = _core.Manifest.open(path)
    weights = [weight for weight in _weights_of(manifest) if weight.kind != "state"]
    return _write_hf(weights, lambda weight: _read(manifest, path, weight), output, max_shard)


def to_dcp(folder: str, output: str) -> list[str]:
    """Writes all tensors of a checkpoint as torch.distributed.checkpoint reads them; returns the
    names of the files. It holds them in memory."""
    path = newest_whole(folder)
    manifest = _core.Manifest.open(path)
    coded = [w.name for w in _weights_of(manifest) if w.kind == "state" and w.dtype == torch.uint8]
    if coded:
        raise ValueError(
            f"{path}: {coded[0]}: found eight bits, which the optimizers of PyTorch do not read, "
            "expected moments of f32 or f64"
        )
    whole: dict[bool, dict[str, Tensor]] = {False: {}, True: {}}
    for weight in _weights_of(manifest):
        whole[weight.kind == "state"][weight.name] = _read(manifest, path, weight)
    make_folder(output)
    dcp.write(Path(output), whole[False], whole[True])
    return sorted(file.name for file in Path(output).iterdir())


def _weights_of(manifest: _core.Manifest) -> list[Weight]:
    return [
        Weight(kind, name, DTYPES[dtype], shape) for kind, name, dtype, shape in manifest.values
    ]


def _write_hf(
    weights: list[Weight], read: Callable[[Weight], Tensor], output: str, max_shard: int
) -> list[str]:
    shards = _divide(weights, max_shard)
    names = [MODEL_FILE]
    if len(shards) > 1:
        stem = MODEL_FILE.removesuffix(".safetensors")
        names = [
            f"{stem}-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)
        ]
    make_folder(output)
    for name, shard in zip(names, shards, strict=True):
        with whole_file(Path(output, name)) as file:
            write_weights(file, {weight.name: read(weight) for weight in shard})
    if len(shards) > 1:
        places = {w.name: name for name, shard in zip(names, shards, strict=True) for w in shard}
        index = {
            "metadata": {"total_size": sum(weight.nbytes for weight in weights)},
            "weight_map": dict(sorted(places.items())),
        }
        write_atomically(Path(output, INDEX_FILE), json.dumps(index, indent=2))
    return names


def _divide(weights: list[Weight], most: int) -> list[list[Weight]]:
    """Returns shards of at most so many bytes, or of one weight that is larger."""
    shards: list[list[Weight]] = [[]]
    size = 0
    for weight in weights:
        if shards[-1] and size + weight.nbytes > most:
            shards.append([])
            size = 0
        shards[-1].append(weight)
        size += weight.nbytes
    return shards


def _read(manifest: _core.Manifest, path: str, weight: Weight) -> Tensor:
    data = bytearray(manifest.read(path, weight.kind, weight.name))
    if not data:
        return torch.empty(weight.shape, dtype=weight.dtype)
    return torch.frombuffer(data, dtype=weight.dtype).reshape(weight.shape)
