"""Models by name, for the command line: `package.module:function` or `hf:config.json`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def load(name: str, batch: tuple[int, int] | None = None) -> tuple[nn.Module, Any]:
    """Returns a model and its example batch, of `batch` = (rows, length) if given.

    Raises ValueError naming what was expected.
    """
    kind, separator, rest = name.partition(":")
    if not separator or not rest:
        raise ValueError(
            f"model: found {name!r}, expected package.module:function or hf:config.json"
        )
    if kind == "hf":
        from medley.models import hf

        if not Path(rest).is_file():
            raise ValueError(f"{rest}: cannot be read: no such file")
        options: dict[str, Any] = {} if batch is None else {"batch": batch[0], "tokens": batch[1]}
        return hf.from_file(rest, **options)
    made = _call(kind, rest)
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise ValueError(
            f"model: {name}: found {type(made).__name__}, expected (model, example batch)"
        )
    model, example = made
    return model, example if batch is None else _resize(example, *batch)


def _call(module: str, function: str) -> Any:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"model: {module}: {error}") from None
    make = getattr(found, function, None)
    if not callable(make):
        raise ValueError(f"model: {module}: found no function {function!r}")
    return make()


def _resize(example: Any, rows: int, length: int) -> Any:
    """Returns the batch with other rows, and another length of what is as long as the tokens."""
    values = list(example.values()) if isinstance(example, Mapping) else example
    tensors = values if isinstance(values, (list, tuple)) else [values]
    tokens = [t for t in tensors if isinstance(t, Tensor) and t.dim() > 1]
    if not tokens:
        raise ValueError("--batch: the example batch has no tensor of rows and columns")
    old_rows, old_length = tokens[0].shape[:2]

    def resize(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if value.dim() > 0 and value.shape[0] == old_rows:
            value = value[torch.arange(rows) % old_rows]
        if value.dim() > 1 and value.shape[1] == old_length:
            value = value[:, torch.arange(length) % old_length]
        return value

    if isinstance(example, Mapping):
        return {key: resize(value) for key, value in example.items()}
    return resize(example) if isinstance(example, Tensor) else tuple(map(resize, example))
