"""Adapters of the package peft (LoRA and its like): what of a model is one, and the files that peft
reads."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medley.files import make_folder, unwritable, whole_file
from medley.weights_file import write_weights

ADAPTER_FILE = "adapter_model.safetensors"


def check_adapted(model: nn.Module) -> None:
    """Raises ValueError for a model that has no adapter of peft."""
    if not hasattr(model, "peft_config") or importlib.util.find_spec("peft") is None:
        raise ValueError(
            f"save_adapter: found {type(model).__name__}, expected what peft.get_peft_model(...) "
            "returns; save_model() writes any model"
        )


def trained_names(model: nn.Module) -> set[str]:
    """Returns the names of the parameters that are not frozen, tied ones once."""
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def write_adapter(folder: Path, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Writes the active adapter of a model, with the values that `tensors` has by name in place of
    the model's: adapter_model.safetensors, whole or not at all, and adapter_config.json."""
    import peft

    found: Any = model
    active = str(found.active_adapter)
    with _given(model, tensors):
        state = peft.get_peft_model_state_dict(
            found, adapter_name=active, save_embedding_layers=False
        )
        state = {name: value.detach().cpu().clone() for name, value in state.items()}
    make_folder(folder)
    with whole_file(folder / ADAPTER_FILE) as file:
        write_weights(file, state)
    config = copy.copy(found.peft_config[active])
    config.inference_mode = True
    if config.base_model_name_or_path is None:
        base = found.get_base_model()
        config.base_model_name_or_path = getattr(base, "name_or_path", None)
    try:
        config.save_pretrained(str(folder))
    except OSError as error:
        raise unwritable(folder, error) from None


@contextlib.contextmanager
def _given(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Inside the block the model has these values; they need not be where its own are."""
    places = {
        **dict(model.named_buffers(remove_duplicate=False)),
        **dict(model.named_parameters(remove_duplicate=False)),
    }
    before = {name: places[name].data for name in tensors}
    try:
        with torch.no_grad():
            for name, value in tensors.items():
                places[name].data = value.to(places[name].device)
        yield
    finally:
        for name, value in before.items():
            places[name].data = value
