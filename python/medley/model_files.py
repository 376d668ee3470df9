"""The weights of a model in a folder, in the format of safetensors and transformers: one file, or
several with an index."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from torch import Tensor, nn

from medley.files import make_folder, read_text, unwritable, whole_file
from medley.quantized import quantized_tensors
from medley.weights_file import write_weights

MODEL_FILE = "model.safetensors"
INDEX_FILE = MODEL_FILE + ".index.json"


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Returns the parameters and buffers of a model, tied ones under each name, and the other
    tensors of 4-bit weights."""
    return {
        **quantized_tensors(model),
        **dict(model.named_buffers(remove_duplicate=False)),
        **dict(model.named_parameters(remove_duplicate=False)),
    }


def unwrapped(model: nn.Module) -> tuple[nn.Module, str]:
    """Returns the model inside a compiled or data-parallel wrapper, and the prefix of its tensors'
    names in the wrapper."""
    prefix = ""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            name, model = "module", model.module
        elif isinstance(inside := getattr(model, "_orig_mod", None), nn.Module):
            name, model = "_orig_mod", inside
        else:
            return model, prefix
        prefix += f"{name}."


def write_model(folder: Path, tensors: Mapping[str, Tensor], model: nn.Module) -> None:
    """Writes a safetensors file atomically, and the config of the model if it has one."""
    model, prefix = unwrapped(model)
    make_folder(folder)
    with whole_file(folder / MODEL_FILE) as file:
        write_weights(file, {name.removeprefix(prefix): each for name, each in tensors.items()})
    config = getattr(model, "config", None)
    if hasattr(config, "save_pretrained"):
        try:
            config.save_pretrained(folder)  # type: ignore[union-attr]
        except OSError as error:
            raise unwritable(folder, error) from None


def read_model(folder: Path, model: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of a file under each of their names in the model. Raises ValueError for a
    missing name or an additional one."""
    model, prefix = unwrapped(model)
    path = folder / MODEL_FILE
    found: dict[str, Tensor] = {}
    for shard in _shards(folder):
        found.update(_read_file(shard))
    state = model.state_dict(keep_vars=True)
    ties: dict[int, list[str]] = {}
    for name, value in state.items():
        if isinstance(value, Tensor):
            ties.setdefault(id(value), []).append(name)
    missing = [names[0] for names in ties.values() if not found.keys() & set(names)]
    unexpected = [name for name in found if name not in state]
    problems = [f"lacks {_listed(missing)}"] if missing else []
    if unexpected:
        problems.append(f"has {_listed(sorted(unexpected))}, which the model has not")
    if problems:
        raise ValueError(f"{path}: {' and '.join(problems)}; expected what save_model() writes")
    for names in ties.values():
        value = next(found[name] for name in names if name in found)
        found.update({name: value for name in names if name not in found})
    return {prefix + name: value for name, value in found.items()}


_MOST_NAMES = 5


def _listed(names: list[str]) -> str:
    more = len(names) - _MOST_NAMES
    text = ", ".join(repr(name) for name in names[:_MOST_NAMES])
    return f"{text} and {more} more" if more > 0 else text


def _shards(folder: Path) -> list[Path]:
    """Returns the files with the weights. Raises ValueError if the index names no file, or a file
    outside the folder."""
    index = folder / INDEX_FILE
    if (folder / MODEL_FILE).exists() or not index.is_file():
        return [folder / MODEL_FILE]
    try:
        names = set(json.loads(read_text(index))["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError):
        names = set()
    if not names or any(not isinstance(name, str) or Path(name).name != name for name in names):
        raise ValueError(f"{index}: expected a weight_map of names to files in this folder")
    return [folder / name for name in sorted(names)]


def _read_file(path: Path) -> dict[str, Tensor]:
    if path.exists() and not path.is_file():  # safetensors would wait for a writer of a pipe
        raise ValueError(f"{path}: found a pipe, a device or a folder, expected a file")
    try:
        found: dict[str, Tensor] = safetensors.torch.load_file(path)
        return found
    except (OSError, safetensors.SafetensorError) as error:
        raise ValueError(f"{path}: found {error}, expected what save_model() writes") from None
