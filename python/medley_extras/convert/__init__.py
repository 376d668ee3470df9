"""`medley convert`: the parameters of a checkpoint in formats of other programs."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import torch
from torch import Tensor

from medley.checkpoint import StoredValue, newest_complete, stored_values
from medley.files import make_folder, whole_file, write_atomically
from medley.weights_file import write_weights
from medley_extras.convert import dcp

_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_STEM, _ENDING = "model", ".safetensors"


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.add_argument(
        "checkpoint",
        help="a checkpoint, a folder of them (the newest), or one of torch.distributed.checkpoint",
    )
    parser.add_argument(
        "--to",
        choices=["hf", "dcp"],
        required=True,
        help="weights as transformers reads them, or everything as torch.distributed.checkpoint "
        "does",
    )
    parser.add_argument("--max-shard", default="5GB", help="of a file (default 5GB)")
    parser.add_argument("-o", "--output", required=True, help="folder to write to")


def command(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    most = read_size(arguments.max_shard)
    if arguments.to == "hf":
        names = to_hf(arguments.checkpoint, arguments.output, most)
    else:
        names = to_dcp(arguments.checkpoint, arguments.output)
    if arguments.json:
        print(json.dumps({"output": arguments.output, "files": names}))
        return 0
    print("\n".join(str(Path(arguments.output, name)) for name in names))
    return 0


def read_size(text: str) -> int:
    """Returns the bytes in "5GB"."""
    number, unit = text[:-2].strip(), text[-2:].upper()
    if not (number.isdigit() and int(number) > 0 and unit in _UNITS):
        raise ValueError(f"--max-shard: found {text}, expected a size such as 5GB or 200MB")
    return int(number) * _UNITS[unit]


def to_hf(folder: str, output: str, max_shard: int) -> list[str]:
    """Writes the parameters and buffers of a checkpoint, ours or one of torch.distributed, for
    `from_pretrained` of transformers. Returns the file names. Tied weights are written once."""
    if dcp.is_dcp(Path(folder)):
        tensors = dcp.read(Path(folder)).items()
        weights = [
            StoredValue("", name, each.dtype, list(each.shape), lambda each=each: each)  # type: ignore[misc]
            for name, each in tensors
        ]
    else:
        values = stored_values(newest_complete(folder))
        weights = [value for value in values if value.kind != "state"]
    return _write_hf(weights, output, max_shard)


def to_dcp(folder: str, output: str) -> list[str]:
    """Writes all tensors of a checkpoint in the format of torch.distributed.checkpoint. Returns the
    file names. Keeps all tensors in memory."""
    path = newest_complete(folder)
    values = stored_values(path)
    coded = [each.name for each in values if each.kind == "state" and each.dtype == torch.uint8]
    if coded:
        raise ValueError(
            f"{path}: {coded[0]}: found eight bits, which the optimizers of PyTorch do not read, "
            "expected moments of f32 or f64"
        )
    whole: dict[bool, dict[str, Tensor]] = {False: {}, True: {}}
    for value in values:
        whole[value.kind == "state"][value.name] = value.read()
    make_folder(output)
    dcp.write(Path(output), whole[False], whole[True])
    return sorted(file.name for file in Path(output).iterdir())


def _write_hf(weights: list[StoredValue], output: str, max_shard: int) -> list[str]:
    shards = _divide(weights, max_shard)
    count = len(shards)
    names = [_STEM + _ENDING]
    if count > 1:
        names = [f"{_STEM}-{i:05}-of-{count:05}{_ENDING}" for i in range(1, count + 1)]
    make_folder(output)
    for name, shard in zip(names, shards, strict=True):
        with whole_file(Path(output, name)) as file:
            write_weights(file, {weight.name: weight.read() for weight in shard})
    if count > 1:
        places = {w.name: name for name, shard in zip(names, shards, strict=True) for w in shard}
        index = {
            "metadata": {"total_size": sum(map(_bytes, weights))},
            "weight_map": dict(sorted(places.items())),
        }
        write_atomically(Path(output, f"{_STEM}{_ENDING}.index.json"), json.dumps(index, indent=2))
    return names


def _divide(weights: list[StoredValue], most: int) -> list[list[StoredValue]]:
    """Returns shards of at most `most` bytes, or of one larger weight."""
    shards: list[list[StoredValue]] = [[]]
    size = 0
    for weight in weights:
        if shards[-1] and size + _bytes(weight) > most:
            shards.append([])
            size = 0
        shards[-1].append(weight)
        size += _bytes(weight)
    return shards


def _bytes(value: StoredValue) -> int:
    return math.prod(value.shape) * value.dtype.itemsize
