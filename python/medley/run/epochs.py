"""What the processes of an elastic run and whoever has started them tell each other in the store.

Keys, N an epoch: `run/N/agreement` who its members are and what they have; `run/N/plans` by
objective; `run/N/here/DEVICE`, `run/N/built/DEVICE`, `run/N/report/DEVICE`,
`run/N/finished/DEVICE`; `run/N/evaluates` "yes" while all evaluate; `run/N/KIND/L/S/K` what the
K-th record of a kind after S steps of the life L gave (`journal.py`), for who has no device in the
plan; `run/N/journal` all that was made before the epoch, for who lacks some of it; `run/N/end`
"finished" or "failed", whatever is there first; `run/N/reads/S/DEVICE` how much of what all read
after S steps it has read; `run/N/failure` why it has ended, and `run/N/epoch/N/failure` the same as
the core's watchdog reads and writes it; `run/lives/DEVICE` counts while its process lives;
`run/arrived/DEVICE/N` a process that was started again in epoch N; `run/saved` the checkpoints that
this run has completed, or begun with; `run/loading` the one that all read, or have read last;
`run/leaves/DEVICE` it has got notice.
"""

from __future__ import annotations

import json
import os

from medley.run import ends

PREFIX = "run/"
EVALUATES = "evaluates"
_MOST_NOTED = 50  # checkpoints


def note_checkpoint(store: ends.Store, path: str, step: int) -> None:
    """Tells of a complete checkpoint that this run may go back to. One process at a time does."""
    found = [each for each in checkpoints(store) if each[0] != os.path.abspath(path)]
    store.set(f"{PREFIX}saved", json.dumps([*found[-_MOST_NOTED:], (os.path.abspath(path), step)]))


def begin_checkpoints(store: ends.Store, path: str, step: int) -> None:
    """Tells of the only checkpoint that the run may go back to after a load; "" of none."""
    store.set(f"{PREFIX}saved", json.dumps([(os.path.abspath(path), step)] if path else []))
    if not path:
        note_load(store, "", 0, 0)


def note_load(store: ends.Store, path: str, step: int, done: int) -> None:
    """Tells, before any process reads it, of a checkpoint from which all go on after so many steps;
    "" if they do not."""
    here = [os.path.abspath(path), step, done] if path else []
    store.set(f"{PREFIX}loading", json.dumps(here))


def checkpoints(store: ends.Store) -> list[tuple[str, int]]:
    """Returns path and step of the checkpoints that were noted, in this order; some may be gone."""
    text = store.get(f"{PREFIX}saved")
    return [] if text is None else [(str(path), int(step)) for path, step in json.loads(text)]


def checkpoints_for(store: ends.Store, done: int) -> list[tuple[str, int]]:
    """Returns those that a run may go back to which has done so many steps: what it has saved in
    these, and what it was going on from, of whatever step, which all then do again."""
    found = [(path, step) for path, step in checkpoints(store) if step <= done]
    if loading := json.loads(store.get(f"{PREFIX}loading") or "[]"):
        path, step, before = loading
        if (path, step) not in found and (step <= done or before == done):
            found.append((str(path), int(step)))
    return found


def has_finished(store: ends.Store, epoch: int) -> bool:
    """Whether all members of an epoch have finished; if not, it has failed from now on, for all."""
    return store.set_first(f"{PREFIX}{epoch}/end", "failed") == "finished"


def finish_epoch(store: ends.Store, epoch: int) -> bool:
    """Whether the epoch has ended well, now that all its members have said that they finish."""
    return store.set_first(f"{PREFIX}{epoch}/end", "finished") == "finished"


def fail_epoch(store: ends.Store, epoch: int, cause: str, device: str = "", by: str = "") -> None:
    """Ends an epoch for all its members, unless somebody already has."""
    failure = {
        "epoch": epoch,
        "device": None,
        "call": "",
        "edge": "",
        "cause": cause,
        "blame": "environment",
    }
    store.set_first(f"{PREFIX}{epoch}/epoch/{epoch}/failure", json.dumps(failure))
    told = {"device": device, "told_by": by, "cause": cause}
    store.set_first(f"{PREFIX}{epoch}/failure", json.dumps(told))
