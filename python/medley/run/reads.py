"""What all processes make together, and nobody can be told of: parameters that all read. A process
that takes the place of a lost one comes to what the others have made after the last step, so they
make it again with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from medley.run.elastic import Member


class Reads:
    """Of one process."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._made: list[tuple[int, Callable[[], Any]]] = []  # after so many steps
        self._before: list[tuple[int, Callable[[], Any]]] = []  # this epoch
        self._members: Sequence[str] = ()
        self._until = self._told = -1  # steps

    def note(self, steps: int, make: Callable[[], Any], oldest: int) -> None:
        """That was made after so many steps. Those after less than the `oldest` are not made
        again."""
        self._made = [each for each in self._made if each[0] >= oldest]
        self._made.append((steps, make))

    def forget(self) -> None:
        """Nothing of what was made so far is made again."""
        self._made, self._before = [], []

    def begin(self, members: Sequence[str], until: int) -> None:
        """An epoch begins; the scripts of all have asked for so many steps at most."""
        self._members, self._before, self._told = members, list(self._made), -1
        self._until = max(self._until, until)

    def repeat(self, steps: int, comes: bool) -> None:
        """Makes again what was made after so many steps and another process has not. All call it
        when they go on from there; `comes`: this one to something of that kind."""
        if steps > self._until or steps == self._told:
            return
        self._told = steps
        made = [make for after, make in self._before if after == steps]
        count = len(made) if made or comes else sys.maxsize  # who passes by
        member = self._member
        member.store.set(member.key(f"reads/{steps}/{member.name}"), str(count))
        if not made:
            return
        counts = [int(member.wait(f"reads/{steps}/{name}")) for name in self._members]
        for make in made[min(counts) :]:
            make()
