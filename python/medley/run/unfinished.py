"""A checkpoint that was being written beside training when a process was lost: it is given up, and
written again where the state still comes to be that of it. Nobody would come to save it again, as
its save has returned, which may be the last one of the script."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from medley.checkpoint import Saver, Saving
from medley.cursor import Cursor

NOTHING = "-"


def own(saver: Saver | None, before: str) -> str:
    """Returns what this process was writing, or has to write since `before`."""
    writes = None if saver is None else saver.beside()
    return before if writes is None else json.dumps(writes)


def of_all(told: Iterable[str]) -> str:
    """Returns what somebody was writing or has to write, of what all members of an epoch told."""
    return next((text for text in told if text != NOTHING), NOTHING)


def save_again(
    save: Callable[[str, Saving, bool, Cursor | None], object], written: str, done: int
) -> str:
    """Begins to write that if the state is the one after so many steps; returns what is still to be
    written."""
    if written == NOTHING:
        return NOTHING
    folder, steps, saving, data = json.loads(written)
    if steps > done:
        return written
    if steps == done:
        save(folder, Saving(*saving), False, None if data is None else Cursor(*data))
    return NOTHING
