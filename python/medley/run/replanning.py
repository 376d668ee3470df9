"""Plans for remaining, new or slower devices, and their predicted gain."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from medley import _core
from medley.cluster import Cluster
from medley.plan import Plan, Question, find_plan, measured

if TYPE_CHECKING:
    from medley.engine import Engine

NONE: Mapping[str, float] = MappingProxyType({})
Found = TypeVar("Found")


def replan_all(
    engines: Sequence[Engine],
    before: Sequence[Plan],
    devices: Sequence[str],
    planned: Mapping[str, float] = NONE,
    factors: Mapping[str, float] = NONE,
) -> list[Plan]:
    """Returns plans for several engines that use the same devices: see replan()."""
    return agreed(
        lambda left: [
            replan(engine, plan, left, planned, factors)
            for engine, plan in zip(engines, before, strict=True)
        ],
        lambda plan: plan.devices,
        devices,
    )


def agreed(
    find: Callable[[Sequence[str]], list[Found]],
    devices_of: Callable[[Found], Sequence[str]],
    devices: Sequence[str],
) -> list[Found]:
    """Returns the result of `find` for the devices that all plans use: devices that one plan skips
    are skipped by all."""
    while True:
        found = find(devices)
        used = [devices_of(each) for each in found]
        devices = min(used, key=len)
        if all(sorted(each) == sorted(devices) for each in used):
            return found


def replan(
    engine: Engine,
    before: Plan,
    devices: Sequence[str],
    planned: Mapping[str, float] = NONE,
    factors: Mapping[str, float] = NONE,
) -> Plan:
    """Returns the plan for these devices: the one before if it has the same devices and factors.
    Some devices take `factors` times as long as their type; the plan before was made for `planned`.
    Raises ValueError if no plan fits."""
    if sorted(before.devices) == sorted(devices) and planned == factors:
        return before
    cluster, profile, file = _slowed(engine, before, factors)
    return plan_on(engine, question(before), cluster, before, devices, (profile, file))


def question(before: Plan) -> Question:
    """Returns the question to a planner that replaces a plan. A loss over micro-batches keeps their
    number."""
    over = before.loss_over == "microbatches"
    parts = sum(len(each["microbatches"]) for each in before.to_dict()["pipelines"]) if over else 0
    return Question(
        before.strategy or "auto",
        before.global_batch,
        parts,
        before.tolerate_node_loss,
        over and parts > 1,
    )


def step_nanoseconds(engine: Engine, plan: Plan, factors: Mapping[str, float] = NONE) -> float:
    """Returns the predicted nanoseconds of a step if some devices take `factors` times as long."""
    return _simulated(_lowered(engine, plan), *_slowed(engine, plan, factors))


def stepper(engine: Engine, plan: Plan) -> Callable[[Cluster], float]:
    """Returns the prediction of a step in seconds, by any figures of the same devices."""
    program, times = _lowered(engine, plan), measured(plan.profile)
    return lambda cluster: 1e-9 * _simulated(program, cluster, *times)


def plan_on(
    engine: Engine,
    asked: Question,
    cluster: Cluster,
    like: Plan,
    devices: Sequence[str] | None = None,
    times: tuple[str, str] | None = None,
) -> Plan:
    """Returns the plan by the figures of `cluster`, with the types of the plan `like`, by default
    for its devices and by its profile. Raises ValueError if none fits."""
    graph = engine.graph
    rule, times = engine.optimizer.core(graph.core), times or measured(like.profile)
    devices = like.devices if devices is None else devices
    found = find_plan(graph.core, cluster, asked, rule, times, devices)
    chosen = _with_types_of(like, _as_for(engine.machines, cluster, found))
    return Plan.of(chosen, graph, engine.machines, like.profile)


def _simulated(program: _core.Program, cluster: Cluster, profile: str, file: str) -> float:
    found: Any = _core.simulate(program, cluster, profile, file)
    return float(found["step"])


def _lowered(engine: Engine, plan: Plan) -> _core.Program:
    graph = engine.graph.core
    return _core.Program(graph, plan.core, engine.machines, engine.optimizer.core(graph))


def saved(
    engines: Sequence[Engine],
    before: Sequence[Plan],
    after: Sequence[Plan],
    factors: Mapping[str, float] = NONE,
) -> float:
    """Returns the predicted share of a step of each plan saved against those before, at least 0."""

    def takes(plans: Sequence[Plan]) -> float:
        pairs = zip(engines, plans, strict=True)
        return sum(step_nanoseconds(engine, plan, factors) for engine, plan in pairs)

    return max(0.0, 1 - takes(after) / takes(before))


def _as_for(to: Cluster, of: Cluster, known: _core.Plan) -> _core.Plan:
    """Returns a plan of a cluster for another one with other types of the same devices."""
    if to.hash == of.hash:
        return known
    plan = json.loads(known.text())
    if "cluster_hash" in plan:
        plan["cluster_hash"] = to.hash
    types = plan.pop("bf16_as", {})
    kinds = [(of.kind(d).name, to.kind(d).name) for d in range(len(of.devices))]
    if types := {new: types[old] for old, new in kinds if old in types}:
        plan["bf16_as"] = types
    return _core.Plan(json.dumps(plan))


def _with_types_of(before: Plan, found: _core.Plan) -> _core.Plan:
    """Returns a plan with the dtypes of the one before for all device types, also missing ones."""
    plan = json.loads(found.text())
    types = plan.get("bf16_as", {}) | before.to_dict().get("bf16_as", {})
    return _core.Plan(json.dumps({**plan, "bf16_as": types})) if types else found


def _slowed(engine: Engine, plan: Plan, factors: Mapping[str, float]) -> tuple[Cluster, str, str]:
    """Returns cluster and profile with these factors, and the profile's file."""
    machines = engine.machines
    numbers = {machines.find(name): factor for name, factor in factors.items()}
    cluster = machines.slowed({n: 1 / f for n, f in numbers.items() if n is not None})
    text, file = measured(plan.profile)
    return cluster, _slowed_profile(text, machines, cluster) if factors else text, file


def _slowed_profile(text: str, before: Cluster, after: Cluster) -> str:
    """Returns a profile with the device types of `after` added."""
    if not text:
        return text
    profile = json.loads(text)
    for device in range(len(before.devices)):
        kind, slow = before.kind(device), after.kind(device)
        if slow.name == kind.name or slow.name in profile["ops"]:
            continue
        factor = kind.memory_bandwidth / slow.memory_bandwidth
        profile["ops"][slow.name] = [
            {**op, "time_ns": max(1, round(factor * op["time_ns"]))}
            for op in profile["ops"].get(kind.name, [])
        ]
        if kind.name in profile.get("overlaps", {}):
            profile["overlaps"][slow.name] = profile["overlaps"][kind.name]
    return json.dumps(profile)
