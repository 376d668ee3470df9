"""Adapters of the package peft, such as LoRA, and the files that peft reads."""

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
from medley.model_files import tensors_of, unwrapped
from medley.weights_file import write_weights

ADAPTER_FILE = "adapter_model.safetensors"


def with_lora(model: nn.Module, text: str) -> nn.Module:
    """Returns a model with LoRA layers of peft, from a text such as
    "r=16,targets=q_proj,v_proj,alpha=32". The default targets are those that peft has for the
    model; the default alpha is r. Raises ValueError for an unknown field or value."""
    if importlib.util.find_spec("peft") is None:
        raise ValueError("--lora: needs a package: pip install peft")
    import peft

    fields = _lora_fields(text)
    rank = _rank("r", fields.pop("r", "16"))
    alpha = _rank("alpha", fields.pop("alpha", str(rank)))
    targets = fields.pop("targets", "")
    if fields:
        raise ValueError(f"--lora: found {', '.join(fields)}, expected r, alpha and targets")
    config = peft.LoraConfig(
        r=rank, lora_alpha=alpha, target_modules=targets.split(",") if targets else None
    )
    try:
        adapted: nn.Module = peft.get_peft_model(model, config)
    except ValueError as error:
        raise ValueError(f"--lora: {' '.join(str(error).split())}") from None
    return adapted


def _lora_fields(text: str) -> dict[str, str]:
    """Returns {"r": "16", "targets": "q_proj,v_proj"}. An item without "=" extends the value before
    it."""
    fields: dict[str, str] = {}
    last = ""
    for item in text.split(","):
        name, separator, value = item.partition("=")
        if separator:
            last, fields[name] = name, value
        elif last:
            fields[last] += "," + item
        else:
            raise ValueError(f"--lora: found {item!r}, expected r=16,targets=q_proj,v_proj")
    return fields


def _rank(name: str, text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise ValueError(f"--lora: {name}: found {text!r}, expected a whole number > 0")
    return int(text)


def check_adapted(model: nn.Module) -> None:
    """Raises ValueError if the model has no adapter of peft."""
    model, _ = unwrapped(model)
    if not hasattr(model, "peft_config") or importlib.util.find_spec("peft") is None:
        raise ValueError(
            f"save_adapter: found {type(model).__name__}, expected what peft.get_peft_model(...) "
            "returns; save_model() writes any model"
        )


def trained_names(model: nn.Module) -> set[str]:
    """Returns the names of the parameters that are not frozen, tied ones once."""
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def write_adapter(folder: Path, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Writes the active adapter of a model with the values of `tensors` in place of the model's.
    Writes adapter_model.safetensors, atomically, and adapter_config.json."""
    import peft

    found: Any = unwrapped(model)[0]
    active = str(found.active_adapter)
    with _given(model, tensors):
        state = peft.get_peft_model_state_dict(found, adapter_name=active)
        state = {name: value.detach().cpu().clone() for name, value in state.items()}
    make_folder(folder)
    with whole_file(folder / ADAPTER_FILE) as file:
        write_weights(file, state)
    config, base = copy.copy(found.peft_config[active]), found.get_base_model()
    config.inference_mode = True
    for name, value in vars(config).items():
        if isinstance(value, set):  # the order of a set differs between processes
            setattr(config, name, sorted(value))
    if config.base_model_name_or_path is None:
        config.base_model_name_or_path = vars(base).get("name_or_path") or None
    # Without a task, peft.AutoPeftModel finds the class of the model by these fields.
    kind = type(base)
    mapping = {"base_model_class": kind.__name__, "parent_library": kind.__module__}
    try:
        config.save_pretrained(
            str(folder), auto_mapping_dict=mapping if config.task_type is None else None
        )
    except OSError as error:
        raise unwritable(folder, error) from None


@contextlib.contextmanager
def _given(model: nn.Module, tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Gives the model these values inside the block. They may be on another device than its own."""
    places = tensors_of(model)
    before = {name: places[name].data for name in tensors}
    try:
        with torch.no_grad():
            for name, value in tensors.items():
                places[name].data = value.to(places[name].device)
        yield
    finally:
        for name, value in before.items():
            places[name].data = value
