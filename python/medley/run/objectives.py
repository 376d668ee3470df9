"""The engines that a run recovers: one, whose objective is "", or several over one state. This
module has their plans and programs by generation, and makes the runs of a new generation with their
state."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from medley import _core, _runtime, checkpoint
from medley._core import Agreement
from medley.cluster import Cluster
from medley.plan import Plan
from medley.run import devices, exchange, job
from medley.run.ahead import key_of
from medley.run.elastic import Member
from medley.run.generations import PREFIX, WISH
from medley.run.patience import say
from medley.run.replanning import NONE, Subject, replan_all, saved
from medley.run.sources import Source
from medley.whole import Whole
from medley.whole_tensors import CONSTANT

MOVE_SECONDS = 600.0
Factors = dict[str, float]  # slow-down relative to the device type, by device
Moved = dict[str, int]  # bytes by source
_NOTHING_MOVED: Moved = dict.fromkeys(("kept", "received", "sent", "replicas", "read"), 0)


class Objectives:
    """The engines of one member of a run."""

    def __init__(self, whole: Whole, member: Member, this: job.Job) -> None:
        self.whole = whole
        self.engines = list(whole.engines.values())
        self.first = whole.first
        self._member = member
        self._job = this
        self._plans: dict[int, list[Plan]] = {}  # by generation
        self._programs: dict[int, list[_core.Program]] = {}

    # --- plans ---

    def begin(self, generation: int) -> None:
        """Starts the first generation, whose runs exist."""
        member = self._member
        self._plans[generation] = [engine.plan for engine in self.engines]
        self._programs[generation] = [engine.program for engine in self.engines]
        if member.name == self.plans(generation)[0].devices[0]:
            self._tell(self.plans(generation))
        self.take_order(member.members)

    def plans(self, generation: int) -> list[Plan]:
        """Returns the known plans of a generation."""
        return self._plans[generation]

    def programs(self, generation: int) -> list[_core.Program]:
        """Returns the programs of any generation."""
        if generation not in self._programs:
            text = self._member.store.get(self._member.key("plans", generation))
            assert text is not None
            self._add(generation, self._parse(text))
        return self._programs[generation]

    def plan(self, agreement: Agreement, state: int, has_stepped: bool) -> list[Plan]:
        """Returns the plans of the new generation. The eldest process plans for all. `state`:
        generation of its state. `has_stepped`: a step has succeeded in it."""
        member = self._member
        if agreement.eldest == member.name:
            known = self._plans[state]
            new = [name for name, each in agreement.states.items() if each < 0]
            factors = {n: f for n, f in wanted_factors(member).items() if n not in new}
            wanted_factors(member, factors)
            member.store.set(member.key("factors"), json.dumps(factors))
            before = self.factors(state)
            ready = None if before or factors else self._ready(agreement, state, known, has_stepped)
            if ready is None:
                found = replan_all(self._subjects(), known, agreement.staying, before, factors)
            else:
                found = self._made(json.loads(ready))
                member.store.set(member.key("ahead"), "yes")
            self._tell(found)
        plans = self._parse(member.wait("plans"))
        self._add(agreement.generation, plans)
        return plans

    def _ready(
        self, agreement: Agreement, state: int, known: Sequence[Plan], has_stepped: bool
    ) -> str | None:
        """Returns the plans that exist before the new generation: requested ones, those before if
        requested ones have failed, or after a loss those for it."""
        member, staying = self._member, agreement.staying
        if set(known[0].devices) - set(staying):
            return member.store.get(member.key(key_of(staying), state))
        same = agreement.generation == state + 1 and sorted(staying) == sorted(member.members)
        if not same:
            return None
        wish = member.store.get(member.key(WISH, state - 1))
        if not has_stepped and wish == json.dumps([each.text for each in known]):
            before = json.loads(member.store.get(member.key("plans", state - 1)) or "{}")
            return json.dumps(list(before.values()))
        return member.store.get(member.key(WISH, state))

    def _subjects(self) -> list[Subject]:
        return [Subject.of(engine) for engine in self.engines]

    def request(self, plan: Plan) -> None:
        """Requests a plan of the only objective for the next generation, if it can run."""
        if set(plan.devices) <= set(self._member.members):  # none is lost
            self._member.store.set(self._member.key(WISH), json.dumps([plan.text]))

    def factors(self, generation: int) -> Factors:
        """Returns the slow-down factors of devices in the plans of a generation."""
        text = self._member.store.get(self._member.key("factors", generation))
        return {} if text is None else dict(json.loads(text))

    def forget(self, needed: set[int]) -> None:
        """Drops the values of other generations."""
        for old in self._programs.keys() - needed:
            del self._programs[old], self._plans[old]

    def gain(self, offered: Sequence[str]) -> float:
        """Returns the predicted share of a step saved by additional devices."""
        text = self._member.store.get(self._member.key("plans"))
        if not offered or text is None:
            return 0.0
        now = self._parse(text)
        others = [name for name in now[0].devices if name not in offered]
        subjects = self._subjects()
        try:
            before = replan_all(subjects, now, others)
            after = replan_all(subjects, now, [*others, *offered])
        except ValueError:  # no plan exists
            return 0.0
        return saved(subjects, before, after)

    def gain_with(self, members: Sequence[str], planned: Factors, factors: Factors) -> float:
        """Returns the predicted share of a step saved by plans for the current slow-down
        factors."""
        subjects, now = self._subjects(), [engine.plan for engine in self.engines]
        try:
            after = replan_all(subjects, now, members, planned or NONE, factors)
        except ValueError:  # no plan exists
            return 0.0
        return saved(subjects, now, after, factors)

    def _tell(self, plans: Sequence[Plan]) -> None:
        texts = dict(zip(self.whole.engines, (plan.text for plan in plans), strict=True))
        self._member.store.set(self._member.key("plans"), json.dumps(texts))

    def _parse(self, text: str) -> list[Plan]:
        published = json.loads(text)
        return self._made([published[name] for name in self.whole.engines])

    def _made(self, texts: Sequence[str]) -> list[Plan]:
        return [
            Plan(text, engine.graph, engine.machines, engine.plan.profile)
            for engine, text in zip(self.engines, texts, strict=True)
        ]

    def _add(self, generation: int, plans: list[Plan]) -> None:
        self._plans[generation] = plans
        self._programs[generation] = [
            engine.program_of(plan) for engine, plan in zip(self.engines, plans, strict=True)
        ]

    def replicas(self, generation: int) -> _core.StateReplicas:
        """Returns the places of state replicas under the plan of a generation, for the only
        objective."""
        replicas = _core.StateReplicas(self.programs(generation)[0], self.first.machines)
        if replicas.without and self._member.name == self.plans(generation)[0].devices[0]:
            say(
                f"state replicas: no device has memory for {replicas.without} bytes that one "
                f"failure would "
                "take; a checkpoint may bring them back"
            )
        return replicas

    # --- the runs of a new generation ---

    def number(self, name: str) -> int:
        """Returns the number of a device in the cluster."""
        return number_of(self.first.machines, name)

    def peers(self, members: Sequence[str]) -> _runtime.ReshardPeers:
        """Returns the connections by which these processes, in rank order, exchange state."""
        machines, group = self.first.machines, exchange.group_name()
        return reshard_peers(machines, members, self._member.name, group, MOVE_SECONDS)

    def job_of(self, devices: Sequence[str]) -> job.Job | None:
        """Returns this process as one of these, or None."""
        if self._member.name not in devices:
            return None
        rank = list(devices).index(self._member.name)
        return dataclasses.replace(self._job, rank=rank, size=len(devices))

    def make_runs(self, generation: int, members: Sequence[str]) -> list[Any]:
        """Returns the runs of this process without state, or None if the plans do not use its
        device."""
        runs: list[Any] = []
        for engine, plan, program in zip(
            self.engines, self._plans[generation], self._programs[generation], strict=True
        ):
            this = self.job_of(plan.devices)
            with exchange.reordered(order_of(plan, members)):
                if this is None:
                    devices.accelerators_of_all(self._job.local_rank)
                    if engine is not self.first:
                        exchange.is_same(program.hash())
                    runs.append(None)
                else:
                    runs.append(engine.make_run(plan, program, this))
        return runs

    def fetch(self, source: Source, runs: Sequence[Any], members: Sequence[str]) -> Moved:
        """Gives new runs their state, together with all members. Returns the bytes by source."""
        peers = self.peers(members)
        moved = dict(_NOTHING_MOVED)
        for moves, state, run in zip(source.moves, source.states, runs, strict=True):
            for name, count in _runtime.reshard_state(moves, state, run, peers).items():
                moved[name] += count
        return moved

    def take_saved(
        self, source: Source, runs: Sequence[Any], members: Sequence[str]
    ) -> tuple[checkpoint.Checkpoint, list[int], Moved]:
        """Reads new runs from a checkpoint, together with all members. Returns the checkpoint, the
        seeds and the bytes by source."""
        by_name = dict(zip(self.whole.engines, runs, strict=True))
        taken = checkpoint.read_newest(
            lambda path, manifest: self.whole.wanted(by_name, path, manifest),
            self.job_of(members),
            source.saved,
        )
        assert taken is not None
        found, manifest = taken
        if self._member.name == members[0]:
            say(f"all go back to {found.path}")
        held = [
            run.shard(*each)
            for run in runs
            if run is not None
            for each in run.values
            if lasts(*each)
        ]
        read = sum(shard.nbytes for shard in held if shard is not None)
        return found, self.whole.seeds(manifest), _NOTHING_MOVED | {"read": read}

    def load_constants(self, runs: Sequence[Any]) -> None:
        """Gives new runs the constants of their graphs."""
        for engine, run in zip(self.engines, runs, strict=True):
            engine.load_constants(run)

    def hand_over(
        self, generation: int, runs: Sequence[Any], seeds: Sequence[int], members: Sequence[str]
    ) -> None:
        """Gives the engines these runs, and the plans and programs of this generation."""
        for run, seed in zip(runs, seeds, strict=True):
            if run is not None:
                run.seed = seed
        if self.whole.saver is not None:
            self.whole.saver.close()
        for engine, plan, program, run in zip(
            self.engines, self._plans[generation], self._programs[generation], runs, strict=True
        ):
            engine.enter(plan, program, run, self.job_of(plan.devices))
        self.take_order(members)
        self.whole.open_saver()

    def take_order(self, members: Sequence[str]) -> None:
        """Sets the ranks of the processes to this order."""
        for engine in self.engines:
            engine.order = order_of(engine.plan, members)


def reshard_peers(
    machines: Cluster, devices: Sequence[str], own: str, group: str, seconds: float
) -> _runtime.ReshardPeers:
    """Returns the connections by which these processes, in rank order, exchange state through the
    group `group` within `seconds`. `own`: device of this process."""
    numbers = [number_of(machines, name) for name in devices]
    return _runtime.ReshardPeers(group, numbers, number_of(machines, own), round(1000 * seconds))


def number_of(machines: Cluster, device: str) -> int:
    """Returns the number of a device in its cluster."""
    number = machines.find(device)
    assert number is not None
    return number


def order_of(plan: Plan, members: Sequence[str]) -> list[int] | None:
    """Returns the rank among all members of each device of a plan, then of the others, or None if
    they are in order."""
    names = plan.devices + [name for name in members if name not in plan.devices]
    order = [members.index(name) for name in names]
    return None if order == sorted(order) else order


def lasts(kind: str, name: str) -> bool:
    """Returns whether a value lasts longer than a step."""
    return kind != "gradient" and not name.startswith(CONSTANT)


def wanted_factors(member: Member, factors: Factors | None = None) -> Factors:
    """Returns the factors for the next plan. `factors` replaces them."""
    key = f"{PREFIX}factors"
    if factors is not None:
        member.store.set(key, json.dumps(factors))
        return factors
    text = member.store.get(key)
    return {} if text is None else {str(n): float(f) for n, f in json.loads(text).items()}
