"""Optimizers of torch.optim as they are: their groups, and the values that a loop changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from medley import optimizer as ours
from medley.update_rule import Optimizer

# Entries of a group that do not affect the update.
_HOW = frozenset(
    [
        "params",
        "param_names",
        "initial_lr",
        "max_lr",
        "min_lr",
        "base_momentum",
        "max_momentum",
        "foreach",
        "fused",
        "capturable",
        "differentiable",
    ]
)
_RENAMED = {"ns_coefficients": "coefficients", "ns_steps": "iterations"}
# Entries that are built into our optimizer of that name.
_BUILT_IN: dict[str, dict[str, Any]] = {"AdamW": {"decoupled_weight_decay": True}}
# Entries that a loop or a scheduler changes during training.
_LIVE = ("lr", "weight_decay", "momentum", "betas")


class _Live:
    """An entry of a group as a function of the step. Its value is read when the step first runs."""

    def __init__(self, group: dict[str, Any], name: str) -> None:
        self._group, self._name = group, name
        self._seen: dict[int, Any] = {}

    def __call__(self, step: int) -> Any:
        if step not in self._seen:
            value = self._group[self._name]
            pair = isinstance(value, (tuple, list))
            self._seen[step] = tuple(map(float, value)) if pair else float(value)
        return self._seen[step]


@dataclasses.dataclass(frozen=True)
class _Members:
    """Matches the parameters of a group."""

    names: frozenset[str]

    def __call__(self, name: str, shape: tuple[int, ...]) -> bool:
        return name in self.names


def from_torch(
    optimizer: torch.optim.Optimizer, model: nn.Module, **options: Any
) -> ours.Optimizer:
    """Returns the optimizer of Medley that is equivalent to one of `torch.optim`, group by group.

    Rate, weight decay, momentum and betas of each group are read before every step. Loops that set
    `group["lr"]` or step a scheduler of PyTorch work unchanged. Parameters of `model` outside the
    optimizer stay unchanged. `options` are those of every optimizer, such as `max_norm`.

    Raises ValueError for a class or a group entry without a counterpart.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    # A scheduler warns if its optimizer takes no steps.
    optimizer._opt_called = True  # type: ignore[attr-defined]
    groups: list[tuple[Any, Optimizer]] = []
    for number, group in enumerate(optimizer.param_groups):
        strange = [p for p in group["params"] if id(p) not in names]
        if strange:
            raise ValueError(
                f"{type(optimizer).__name__}: group {number}: found a parameter of shape "
                f"{list(strange[0].shape)} that the model does not have, expected parameters of "
                "the model that was captured"
            )
        members = frozenset(names.pop(id(p)) for p in group["params"])
        groups.append((_Members(members), _rule(optimizer, group)))
    if names:
        groups.append((_Members(frozenset(names.values())), ours.SGD(lr=0.0)))
    return ours.Groups(groups=groups, **options)


def trains(optimizer: Any, model: nn.Module) -> Optimizer:
    """Returns the optimizer of a trainer: AdamW for None, `from_torch` for one of PyTorch."""
    if isinstance(optimizer, torch.optim.Optimizer):
        return from_torch(optimizer, model)
    return ours.as_optimizer(optimizer)


def known_kinds() -> list[str]:
    """Returns the names of the optimizers that torch.optim also has."""
    kinds = (each for each in vars(ours).values() if isinstance(each, type))
    names = {each.__name__ for each in kinds if issubclass(each, Optimizer)} - {"Optimizer"}
    return sorted(name for name in names if hasattr(torch.optim, name))


def _rule(optimizer: torch.optim.Optimizer, group: dict[str, Any]) -> Optimizer:
    kind = type(optimizer).__name__
    made: Any = getattr(ours, kind, None)
    if made is None or type(optimizer) is not getattr(torch.optim, kind, None):
        raise ValueError(
            f"optimizer: found {type(optimizer).__module__}.{kind}, expected one of torch.optim "
            f"({', '.join(known_kinds())}), medley.optimizer.pointwise(...) or "
            "medley.optimizer.whole(...)"
        )
    fields = {each.name for each in dataclasses.fields(made)}
    given: dict[str, Any] = {}
    for entry, value in group.items():
        name = _RENAMED.get(entry, entry)
        if name in fields:
            # A momentum of zero stays zero and needs no state.
            is_live = entry in _LIVE and not (entry == "momentum" and not value)
            given[name] = _Live(group, entry) if is_live else value
        elif value and entry not in _HOW and _BUILT_IN.get(kind, {}).get(entry) != value:
            raise ValueError(
                f"{kind}: {entry}: found {value}, expected {type(value)()!r}: Medley's {kind} has "
                "no such option"
            )
    rule: Optimizer = made(**given)
    return rule
