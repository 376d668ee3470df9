"""Models without parameter values, for capture alone: 70B parameters fit into any memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from torch import nn

from medley.capture.patches import patched
from medley.capture.state import Attributes

T = TypeVar("T")


def load(make: Callable[[], tuple[nn.Module, T]]) -> tuple[nn.Module, T]:
    """Returns the result of `make` with the model's parameters on the meta device, without values.
    A model has values only if its construction needs them, or if it stores tensors made of them
    besides parameters and buffers."""
    made = shaped(make)
    model = made[0]
    registered = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    for _, tensor in Attributes(model).tensors():
        if tensor.is_meta and id(tensor) not in registered:
            return make()
    return made


def shaped(make: Callable[[], tuple[nn.Module, T]]) -> tuple[nn.Module, T]:
    """Returns the result of `load` faster, for readers of parameter shapes only. Tensors made of
    parameters have no values either."""
    try:
        with _parameters_on_meta():
            return make()
    except Exception as error:
        if "meta" not in str(error):
            raise
        return make()


def _parameters_on_meta() -> AbstractContextManager[None]:
    """Drops the values of a parameter inside the block as soon as a module has it. Initialization
    then does nothing. Tied parameters stay tied."""
    original = nn.Module.register_parameter

    def register(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta and type(param) is nn.Parameter:
            param = _on_meta(param)
        original(self, name, param)

    return patched([(nn.Module, "register_parameter", register)])


def _on_meta(parameter: nn.Parameter) -> nn.Parameter:
    found: nn.Parameter | None = getattr(parameter, "_medley_meta", None)
    if found is None:
        found = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        vars(found).update(vars(parameter))
        parameter._medley_meta = found  # type: ignore[attr-defined]
    return found
