"""Plans for remaining, new or slower devices, and their predicted gain."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from medley import _core
from medley.cluster import Cluster, parse_cluster, text_of
from medley.plan import Plan, Question, find_plan, measured

if TYPE_CHECKING:
    from medley.engine import Engine

NONE: Mapping[str, float] = MappingProxyType({})


class Subject(NamedTuple):
    """The input of a planner: the graph of a model, its machines, and the rule of its optimizer."""

    graph: _core.Graph
    machines: Cluster
    rule: _core.Optimizer

    @staticmethod
    def of(engine: Engine) -> Subject:
        """Returns that of an engine."""
        graph = engine.graph.core
        return Subject(graph, engine.machines, engine.optimizer.core(graph))


def text_of_subject(engine: Engine) -> str | None:
    """Returns a text for another process, or None if the cluster of the engine has none."""
    cluster, graph = text_of(engine.machines), engine.graph
    return cluster and json.dumps((graph.text(), cluster, engine.optimizer.arguments(graph.core)))


def subject_of_text(text: str) -> Subject:
    """Returns the subject of such a text."""
    graph, cluster, rule = json.loads(text)
    return Subject(_core.Graph.parse(graph), parse_cluster(cluster), _core.Optimizer(*rule))


def replan_all(
    subjects: Sequence[Subject],
    before: Sequence[Plan],
    devices: Sequence[str],
    planned: Mapping[str, float] = NONE,
    factors: Mapping[str, float] = NONE,
) -> list[Plan]:
    """Returns plans for several subjects: see replan(). Devices that one plan skips are skipped by
    all."""
    pairs = list(zip(subjects, before, strict=True))
    while True:
        found = [replan(*pair, devices, planned, factors) for pair in pairs]
        devices = min((plan.devices for plan in found), key=len)
        if all(sorted(plan.devices) == sorted(devices) for plan in found):
            return found


def replan(
    subject: Subject,
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
    cluster, profile, file = _slowed(subject, before, factors)
    return plan_on(subject, question(before), cluster, before, devices, (profile, file))


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


def step_nanoseconds(subject: Subject, plan: Plan, factors: Mapping[str, float] = NONE) -> float:
    """Returns the predicted nanoseconds of a step if some devices take `factors` times as long."""
    return float(_simulated(_lowered(subject, plan), *_slowed(subject, plan, factors))["step"])


def expected_nanoseconds(subject: Subject, plan: Plan, profile: str) -> dict[str, float]:
    """Returns the compute time per step that the plan expects of each device, in nanoseconds."""
    found = _simulated(_lowered(subject, plan), subject.machines, profile)
    return {name: row["computes"] for name, row in found["devices"].items()}


def stepper(subject: Subject, plan: Plan) -> Callable[[Cluster], float]:
    """Returns the prediction of a step in seconds, by any figures of the same devices."""
    program, times = _lowered(subject, plan), measured(plan.profile)
    return lambda cluster: 1e-9 * _simulated(program, cluster, *times)["step"]


def plan_on(
    subject: Subject,
    asked: Question,
    cluster: Cluster,
    like: Plan,
    devices: Sequence[str] | None = None,
    times: tuple[str, str] | None = None,
) -> Plan:
    """Returns the plan by the figures of `cluster`, with the types of the plan `like`, by default
    for its devices and by its profile. Raises ValueError if none fits."""
    times, devices = times or measured(like.profile), like.devices if devices is None else devices
    found = find_plan(subject.graph, cluster, asked, subject.rule, times, devices)
    chosen = _with_types_of(like, _as_for(subject.machines, cluster, found))
    return Plan.of(chosen, like.graph, subject.machines, like.profile)


def _simulated(program: _core.Program, cluster: Cluster, *times: str) -> dict[str, Any]:
    return dict(_core.simulate(program, cluster, *times))


def _lowered(subject: Subject, plan: Plan) -> _core.Program:
    return _core.Program(subject.graph, plan.core, subject.machines, subject.rule)


def saved(
    subjects: Sequence[Subject],
    before: Sequence[Plan],
    after: Sequence[Plan],
    factors: Mapping[str, float] = NONE,
) -> float:
    """Returns the predicted share of a step of each plan saved against those before, at least 0."""

    def takes(plans: Sequence[Plan]) -> float:
        return sum(step_nanoseconds(*pair, factors) for pair in zip(subjects, plans, strict=True))

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


def _slowed(subject: Subject, plan: Plan, factors: Mapping[str, float]) -> tuple[Cluster, str, str]:
    """Returns cluster and profile with these factors, and the profile's file."""
    machines = subject.machines
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
