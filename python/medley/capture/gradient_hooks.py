"""Hooks on the gradients of parameters: those of `register_hook` become ops of the graph. A hook of
`register_hook` returns a gradient, and is traced with backward. A hook that returns None, or runs
after accumulation, only has side effects, which a graph cannot express."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch.fx.traceback as fx_traceback
from torch import Tensor, nn

from medley.capture.errors import CaptureError


class Hooked(NamedTuple):
    """A parameter with hooks on its gradient. `names`: several if it is tied."""

    names: list[str]
    hooks: list[Callable[[Tensor], Any]]


def gradient_hooks(model: nn.Module) -> list[Hooked]:
    """Returns parameters with gradient hooks. Raises CaptureError for an unsupported one."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    found = []
    for name, parameter in model.named_parameters():
        if after := getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise CaptureError(
                f"parameter {name!r}: {_source(next(iter(after.values())))}: hooks of "
                "register_post_accumulate_grad_hook are not captured: use register_hook for one "
                "that returns another gradient"
            )
        if hooks := parameter._backward_hooks:
            checked = [_checked(name, hook) for hook in hooks.values()]
            found.append(Hooked(names[id(parameter)], checked))
    return found


def attach(model: nn.Module, hooked: Sequence[Hooked]) -> list[Any]:
    """Attaches the hooks to the tensors that stand for the parameters of `model`, and returns
    handles to remove them. Tied parameters become one tensor, whose gradient is their sum."""
    handles = []
    for names, hooks in hooked:
        first, *others = [_place_of(model, name) for name in names]
        tensor = first[0][first[1]]
        for store, name in others:
            store[name] = tensor
        if tensor.requires_grad:
            handles += [tensor.register_hook(hook) for hook in hooks]
    return handles


def _place_of(model: nn.Module, name: str) -> tuple[dict[str, Any], str]:
    path, _, last = name.rpartition(".")
    return model.get_submodule(path)._parameters, last


def _checked(name: str, hook: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    """Returns the hook with its place in the module. It is refused if it returns None."""
    where = f"parameter {name!r}: its gradient hook {_source(hook)}"

    def traced(gradient: Tensor) -> Any:
        with fx_traceback.annotate({"module": name.rpartition(".")[0], "source": _source(hook)}):
            try:
                changed = hook(gradient)
            except CaptureError:
                raise
            except Exception as error:
                error.args = (f"{where}: {error}",)
                raise
        if changed is None:
            raise CaptureError(
                f"{where} returns nothing: what it does besides is not captured; remove it, or "
                "return the gradient that training takes"
            )
        return changed

    return traced


def _source(hook: Any) -> str:
    """Returns "file.py:12" of a hook, or its text."""
    function = inspect.unwrap(hook) if callable(hook) else hook
    code = getattr(getattr(function, "func", function), "__code__", None)
    if code is None:
        return type(hook).__name__
    return f"{code.co_filename.rpartition('/')[2]}:{code.co_firstlineno}"
