"""Messages in the store between the processes of an elastic run and its leader.

Keys, with N a generation:
- `run/N/agreement`: its members and their states. `run/N/plans`: by objective.
- `run/N/here/DEVICE`, `run/N/built/DEVICE`, `run/N/report/DEVICE`, `run/N/finished/DEVICE`.
- `run/N/wish`: plans for the next generation, if its members are the same.
- `run/N/evaluates`: "yes" while all evaluate.
- `run/N/KIND/L/S/K`: K-th record of a kind after S steps of life L (`journal.py`), for processes
  without a device of the plan.
- `run/N/journal`: all results before the generation, for processes that lack some.
- `run/N/end`: "finished" or "failed", the first one counts.
- `run/N/reads/S/DEVICE`: number of collective reads after S steps.
- `run/N/failure`: cause of the end. `run/N/generation/N/failure`: the same for the core's watchdog.
- `run/lives/DEVICE`: counts while its process lives. `run/arrived/DEVICE/N`: restarted in N.
- `run/saved`: completed or initial checkpoints. `run/loading`: current or last one being loaded.
- `run/leaves/DEVICE`: it has received notice.
"""

from __future__ import annotations

import json
import os

from medley.run import ends

PREFIX = "run/"
EVALUATES = "evaluates"
WISH = "wish"
_MOST_NOTED = 50  # checkpoints


def note_checkpoint(store: ends.Store, path: str, step: int) -> None:
    """Publishes a complete checkpoint that this run may return to. Only one process at a time
    does."""
    found = [each for each in checkpoints(store) if each[0] != os.path.abspath(path)]
    store.set(f"{PREFIX}saved", json.dumps([*found[-_MOST_NOTED:], (os.path.abspath(path), step)]))


def begin_checkpoints(store: ends.Store, path: str, step: int) -> None:
    """Publishes the only checkpoint that the run may return to after a load, or "" for none."""
    store.set(f"{PREFIX}saved", json.dumps([(os.path.abspath(path), step)] if path else []))
    if not path:
        note_load(store, "", 0, 0)


def note_load(store: ends.Store, path: str, step: int, done: int) -> None:
    """Publishes a checkpoint before any process reads it. All continue from it after `done` steps.
    "" if they do not."""
    here = [os.path.abspath(path), step, done] if path else []
    store.set(f"{PREFIX}loading", json.dumps(here))


def checkpoints(store: ends.Store) -> list[tuple[str, int]]:
    """Returns path and step of the published checkpoints, in this order. Some may be removed."""
    text = store.get(f"{PREFIX}saved")
    return [] if text is None else [(str(path), int(step)) for path, step in json.loads(text)]


def checkpoints_for(store: ends.Store, done: int) -> list[tuple[str, int]]:
    """Returns the checkpoints to which a run of `done` steps may return: those saved in these
    steps, and the one from which it resumed, of any step."""
    found = [(path, step) for path, step in checkpoints(store) if step <= done]
    if loading := json.loads(store.get(f"{PREFIX}loading") or "[]"):
        path, step, before = loading
        if (path, step) not in found and (step <= done or before == done):
            found.append((str(path), int(step)))
    return found


def has_finished(store: ends.Store, generation: int) -> bool:
    """Returns whether all members of a generation have finished. Otherwise it marks it failed for
    all."""
    return store.set_first(f"{PREFIX}{generation}/end", "failed") == "finished"


def finish_generation(store: ends.Store, generation: int) -> bool:
    """Returns whether the generation ended well, once all members have announced their end."""
    return store.set_first(f"{PREFIX}{generation}/end", "finished") == "finished"


def fail_generation(
    store: ends.Store, generation: int, cause: str, device: str = "", by: str = ""
) -> None:
    """Ends a generation for all members, unless it has ended."""
    failure = {
        "generation": generation,
        "device": None,
        "call": "",
        "edge": "",
        "cause": cause,
        "blame": "environment",
    }
    store.set_first(f"{PREFIX}{generation}/generation/{generation}/failure", json.dumps(failure))
    failure = {"device": device, "told_by": by, "cause": cause}
    store.set_first(f"{PREFIX}{generation}/failure", json.dumps(failure))
