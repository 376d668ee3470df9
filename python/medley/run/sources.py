"""Sources of the state of a new generation: the members, else their copies of an older step, else a
checkpoint. Each objective has a part of the state, and all apply in turn."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medley import _core, _runtime
from medley._core import Agreement
from medley.run import generations
from medley.run.elastic import Member
from medley.run.replicas import Copies

if TYPE_CHECKING:
    from medley.run.objectives import Objectives

# A plan's program, the devices with its state, and the copies that these keep for others.
_Holders = tuple[_core.Program | None, list[int], _core.StateReplicas | None]


@dataclasses.dataclass(frozen=True)
class Source:
    """The source of a whole state."""

    what: str  # memory, state replicas or checkpoint
    done: int  # steps
    moves: list[_core.ReshardPlan]
    states: list[_runtime.KeptState]  # the part of this process
    saved: list[tuple[str, int, bool]]  # checkpoints, newest first; then the only source


class Sources:
    """The sources as one member sees them. All members compute the same."""

    def __init__(self, objectives: Objectives, member: Member, second: Copies | None) -> None:
        self._number, self._programs = objectives.number, objectives.programs
        self._member, self._second = member, second

    def newest(
        self,
        agreement: Agreement,
        after: Sequence[_core.Program],
        runs: Sequence[Any],
        others: Sequence[Sequence[tuple[str, str]]],
    ) -> Source:
        """Returns the newest source of all values that programs need. Raises ValueError if there is
        none. `runs`: those of this process, or None. `others`: values of each program that come
        with others."""
        done = agreement.step + 1
        has_state = agreement.states[self._member.name] >= 0
        here = [
            _runtime.KeptState.hold(run) if run is not None and has_state else _runtime.KeptState()
            for run in runs
        ]
        current = [self._current(agreement, place) for place in range(len(after))]
        copies = self._copies(agreement)
        for older, generation, devices in copies[:1]:
            if older == done:
                current[0].append((None, devices, self._replicas(generation)))
                here[0] = here[0].with_replicas_of(self._version(generation, done))
        moves = [_core.ReshardPlan(*each) for each in zip(current, after, others, strict=True)]
        if not (lost := [box for each in moves for box in each.lost]):
            return Source("memory", done, moves, here, [])
        for older, generation, devices in copies:
            there = (
                self._programs(generation)[0],
                devices,
                self._replicas(generation),
            )  # only with one trainer
            moves = [_core.ReshardPlan([there], after[0])]
            if not moves[0].lost:
                return Source("replicas", older, moves, [self._version(generation, older)], [])
        if saved := self._saved(agreement):
            return Source("checkpoint", min(saved[0][1], done), [], here, saved)
        raise ValueError(_lost(lost))

    def _current(self, agreement: Agreement, place: int) -> list[_Holders]:
        """Returns the devices with the state after the agreed step, for a program by its place."""
        devices: dict[int, list[int]] = {}
        for name, state in agreement.states.items():
            if state >= 0:
                devices.setdefault(state, []).append(self._number(name))
        return [
            (self._programs(generation)[place], each, None)
            for generation, each in sorted(devices.items())
        ]

    def _copies(self, agreement: Agreement) -> list[tuple[int, int, list[int]]]:
        """Returns the available copies, newest first: steps done, generation of their plan, and
        devices."""
        devices: dict[tuple[int, int], list[int]] = {}
        for name in agreement.members:
            for generation, done in agreement.kept.get(name, []):
                if done <= agreement.step + 1:
                    devices.setdefault((done, generation), []).append(self._number(name))
        found = sorted(devices.items(), reverse=True)
        return [(done, generation, each) for (done, generation), each in found]

    def _replicas(self, generation: int) -> _core.StateReplicas:
        assert self._second is not None  # otherwise no copies exist
        return self._second.of(generation)

    def _version(self, generation: int, done: int) -> _runtime.KeptState:
        found = None if self._second is None else self._second.version(generation, done)
        return _runtime.KeptState() if found is None else found.state

    def _saved(self, agreement: Agreement) -> list[tuple[str, int, bool]]:
        """Returns the complete checkpoints of this run, newest first, as seen by the eldest
        process."""
        member = self._member
        if agreement.eldest == member.name:
            found = [
                (path, step, True)
                for path, step in generations.checkpoints_for(member.store, agreement.step + 1)
                if Path(path, "COMMIT").exists()
            ]
            found.sort(key=lambda each: -each[1])
            member.store.set(member.key("saved"), json.dumps(found))
        return [(str(path), int(step), True) for path, step, _ in json.loads(member.wait("saved"))]


def _lost(boxes: list[str]) -> str:
    more = f" and {len(boxes) - 3} more" if len(boxes) > 3 else ""
    return (
        f"what only lost devices had cannot be restored: {'; '.join(boxes[:3])}{more}; this run "
        "has completed no checkpoint to go back to"
    )
