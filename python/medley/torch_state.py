"""The state of an optimizer in the form of torch.optim's `state_dict()`, to and from whole
tensors."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from medley.from_torch import known_kinds
from medley.optimizer import SGD, Muon, Optimizer

_WITHOUT_STEP = (SGD, Muon)
_STATE_NAMES = {SGD: {"momentum": "momentum_buffer"}, Muon: {"momentum": "momentum_buffer"}}
_FIELD_NAMES = {"coefficients": "ns_coefficients", "iterations": "ns_steps"}
_OF_VECTORS = {"row_var": "variance"}  # names in Adafactor
_SCALARS = ("mu_product",)  # one value per parameter in torch
_OTHER_UPDATES = ("amsgrad", "maximize", "decoupled_weight_decay", "dampening")

Names = Sequence[Sequence[str]]  # names of parameters by group


def names_by_rule(optimizer: Optimizer, graph: Any, model: nn.Module) -> list[list[str]]:
    """Returns the trained parameters of each rule, in the order of `model.parameters()`."""
    trained = {name for kind, name, _, _ in graph.outputs if kind == "gradient"}
    rule_of = optimizer.rule_of(graph)
    found: list[list[str]] = [[] for _ in optimizer.rules()]
    for name, _ in model.named_parameters():
        if name in trained:
            found[rule_of.get(name, 0)].append(name)
    return found


def write(
    optimizer: Optimizer, names: Names, states: Mapping[str, Tensor], step: int
) -> dict[str, Any]:
    """Returns the `state_dict()` after `step` steps, from states named "exp_avg:<parameter>"."""
    kept: dict[str, dict[str, Tensor]] = {}
    for each, value in states.items():
        state, _, name = each.partition(":")
        kept.setdefault(name, {})[state] = value
    dtype = torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
    entries: dict[int, dict[str, Any]] = {}
    groups, first = [], 0
    for rule, parameters in zip(optimizer.rules(), names, strict=True):
        for place, name in enumerate(parameters, first):
            entry: dict[str, Any] = {}
            if not isinstance(rule, _WITHOUT_STEP):
                entry["step"] = torch.tensor(float(step), dtype=dtype)
            for state, value in kept.get(name, {}).items():
                one = state in _SCALARS
                entry[_theirs(rule, state, value)] = (
                    value.flatten()[0].to(dtype).clone() if one else value
                )
            if entry and step:
                entries[place] = entry
        places = list(range(first, first + len(parameters)))
        groups.append({**_numbers(rule, step), "params": places})
        first += len(parameters)
    return {"state": entries, "param_groups": groups}


def read(
    optimizer: Optimizer,
    names: Names,
    model: nn.Module,
    wanted: Mapping[str, Sequence[int]],
    given: Mapping[str, Any] | Sequence[Mapping[str, Any]],
    order: Sequence[str] | None,
) -> tuple[dict[str, Tensor], int | None]:
    """Returns the `wanted` states by name, "exp_avg:<parameter>", for parameters of these shapes,
    and the step, or None if the state does not record it."""
    dicts = [given] if isinstance(given, Mapping) else list(given)
    rule_of = {
        name: rule for rule, each in zip(optimizer.rules(), names, strict=True) for name in each
    }
    entries: dict[str, Mapping[str, Any]] = {}
    listed = _listed(dicts, names, model, order)
    for source, group, parameters in listed:
        for place, name in zip(group["params"], parameters, strict=True):
            if name in rule_of:
                entries[name] = source["state"].get(place, {})
        for rule in {id(rule_of[n]): rule_of[n] for n in parameters if n in rule_of}.values():
            _check_numbers(rule, group)
    steps = {int(each["step"]) for each in entries.values() if "step" in each}
    if len(steps) > 1:
        raise ValueError(f"optimizer state: found steps {sorted(steps)}, expected one of all")
    found = {}
    for name, shape in wanted.items():
        state, _, parameter = name.partition(":")
        entry, rule = entries.get(parameter), rule_of[parameter]
        if entry is None:
            raise ValueError(f"optimizer state: {parameter}: found none, expected one")
        found[name] = _tensor(rule, state, parameter, entry, _shape(state, shape), bool(steps))
    return found, next(iter(steps), None)


def _shape(state: str, parameter: Sequence[int]) -> list[int]:
    """Returns the shape of a state."""
    if len(parameter) < 2 or state not in ("row_var", "col_var"):
        return list(parameter)
    dim = -1 if state == "row_var" else -2
    return [1 if i == len(parameter) + dim else size for i, size in enumerate(parameter)]


def _tensor(
    rule: Optimizer, state: str, name: str, entry: Mapping[str, Any], shape: list[int], made: bool
) -> Tensor:
    theirs = _STATE_NAMES.get(type(rule), {}).get(state, state)
    value = entry.get(theirs, entry.get(_OF_VECTORS.get(state, "")))
    if value is None:
        if made:  # otherwise no step was taken, or a momentum starts with the next one
            raise ValueError(
                f"optimizer state: {name}: found {', '.join(entry) or 'nothing'}, expected "
                f"{theirs} of {rule.name}"
            )
        return torch.zeros(shape)
    if state in _SCALARS:
        return torch.as_tensor(value).expand(shape)
    if list(value.shape) != shape:
        raise ValueError(
            f"optimizer state: {name}: {theirs}: found shape {list(value.shape)}, expected "
            f"{shape}: names=[...] says which parameters its places are"
        )
    return torch.as_tensor(value)


def _listed(
    dicts: Sequence[Mapping[str, Any]],
    names: Names,
    model: nn.Module,
    order: Sequence[str] | None,
) -> list[tuple[Mapping[str, Any], Mapping[str, Any], Sequence[str]]]:
    """Returns each group of the state with the names of its parameters."""
    groups = [(state, group) for state in dicts for group in state["param_groups"]]
    counts = [len(group["params"]) for _, group in groups]
    if order is None and all("param_names" in group for _, group in groups):
        order = [name for _, group in groups for name in group["param_names"]]
    if order is None and counts == [len(each) for each in names]:
        order = [name for each in names for name in each]
    every = [name for name, _ in model.named_parameters()]
    if order is None and len(names) == len(groups) == 1 and counts == [len(every)]:
        order = every  # includes frozen ones
    if order is None or len(order) != sum(counts):
        found = "names of " + str(len(order)) if order is not None else f"groups of {counts}"
        expected = sum(counts) if order is not None else [len(each) for each in names]
        raise ValueError(
            f"optimizer state: found {found} parameters, expected {expected}: names=[...] says "
            "which parameters the places 0, 1, ... of the state are"
        )
    listed, first = [], 0
    for (state, group), count in zip(groups, counts, strict=True):
        listed.append((state, group, order[first : first + count]))
        first += count
    return listed


def _theirs(rule: Optimizer, state: str, value: Tensor) -> str:
    if value.dim() < 2 and state in _OF_VECTORS:
        return _OF_VECTORS[state]
    return _STATE_NAMES.get(type(rule), {}).get(state, state)


def _numbers(rule: Optimizer, step: int) -> dict[str, Any]:
    """Returns a group of PyTorch's optimizer with the values of the next step."""
    if rule.name not in known_kinds():
        known = ", ".join(known_kinds())
        raise ValueError(
            f"optimizer state: found {rule.name}, expected what torch.optim has, too: {known}"
        )
    like = [nn.Parameter(torch.zeros(1, 1))]
    group: dict[str, Any] = getattr(torch.optim, rule.name)(like).param_groups[0]
    now = rule.at(step)
    for field in dataclasses.fields(now):
        name = _FIELD_NAMES.get(field.name, field.name)
        if name in group and name != "lr":
            group[name] = getattr(now, field.name)
    if isinstance(rule, Muon):
        group["adjust_lr_fn"] = "match_rms_adamw" if rule.match_adamw else None
    return {**group, "lr": rule.learning_rate(step)}


def _check_numbers(rule: Optimizer, group: Mapping[str, Any]) -> None:
    ours = _numbers(rule, 0)
    for key, value in group.items():
        if key not in ours or key in ("lr", "params") or _plain(value) == _plain(ours[key]):
            continue
        if key in _OTHER_UPDATES:
            raise ValueError(
                f"optimizer state: found {key} {value}, expected {ours[key]}: {rule.name} has no "
                "other"
            )
        if key not in ("foreach", "capturable", "differentiable", "fused"):
            warnings.warn(
                f"optimizer state: found {key} {value}, {rule.name} goes on with its own "
                f"{ours[key]}",
                stacklevel=4,
            )


def _plain(value: Any) -> Any:
    return tuple(map(_plain, value)) if isinstance(value, (tuple, list)) else value
