"""A module of the tier, with its construction and its batch. A family is a file `family_<name>.py`
with a table CASES. Everything is float64; rows are ROWS. Refused modules are listed in
refusals.py."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 7


@dataclasses.dataclass(frozen=True)
class Case:
    """A module and an example batch. `seeded`: the reference uses our dropout, whose random values
    no plan changes."""

    make: Callable[[], tuple[nn.Module, Any]]
    seeded: bool = False


class Net(nn.Module):
    """Modules by name, and a function of them and the batch that returns the loss."""

    def __init__(self, forward: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        for name, module in modules.items():
            setattr(self, name, module)
        self._forward = forward

    def forward(self, *batch: Tensor, **named: Tensor) -> Any:
        return self._forward(self, *batch, **named)


def energy(y: Tensor) -> Tensor:
    """Returns a mean loss in which every element of a row has another weight."""
    ramp = torch.linspace(0.5, 1.5, y[0].numel()).reshape(y[0].shape)
    return (y * ramp - 0.1).pow(2).mean()


def x(*sizes: int) -> Tensor:
    """Returns rows of these sizes."""
    return torch.randn(ROWS, *sizes)


def classes(count: int, *sizes: int) -> Tensor:
    """Returns rows of class numbers."""
    return torch.randint(0, count, (ROWS, *sizes))


def layer(make: Callable[[], nn.Module], *sizes: int, **known: Any) -> Case:
    """Returns the case of a layer on rows of these sizes."""
    return Case(lambda: (Net(lambda m, x: energy(m.a(x)), a=make()), x(*sizes)), **known)


def op(function: Callable[[Tensor], Tensor], *sizes: int, **known: Any) -> Case:
    """Returns the case of a function between two linear layers, on rows of these sizes."""
    width = sizes[-1]

    def make() -> tuple[nn.Module, Tensor]:
        return Net(lambda m, x: energy(function(m.a(x))), a=nn.Linear(width, width)), x(*sizes)

    return Case(make, **known)


def net(forward: Callable[..., Any], batch: Callable[[], Any], /, **modules: Any) -> Case:
    """Returns the case of a function of modules and the batch. Modules are given by their
    constructors; `seeded` is that of the case."""
    known = {name: modules.pop(name) for name in ("seeded",) if name in modules}

    def make() -> tuple[nn.Module, Any]:
        return Net(forward, **{name: made() for name, made in modules.items()}), batch()

    return Case(make, **known)
