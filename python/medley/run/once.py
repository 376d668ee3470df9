"""Acts of an elastic run that all processes make together, each once, whoever is lost meanwhile.

One that somebody has made is over for all: the others are told what it gave when the next epoch
begins, and who comes later gets it at once, when its script comes there. One that nobody has made
is made again in the next epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from medley.metrics import scalars_of
from medley.run import exchange, told
from medley.run.elastic import Member

if TYPE_CHECKING:
    from medley.run.recovery import Recovery

MOST_BYTES = 64 << 20  # of tensors that acts gave
Place = tuple[int, int]  # the life of a run, and the steps that the script has asked for in it


class Once:
    """Acts that a run makes once, under one name in the store. An act is known by its place, which
    is the life of the run and the steps before it, and as the first, second, ... there; its result
    can be written as JSON."""

    def __init__(self, recovery: Recovery, member: Member, name: str) -> None:
        self._recovery = recovery
        self._member = member
        self._name = name
        self._made: list[tuple[Place, Any]] = []  # where; what it gave
        self._asked = ((0, -1), 0)  # where the script has asked last, for so many

    @property
    def last(self) -> tuple[int, Any] | None:
        """After how many steps the last one was made in this life, and what it gave."""
        if not self._made or self._made[-1][0][0] != self._recovery.place[0]:
            return None
        (_, steps), given = self._made[-1]
        return steps, given

    def make(self, act: Callable[[], Any]) -> Any:
        """Returns what `act` gives, in all processes of the plan together, or has given before this
        process has come; None of what was before the run began from a checkpoint."""
        place = self._recovery.place
        number = self._asked[1] if self._asked[0] == place else 0
        self._asked = place, number + 1
        if number >= len(self._at(place)):
            if self._recovery.is_behind:
                return None
            self._recovery.call(lambda: self._add(place, number, act))
        return self._at(place)[number]

    def _at(self, place: Place) -> list[Any]:
        return [given for each, given in self._made if each == place]

    def _add(self, place: Place, number: int, act: Callable[[], Any]) -> None:
        if number < len(self._at(place)):
            return
        key = f"{self._name}/{place[0]}/{place[1]}/{number}"
        this = self._recovery.job_now
        if this is None:  # no device of the plan
            given = told.parse(self._member.wait(key))
        else:
            given = act()
            if this.rank == 0 and self._recovery.spares:
                self._member.store.set(self._member.key(key), told.to_text(given))
        self._made.append((place, given))
        self._drop_old()

    def _drop_old(self) -> None:
        """Drops the oldest tensors of more than so many bytes, but never those of the last act."""
        room = MOST_BYTES
        for number in reversed(range(len(self._made))):
            place, given = self._made[number]
            if isinstance(given, dict) and (size := _bytes_of(given)):
                room -= size
                if room < 0 and number < len(self._made) - 1:
                    self._made[number] = place, scalars_of(given)

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
            made = told.parse(member.wait(self._name))
            self._made = [((life, steps), given) for (life, steps), given in made]
        elif member.group is not None and member.group.rank == counts.index(most):
            member.store.set(member.key(self._name), told.to_text(self._made))


def share(all_acts: Sequence[Once], text: str) -> list[str]:
    """Lets all catch up with who has made most; returns the text of each member. All members of an
    epoch call it together."""
    heard = exchange.values([[acts.count() for acts in all_acts], text])
    for number, acts in enumerate(all_acts):
        acts.catch_up([counts[number] for counts, _ in heard])
    return [text for _, text in heard]


def _bytes_of(given: dict[str, Any]) -> int:
    return sum(value.nbytes for value in given.values() if isinstance(value, Tensor))
