"""The trainers that a run recovers: one, whose objective is "", or several over one state. Their
plans and programs by epoch, and the runs of an epoch that begins, with the state that these get."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from medley import _core, _runtime, checkpoint
from medley.cluster import Cluster
from medley.plan import Plan
from medley.run import devices, exchange, job
from medley.run.ahead import key_of
from medley.run.elastic import Member
from medley.run.epochs import Agreement
from medley.run.replanning import NONE, replan_all, saved
from medley.run.sources import Source
from medley.run.tempo import Factors, wanted
from medley.whole_tensors import CONSTANT

if TYPE_CHECKING:
    from medley.checkpoint import Saving, Wanted
    from medley.cursor import Cursor
    from medley.shared_state import SharedState
    from medley.trainer import Trainer

MOVE_SECONDS = 600.0
Moved = dict[str, int]  # bytes by source
_NOTHING_MOVED: Moved = dict.fromkeys(("kept", "received", "sent", "homes", "read"), 0)


class Whole(Protocol):
    """What a run recovers: a trainer, or several over one state."""

    _saver: Any

    @property
    def _trainers(self) -> Mapping[str, Trainer]:
        """By objective."""

    @property
    def _state(self) -> SharedState | None:
        """The state that several trainers share; None of one."""

    def _save(self, folder: str, saving: Saving, wait: bool, data: Cursor | None) -> str: ...

    def _wanted(self, runs: Mapping[str, Any], path: str, manifest: Any) -> list[Wanted]:
        """Returns what runs, None without a device of the plan, find in a checkpoint of all."""

    def _seeds(self, manifest: Any) -> list[int]: ...


class Objectives:
    """As one member of a run has them."""

    def __init__(self, whole: Whole, member: Member, this: job.Job) -> None:
        self.whole = whole
        self._member = member
        self._job = this
        self._plans: dict[int, list[Plan]] = {}  # by epoch
        self._programs: dict[int, list[_core.Program]] = {}

    @property
    def trainers(self) -> list[Trainer]:
        """Returns them in order."""
        return list(self.whole._trainers.values())

    @property
    def first(self) -> Trainer:
        """The one whose run watches over all, and whose plan says who is first."""
        return next(iter(self.whole._trainers.values()))

    # --- plans ---

    def begin(self, epoch: int) -> None:
        """The runs of the first epoch stand."""
        trainers, member = self.trainers, self._member
        self._plans[epoch] = [trainer.plan for trainer in trainers]
        self._programs[epoch] = [trainer._program for trainer in trainers]
        if member.name == self.plans(epoch)[0].devices[0]:
            self._tell(self.plans(epoch))
        self.take_order(member.members)

    def plans(self, epoch: int) -> list[Plan]:
        """Returns those of an epoch that this process knows."""
        return self._plans[epoch]

    def programs(self, epoch: int) -> list[_core.Program]:
        """Returns those of any epoch."""
        if epoch not in self._programs:
            text = self._member.store.get(self._member.key("plans", epoch))
            assert text is not None
            self._add(epoch, self._parse(text))
        return self._programs[epoch]

    def plan(self, agreement: Agreement, state: int) -> list[Plan]:
        """Returns the plans of the epoch that begins: the eldest plans for all, of whose epoch
        `state` is."""
        member = self._member
        if agreement.eldest == member.name:
            known = self._plans[state]
            new = [name for name, each in agreement.states.items() if each < 0]
            factors = {n: f for n, f in wanted(member).items() if n not in new}
            wanted(member, factors)
            member.store.set(member.key("factors"), json.dumps(factors))
            before = self.factors(state)
            ahead = None
            if not before and not factors and set(known[0].devices) - set(agreement.staying):
                ahead = member.store.get(member.key(key_of(agreement.staying), state))
            if ahead is None:
                found = replan_all(self.trainers, known, agreement.staying, before, factors)
            else:
                found = self._made(json.loads(ahead))
                member.store.set(member.key("ahead"), "yes")
            self._tell(found)
        plans = self._parse(member.wait("plans"))
        self._add(agreement.epoch, plans)
        return plans

    def factors(self, epoch: int) -> Factors:
        """Returns how many times as long devices take, as the plans of an epoch have it."""
        text = self._member.store.get(self._member.key("factors", epoch))
        return {} if text is None else dict(json.loads(text))

    def forget(self, needed: set[int]) -> None:
        """Drops what is of other epochs."""
        for old in self._programs.keys() - needed:
            del self._programs[old], self._plans[old]

    def gain(self, offered: Sequence[str]) -> float:
        """Returns which part of a step would be saved with more devices, as it is predicted."""
        text = self._member.store.get(self._member.key("plans"))
        if not offered or text is None:
            return 0.0
        now = self._parse(text)
        others = [name for name in now[0].devices if name not in offered]
        try:
            before = replan_all(self.trainers, now, others)
            after = replan_all(self.trainers, now, [*others, *offered])
        except ValueError:  # there is none
            return 0.0
        return saved(self.trainers, before, after)

    def gain_with(self, members: Sequence[str], planned: Factors, factors: Factors) -> float:
        """Returns which part of a step would be saved by plans that count with how long devices
        take now."""
        now = [trainer.plan for trainer in self.trainers]
        try:
            after = replan_all(self.trainers, now, members, planned or NONE, factors)
        except ValueError:  # there is none
            return 0.0
        return saved(self.trainers, now, after, factors)

    def _tell(self, plans: Sequence[Plan]) -> None:
        texts = dict(zip(self.whole._trainers, (plan.text for plan in plans), strict=True))
        self._member.store.set(self._member.key("plans"), json.dumps(texts))

    def _parse(self, text: str) -> list[Plan]:
        told = json.loads(text)
        return self._made([told[name] for name in self.whole._trainers])

    def _made(self, texts: Sequence[str]) -> list[Plan]:
        return [
            Plan(text, trainer._graph, trainer._machines, trainer.plan.profile)
            for trainer, text in zip(self.trainers, texts, strict=True)
        ]

    def _add(self, epoch: int, plans: list[Plan]) -> None:
        self._plans[epoch] = plans
        self._programs[epoch] = [
            trainer._program_of(plan) for trainer, plan in zip(self.trainers, plans, strict=True)
        ]

    # --- the runs of an epoch that begins ---

    def number(self, name: str) -> int:
        """Returns that of a device in the cluster."""
        return number_of(self.first._machines, name)

    def peers(self, members: Sequence[str]) -> _runtime.MovePeers:
        """Returns how the processes of these devices, in the order of their ranks, give each other
        state."""
        machines, group = self.first._machines, exchange.group_name()
        return move_peers(machines, members, self._member.name, group, MOVE_SECONDS)

    def job_of(self, devices: Sequence[str]) -> job.Job | None:
        """Returns this process as one of these; None if it is none of them."""
        if self._member.name not in devices:
            return None
        rank = list(devices).index(self._member.name)
        return dataclasses.replace(self._job, rank=rank, size=len(devices))

    def make_runs(self, epoch: int, members: Sequence[str]) -> list[Any]:
        """Returns the runs of this process, which have no state yet; None if the plans do not use
        its device."""
        runs: list[Any] = []
        for trainer, plan, program in zip(
            self.trainers, self._plans[epoch], self._programs[epoch], strict=True
        ):
            this = self.job_of(plan.devices)
            with exchange.reordered(order_of(plan, members)):
                if this is None:
                    devices.accelerators_of_all(self._job.local_rank)
                    if trainer is not self.first:
                        exchange.is_same(program.hash())
                    runs.append(None)
                else:
                    runs.append(trainer._make_run(plan, program, this))
        return runs

    def fetch(self, source: Source, runs: Sequence[Any], members: Sequence[str]) -> Moved:
        """Gives new runs their state, together with all members; returns the bytes by source."""
        peers = self.peers(members)
        moved = dict(_NOTHING_MOVED)
        for moves, state, run in zip(source.moves, source.states, runs, strict=True):
            for name, count in _runtime.move_state(moves, state, run, peers).items():
                moved[name] += count
        return moved

    def take_saved(
        self, source: Source, runs: Sequence[Any], members: Sequence[str]
    ) -> tuple[checkpoint.Checkpoint, list[int], Moved]:
        """Gives new runs what they have of a checkpoint, as all members do; returns it, the seeds
        and the bytes by source."""
        by_name = dict(zip(self.whole._trainers, runs, strict=True))
        taken = checkpoint.read_newest(
            lambda path, manifest: self.whole._wanted(by_name, path, manifest),
            self.job_of(members),
            source.saved,
        )
        assert taken is not None
        found, manifest = taken
        if self._member.name == members[0]:
            checkpoint.say(f"all go back to {found.path}")
        held = [
            run.shard(*each)
            for run in runs
            if run is not None
            for each in run.values
            if lasts(*each)
        ]
        read = sum(shard.nbytes for shard in held if shard is not None)
        return found, self.whole._seeds(manifest), _NOTHING_MOVED | {"read": read}

    def load_constants(self, runs: Sequence[Any]) -> None:
        """Gives new runs what is part of their graphs."""
        for trainer, run in zip(self.trainers, runs, strict=True):
            for kind, name in [] if run is None else run.values:
                if name.startswith(CONSTANT):
                    run.load(kind, name, trainer._graph.constants[name].detach().cpu())

    def hand_over(self, epoch: int, runs: Sequence[Any], members: Sequence[str]) -> None:
        """From now on the trainers have these runs, and plans and programs of this epoch."""
        whole = self.whole
        if whole._saver is not None:
            whole._saver.close()
        for trainer in self.trainers:
            trainer._drift = trainer._saver = None
        whole._saver = None
        for trainer, plan, program, run in zip(
            self.trainers, self._plans[epoch], self._programs[epoch], runs, strict=True
        ):
            trainer.plan, trainer._program, trainer._run = plan, program, run
            trainer._job = self.job_of(plan.devices)
            trainer._evaluation.move(plan, trainer._job)
        self.take_order(members)
        first = self.first
        if first._job is not None:
            whole._saver = checkpoint.Saver(first._run, first._program, first._job)

    def take_order(self, members: Sequence[str]) -> None:
        """The processes have their ranks in this order."""
        for trainer in self.trainers:
            trainer._order = order_of(trainer.plan, members)


def move_peers(
    machines: Cluster, devices: Sequence[str], own: str, group: str, seconds: float
) -> _runtime.MovePeers:
    """Returns how the processes of these devices, in the order of their ranks, give each other
    state: through the group of this name, within so many seconds; `own`: of this process."""
    numbers = [number_of(machines, name) for name in devices]
    return _runtime.MovePeers(group, numbers, number_of(machines, own), round(1000 * seconds))


def number_of(machines: Cluster, device: str) -> int:
    """Returns that of a device in its cluster."""
    number = machines.find(device)
    assert number is not None
    return number


def order_of(plan: Plan, members: Sequence[str]) -> list[int] | None:
    """Returns the rank among all members of each device of a plan, and then of all others; None if
    they are in this order."""
    names = plan.devices + [name for name in members if name not in plan.devices]
    order = [members.index(name) for name in names]
    return None if order == sorted(order) else order


def lasts(kind: str, name: str) -> bool:
    """Whether a value outlives a step."""
    return kind != "gradient" and not name.startswith(CONSTANT)
