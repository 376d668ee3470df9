"""Behind how many steps the calls of `fit` in a script have ended. Where the loader does not say
how long it is, who is started again could not know which steps behind them are the script's own."""

from __future__ import annotations


class Fits:
    """Of one process, and what it is told of those that the others have left."""

    def __init__(self) -> None:
        self._ended: dict[int, int] = {}  # steps, by the number of the call
        self._number = -1

    def begin(self, steps: int | None) -> int | None:
        """Another call begins, which ends after so many, if that is known; returns after how many
        it has, if others have left it."""
        self._number += 1
        return self._ended.get(self._number, steps)

    def end(self, steps: int) -> None:
        """It ends after so many."""
        self._ended[self._number] = steps

    def told(self) -> list[tuple[int, int]]:
        """Returns what others hear()."""
        return list(self._ended.items())

    def hear(self, told: list[tuple[int, int]]) -> None:
        """What others have told."""
        self._ended = dict(told)
