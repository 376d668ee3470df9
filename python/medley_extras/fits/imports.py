"""Minimal imports for tracing a model of transformers. The other imports take as long as these."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from unittest import mock

import torch


def import_packages(names: Iterable[str]) -> None:
    """Imports PyTorch's export, and packages if they are installed.

    bitsandbytes imports two functions of PyTorch's compiler, and works without them. transformers
    and PyTorch import tensors of several processes if PyTorch supports them.
    """

    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("nothing is compiled here")

    with (
        mock.patch.object(torch, "compile", refuse),
        mock.patch.object(torch.distributed, "is_available", lambda: False),
    ):
        importlib.import_module("torch._functorch.aot_autograd")
        for name in names:
            if importlib.util.find_spec(name) is not None:
                importlib.import_module(name)
                if name == "transformers":
                    _import_models()


def _import_models() -> None:
    """Imports the package of transformers' models. The import of transformers reads thousands of
    files for the names in that package, and would read them twice."""
    from transformers.utils import import_utils

    folder = Path(import_utils.__file__).parents[1] / "models"
    define = import_utils.define_import_structure  # caches its result

    def define_once(path: str, prefix: str | None = None) -> Any:
        if prefix is not None or Path(path) != folder / "__init__.py":
            return define(path, prefix)
        return {
            needed: {
                name.removeprefix("models."): inside
                for name, inside in modules.items()
                if name.startswith("models.")
            }
            for needed, modules in define(folder, prefix="models").items()
        }

    with mock.patch.object(import_utils, "define_import_structure", define_once):
        importlib.import_module("transformers.models")
