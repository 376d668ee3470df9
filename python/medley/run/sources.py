"""Where the state of an epoch that begins comes from: what its members have, else what they keep of
an older step, else a checkpoint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from medley import _core, _runtime
from medley.run import epochs
from medley.run.elastic import Member
from medley.run.epochs import Agreement
from medley.run.second_homes import SecondHomes

# A plan's program, devices that have what it gives them, and what these keep for others.
_Holders = tuple[_core.Program | None, list[int], _core.SecondHomes | None]


@dataclasses.dataclass(frozen=True)
class Source:
    """Where all of a state comes from."""

    what: str  # memory, second homes or checkpoint
    done: int  # steps
    moves: _core.Moves
    state: _runtime.KeptState  # what this process has of it
    saved: list[tuple[str, int, bool]]  # checkpoints, newest first: then these alone


class Sources:
    """As one member sees them; all members find the same."""

    def __init__(
        self,
        member: Member,
        number: Callable[[str], int],
        program: Callable[[int], _core.Program],
        second: SecondHomes | None,
    ) -> None:
        self._member = member
        self._number = number  # of a device, by its name
        self._program = program  # of an epoch
        self._second = second

    def newest(self, agreement: Agreement, after: _core.Program, run: Any) -> Source:
        """Returns the newest from which all comes that a program wants; `run`: of this process, if
        it has one. Raises ValueError if there is none."""
        done = agreement.step + 1
        here = _runtime.KeptState()
        if run is not None and agreement.states[self._member.name] >= 0:
            here = _runtime.KeptState.hold(run)
        holders, copies = self._current(agreement), self._copies(agreement)
        for older, epoch, devices in copies[:1]:
            if older == done:
                holders.append((None, devices, self._homes(epoch)))
                here = here.with_homes_of(self._version(epoch, done))
        moves = _core.Moves(holders, after)
        if not moves.lost:
            return Source("memory", done, moves, here, [])
        lost = moves.lost
        for older, epoch, devices in copies:
            moves = _core.Moves([(self._program(epoch), devices, self._homes(epoch))], after)
            if not moves.lost:
                return Source("second homes", older, moves, self._version(epoch, older), [])
        if saved := self._saved(agreement):
            return Source("checkpoint", min(saved[0][1], done), moves, here, saved)
        raise ValueError(_lost(lost))

    def _current(self, agreement: Agreement) -> list[_Holders]:
        """Returns who has what of the state after the agreed step."""
        devices: dict[int, list[int]] = {}
        for name, state in agreement.states.items():
            if state >= 0:
                devices.setdefault(state, []).append(self._number(name))
        return [(self._program(epoch), each, None) for epoch, each in sorted(devices.items())]

    def _copies(self, agreement: Agreement) -> list[tuple[int, int, list[int]]]:
        """Returns the steps done in copies that there are, the epoch of their plan, and which
        devices have them; the newest first."""
        devices: dict[tuple[int, int], list[int]] = {}
        for name in agreement.members:
            for epoch, done in agreement.kept.get(name, []):
                if done <= agreement.step + 1:
                    devices.setdefault((done, epoch), []).append(self._number(name))
        found = sorted(devices.items(), reverse=True)
        return [(done, epoch, each) for (done, epoch), each in found]

    def _homes(self, epoch: int) -> _core.SecondHomes:
        assert self._second is not None  # or nobody would have copies
        return self._second.of(epoch)

    def _version(self, epoch: int, done: int) -> _runtime.KeptState:
        found = None if self._second is None else self._second.version(epoch, done)
        return _runtime.KeptState() if found is None else found.state

    def _saved(self, agreement: Agreement) -> list[tuple[str, int, bool]]:
        """Returns the complete checkpoints of this run, newest first, as the eldest sees them."""
        member = self._member
        if agreement.eldest == member.name:
            found = [
                (path, step, True)
                for path, step in epochs.checkpoints_for(member.store, agreement.step + 1)
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
