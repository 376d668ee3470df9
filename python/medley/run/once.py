"""Acts of an elastic run that all processes make together, each once, whoever is lost meanwhile.

One that somebody has made is over for all: the others are told what it gave when the next epoch
begins, and who comes later gets it at once, when its script comes there. One that nobody has made
is made again in the next epoch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from medley.run import exchange
from medley.run.elastic import Member

if TYPE_CHECKING:
    from medley.run.recovery import Recovery


class Once:
    """Acts that a run makes once, under one name in the store. An act is known by the steps before
    it, and as the first, second, ... after these; its result can be written as JSON."""

    def __init__(self, recovery: Recovery, member: Member, name: str) -> None:
        self._recovery = recovery
        self._member = member
        self._name = name
        self._made: list[tuple[int, Any]] = []  # after so many steps; what it gave
        self._asked = (-1, 0)  # after so many steps, for so many by the script

    @property
    def last(self) -> tuple[int, Any] | None:
        """After how many steps the last one was made, and what it gave."""
        return self._made[-1] if self._made else None

    def make(self, act: Callable[[], Any]) -> Any:
        """Returns what `act` gives, in all processes of the plan together, or has given before this
        process has come; None of what was before the run began from a checkpoint."""
        steps = self._recovery.asked
        number = self._asked[1] if self._asked[0] == steps else 0
        self._asked = steps, number + 1
        if number >= len(self._after(steps)):
            if self._recovery.is_behind:
                return None
            self._recovery.call(lambda: self._add(steps, number, act))
        return self._after(steps)[number]

    def _after(self, steps: int) -> list[Any]:
        return [given for step, given in self._made if step == steps]

    def _add(self, steps: int, number: int, act: Callable[[], Any]) -> None:
        if number < len(self._after(steps)):
            return
        key = f"{self._name}/{steps}/{number}"
        this = self._recovery.job_now
        if this is None:  # no device of the plan
            given = json.loads(self._member.wait(key))
        else:
            given = act()
            if this.rank == 0:
                self._member.store.set(self._member.key(key), json.dumps(given, default=float))
        self._made.append((steps, given))

    def count(self) -> int:
        """Returns how many were made, as far as this process knows."""
        return len(self._made)

    def catch_up(self, counts: Sequence[int]) -> None:
        """Lets those know what was given who have not made all that others have. All members of an
        epoch call it, with the count of each."""
        member, most = self._member, max(counts)
        if min(counts) == most:
            return
        if len(self._made) < most:
            self._made = [(step, given) for step, given in json.loads(member.wait(self._name))]
        elif member.group is not None and member.group.rank == counts.index(most):
            member.store.set(member.key(self._name), json.dumps(self._made, default=float))


def share(all_acts: Sequence[Once], text: str) -> list[str]:
    """Lets all catch up with who has made most; returns the text of each member. All members of an
    epoch call it together."""
    told = exchange.values([[acts.count() for acts in all_acts], text])
    for number, acts in enumerate(all_acts):
        acts.catch_up([counts[number] for counts, _ in told])
    return [text for _, text in told]
