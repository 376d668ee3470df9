"""A loss among several of one model: the method that computes it, and the parameters it trains."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Callable, Iterator, Sequence

from torch import nn

Match = Callable[[str], bool]  # of the name of a parameter


def called(model: nn.Module, method: str) -> nn.Module:
    """Returns the model with another method as its forward: the same modules and tensors by the
    same names. Raises ValueError if the model has no such method."""
    if method == "forward":
        return model
    if not callable(getattr(model, method, None)):
        raise ValueError(
            f"method: found {method!r}, expected the name of a method of {type(model).__name__} "
            "that returns a loss"
        )
    view = model.__class__.__new__(model.__class__)
    view.__dict__.update(model.__dict__)
    view.__dict__["forward"] = getattr(view, method)
    return view


def among(patterns: str | Sequence[str]) -> Match:
    """Returns whether a name fits one of the patterns, in which `*` is any characters."""
    all_patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    return lambda name: any(fnmatch.fnmatchcase(name, each) for each in all_patterns)


@contextlib.contextmanager
def training(model: nn.Module, match: Match | None) -> Iterator[None]:
    """Parameters without a name that matches need no gradient inside the block. None: all stay as
    they are. Raises ValueError if no parameter that needs one is left."""
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
