"""The loss of a graph: the function of a model that computes it, and the parameters it trains."""

from __future__ import annotations

import contextlib
import fnmatch
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn

Match = Callable[[str], bool]  # takes the name of a parameter
Loss = str | Callable[..., Any]  # a method name, or a function of the model and the batch
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def called(model: nn.Module, loss: Loss) -> nn.Module:
    """Returns the model with this loss as its forward, with the same modules, tensors and names.
    Raises ValueError if the model has no such method."""
    if loss == "forward":
        return model
    view = model.__class__.__new__(model.__class__)
    view.__dict__.update(model.__dict__)
    if callable(loss):
        view.__dict__["forward"] = functools.partial(_in_mode_of, view, model, loss)
        # Hooks run when the function calls the model.
        view.__dict__.update({name: OrderedDict() for name in _HOOKS})
    elif callable(getattr(view, loss, None)):
        view.__dict__["forward"] = getattr(view, loss)
    else:
        raise ValueError(
            f"loss: found {loss!r}, expected a function of the model and the batch, or the name of "
            f"a method of {type(model).__name__} that returns a loss"
        )
    return view


def _in_mode_of(
    view: nn.Module, model: nn.Module, loss: Callable[..., Any], *args: Any, **named: Any
) -> Any:
    """Calls the loss with the model in the mode of its view: train or eval."""
    before, model.training = model.training, view.training
    try:
        return loss(model, *args, **named)
    finally:
        model.training = before


def among(patterns: str | Sequence[str]) -> Match:
    """Returns a function that tests a name against patterns, in which `*` is any characters."""
    all_patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    return lambda name: any(fnmatch.fnmatchcase(name, each) for each in all_patterns)


@contextlib.contextmanager
def training(model: nn.Module, match: Match | None) -> Iterator[None]:
    """Disables gradients inside the block for parameters without a matching name. With None all
    stay as they are. Raises ValueError if no parameter that needs a gradient is left."""
    if match is None:
        yield
        return
    named = list(model.named_parameters(remove_duplicate=False))
    chosen = {id(parameter) for name, parameter in named if match(name)}
    changed = {id(p): p for _, p in named if p.requires_grad and id(p) not in chosen}
    if all(id(p) in changed or not p.requires_grad for _, p in named):
        first = f", such as {named[0][0]!r}" if named else ""
        raise ValueError(
            "train: found a pattern that fits no parameter with requires_grad, expected one that "
            f"fits names of the model{first}"
        )
    try:
        for parameter in changed.values():
            parameter.requires_grad_(False)
        yield
    finally:
        for parameter in changed.values():
            parameter.requires_grad_(True)
