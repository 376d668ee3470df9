"""Models by name, for the command line. A name is one of these:

medley_extras.models:gpt    function of a module: returns (model, example batch)
medley_extras.models:bert?size=base&layers=48
                            with arguments: numbers, true, false, none or words
hf:mixtral?size=tiny&num_local_experts=16
                            a model type of transformers, fields of its config
hf:config.json              a config of transformers
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from medley import extras


def load(name: str, batch: tuple[int, int] | None = None) -> tuple[nn.Module, Any]:
    """Returns a model and its example batch, with `batch` = (rows, length) if given. Raises
    ValueError for an invalid name."""
    kind, separator, rest = name.partition(":")
    if not separator or not rest:
        raise ValueError(
            f"model: found {name!r}, expected package.module:function or hf:config.json"
        )
    rest, _, query = rest.partition("?")
    options = _options(query)
    if (read := extras.model_reader(kind)) is not None:
        return read(rest, options, batch)
    made = _call(kind, rest, options)
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise ValueError(
            f"model: {name}: found {type(made).__name__}, expected (model, example batch)"
        )
    model, example = made
    return model, example if batch is None else _resize(example, *batch)


def _options(query: str) -> dict[str, Any]:
    """Returns {"size": "base", "layers": 48} for "size=base&layers=48"."""
    options: dict[str, Any] = {}
    for item in filter(None, query.split("&")):
        name, separator, text = item.partition("=")
        if not separator or not name.isidentifier():
            raise ValueError(f"model: found {item!r} behind the ?, expected name=value")
        words = {"true": True, "false": False, "none": None}
        options[name] = words[text] if text in words else _number_or_word(text)
    return options


def _number_or_word(text: str) -> int | float | str:
    for number in (int, float):
        try:
            return number(text)
        except ValueError:
            pass
    return text


def _call(module: str, function: str, options: dict[str, Any]) -> Any:
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(f"model: {module}: {error}") from None
    make = getattr(found, function, None)
    if not callable(make):
        raise ValueError(f"model: {module}: found no function {function!r}")
    try:
        inspect.signature(make).bind(**options)
    except TypeError as error:
        raise ValueError(f"model: {module}:{function}: {error}") from None
    return make(**options)


def _resize(example: Any, rows: int, length: int) -> Any:
    """Returns the batch with other rows, and another length for inputs as long as the tokens."""
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
