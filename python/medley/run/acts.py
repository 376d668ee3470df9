"""Collective results of all processes of an elastic run, which tolerate node losses. A result of
one process counts for all. The others receive it when the next generation begins, and a process
that joins later when its script reaches the place. Parameter reads cannot be sent: all processes
repeat them with a process that lacks them."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable
from typing import Any

import safetensors.torch
from torch import Tensor

from medley.run import exchange
from medley.run.elastic import Member
from medley.run.job import Job
from medley.run.journal import SCRIPT, Journal, Kind, Step
from medley.run.lives import Progress

_TENSOR = "tensor"
_FILE = "safetensors"  # only key of an entry that stands for a tensor


class Acts:
    """The results of one process, recorded in its journal."""

    def __init__(self, member: Member, journal: Journal, progress: Progress) -> None:
        self._member, self._journal, self._progress = member, journal, progress
        self._until = self._repeated = -1  # steps
        self._fit = -1  # number of the call of `fit`

    def make(
        self, kind: Kind, place: Step, number: int, act: Callable[[], Any], this: Job | None
    ) -> None:
        """Records the result of `act`, run in all processes of the plan together, unless another
        process has sent it. It must be JSON. `this`: None without a device of the plan."""
        if self._journal.has(kind, place, number):
            return
        key = f"{kind.key}/{place[0]}/{place[1]}/{number}"
        if this is None:
            given = parse(self._member.wait(key))
        else:
            given = act()
            if this.rank == 0 and self._progress.spares:
                self._member.store.set(self._member.key(key), to_text(given))
        self._journal.record(kind, place, number, given)

    def begin_fit(self, steps: int | None) -> int | None:
        """Begins a call of `fit` that ends after `steps` steps, if known. Returns the number of
        steps after which it has ended in other processes, if it has."""
        self._fit = self._journal.ask(Kind.FIT, SCRIPT)
        ended: int | None = self._journal.find(Kind.FIT, SCRIPT, self._fit)
        return steps if ended is None else ended

    def end_fit(self, steps: int) -> None:
        """Ends the call of `fit` after `steps` steps."""
        self._journal.record(Kind.FIT, SCRIPT, self._fit, steps)

    # --- repeated reads ---

    def note_read(self, make: Callable[[], Any], oldest: int) -> None:
        """Records a read of all processes. Steps before `oldest` are never repeated."""
        life = self._journal.lives.newest
        place = life, self._progress.asked
        self._journal.forget(Kind.READ, (life, oldest))
        number = len(self._journal.at(Kind.READ, place))
        self._journal.record(Kind.READ, place, number, (self._member.generation, make))

    def begin_generation(self) -> None:
        """Resets the comparison: other processes may have read less than this one."""
        self._until, self._repeated = max(self._until, self._progress.asked + 1), -1

    def repeat(self, steps: int, comes: bool) -> None:
        """Repeats the reads after `steps` steps that another process lacks. All processes call it
        when they continue there. `comes`: this one is at a read."""
        if steps > self._until or steps == self._repeated:
            return
        self._repeated = steps
        member, place = self._member, (self._journal.lives.newest, steps)
        read = self._journal.at(Kind.READ, place)
        made = [make for generation, make in read if generation < member.generation]
        count = len(made) if made or comes else sys.maxsize  # other processes pass without a read
        member.store.set(member.key(f"reads/{steps}/{member.name}"), str(count))
        if not made:
            return
        counts = [int(member.wait(f"reads/{steps}/{name}")) for name in self._progress.members]
        for make in made[min(counts) :]:
            make()

    # --- other processes ---

    def share(self, is_new: bool, steps: int, more: Any) -> Any:
        """Lets all processes load the journal of the most advanced one, unless they are equally
        advanced, and agree on the save to repeat. Returns the value of `more` from that process in
        those that load, else None. All members of a generation that begins after `steps` steps call
        it. `is_new`: this process has no state."""
        member, journal = self._member, self._journal
        own = [-1, 0, 0]
        if not is_new:
            own = [journal.count(), min(len(journal.lives.last.seen), steps), self._progress.asked]
        every = exchange.values([own, journal.writing])
        progress = [each[:2] for each, _ in every]
        most = max(progress)
        loaded = None
        if own[:2] < most:
            records, loaded = parse(member.wait("journal"))
            journal.load(records)
        elif member.name == member.members[progress.index(most)] and min(progress) < most:
            text = to_text([journal.export(steps), more])
            member.store.set(member.key("journal"), text)
        writing = next((each for _, each in every if each is not None), None)
        journal.set_writing(-1 if writing is None else writing[1], writing)
        self._until = max(self._until, *(each[2] + 1 for each, _ in every))
        return loaded


def to_text(value: Any) -> str:
    """Returns a value as JSON text, with each tensor as a safetensors file."""
    return json.dumps(value, default=_packed)


def parse(text: str) -> Any:
    """Returns the value of a text."""
    return json.loads(text, object_hook=_unpacked)


def _packed(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return float(value)
    file = safetensors.torch.save({_TENSOR: value.detach().cpu().contiguous()})
    return {_FILE: base64.b64encode(file).decode()}


def _unpacked(found: dict[str, Any]) -> Any:
    if found.keys() != {_FILE}:
        return found
    return safetensors.torch.load(base64.b64decode(found[_FILE]))[_TENSOR]
