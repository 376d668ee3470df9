"""Recorded results of the processes of an elastic run, so that a loss or restart neither repeats
nor skips work. A record is (step, number, kind, value): the `number`-th of its kind at a step. A
step is identified by the life of the run (`lives.py`) and its place there. Kinds differ only in
their replay."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from medley.metrics import scalars_of
from medley.run.lives import Lives

Step = tuple[int, int]  # life of a run, and the number of earlier steps in it
Key = tuple[Step, int]  # step, and the number there
SCRIPT: Step = (0, -1)  # step of records counted over the whole script


class Replay(enum.Enum):
    """The treatment of a record after a loss."""

    SHARED = enum.auto()  # never repeated: a process that lacks it receives its value
    REPEATED = enum.auto()  # processes that have it repeat it with those that lack it
    INPUT = enum.auto()  # a repeated step reads the same value
    RESUMED = enum.auto()  # it was aborted, and restarts when the state is that of its step


class Kind(enum.Enum):
    """The kinds of records, each with its name in the store and its replay."""

    def __init__(self, key: str, replay: Replay) -> None:
        self.key, self.replay = key, replay

    EVALUATION = "evaluation", Replay.SHARED
    PREDICTION = "prediction", Replay.SHARED
    SAVE = "save", Replay.SHARED
    LOAD = "load", Replay.SHARED
    FIT = "fit", Replay.SHARED  # number of steps after which a call of `fit` has ended
    READ = "read", Replay.REPEATED  # a callable: parameters that all read
    BATCH = "batch", Replay.INPUT
    WRITING = "writing", Replay.RESUMED  # the arguments of a save in the background


_SHARED = [kind for kind in Kind if kind.replay is Replay.SHARED]
# Limit of the tensor bytes of a kind, and the number of newest records that keep theirs in any
# case: an interrupted step is always repeated.
MOST_BYTES = {Kind.PREDICTION: 64 << 20, Kind.BATCH: 1 << 30}
_FEWEST = {Kind.PREDICTION: 1, Kind.BATCH: 2}


class Journal:
    """The records of one process. `number`: that of objectives."""

    def __init__(self, number: int = 1, most_bytes: Mapping[Kind, int] = MOST_BYTES) -> None:
        self.lives = Lives(number)
        self._records: dict[Kind, dict[Key, Any]] = {kind: {} for kind in Kind}
        self._most_bytes = most_bytes
        self._sizes: dict[Kind, dict[Key, int]] = {kind: {} for kind in most_bytes}
        self._held = dict.fromkeys(most_bytes, 0)  # bytes
        self._asked: dict[Kind, tuple[Step, int]] = {}  # last step, and number of records there

    def ask(self, kind: Kind, step: Step) -> int:
        """Returns the number of the next record of a kind, which the script has reached."""
        last, count = self._asked.get(kind, (step, 0))
        number = count if last == step else 0
        self._asked[kind] = step, number + 1
        return number

    def record(self, kind: Kind, step: Step, number: int, value: Any) -> None:
        """Adds a record unless it exists. Inputs are copied, because a script may reuse their
        memory. Drops the oldest tensors above the limit of bytes."""
        records, key = self._records[kind], (step, number)
        if key in records:
            return
        records[key] = _copy(value) if kind.replay is Replay.INPUT else value
        if kind in self._sizes:
            self._sizes[kind][key] = _bytes_of(value)
            self._held[kind] += self._sizes[kind][key]
            while self._held[kind] > self._most_bytes[kind] and self._sheds(kind):
                pass

    def find(self, kind: Kind, step: Step, number: int = 0) -> Any:
        """Returns the value of a record, or None."""
        return self._records[kind].get((step, number))

    def has(self, kind: Kind, step: Step, number: int = 0) -> bool:
        return (step, number) in self._records[kind]

    def at(self, kind: Kind, step: Step) -> list[Any]:
        """Returns the values of a kind at a step, in order."""
        return [value for (each, _), value in self._records[kind].items() if each == step]

    def last(self, kind: Kind) -> tuple[int, Any] | None:
        """Returns the steps before the newest record of a kind in the script's current life, and
        its value, or None."""
        for ((life, steps), _), value in reversed(self._records[kind].items()):
            return (steps, value) if life == self.lives.place else None
        return None

    def forget(self, kind: Kind, before: Step | None = None) -> None:
        """Drops the records of a kind, or those of steps before one."""
        for key in [key for key in self._records[kind] if before is None or key[0] < before]:
            self._held[kind] = self._held.get(kind, 0) - self._sizes.get(kind, {}).pop(key, 0)
            del self._records[kind][key]

    def require(self, steps: range, what: str) -> None:
        """Raises ValueError if the batch of one of these steps is no longer stored."""
        life = self.lives.newest
        if lacking := [step for step in steps if not self.has(Kind.BATCH, (life, step))]:
            raise ValueError(
                f"{what}: the next step is {steps.start}, and the batches of steps {lacking[0]} to "
                f"{lacking[-1]} are not kept: expected at most "
                f"{self._most_bytes[Kind.BATCH] >> 20} MiB"
            )

    # --- an aborted save ---

    @property
    def writing(self) -> Any:
        """The arguments of the save to repeat, or None."""
        return next(iter(self._records[Kind.WRITING].values()), None)

    def set_writing(self, steps: int, arguments: Any) -> None:
        """Replaces the save to repeat at the state after `steps` steps. With None there is no
        save."""
        self.forget(Kind.WRITING)
        if arguments is not None:
            self.record(Kind.WRITING, (self.lives.newest, steps), 0, arguments)

    def find_writing(self, steps: int) -> Any:
        """Returns the save to repeat after `steps` steps, or None. Removes an older one."""
        found = self.find(Kind.WRITING, (self.lives.newest, steps))
        self.forget(Kind.WRITING, (self.lives.newest, steps))
        return found

    # --- other processes ---

    def count(self) -> int:
        """Returns the number of records that can be sent to others."""
        return sum(len(self._records[kind]) for kind in _SHARED)

    def export(self, steps: int) -> Any:
        """Returns the records for load() in other processes, with `steps` steps of the last
        life."""
        records = {
            kind.name: [
                [*step, number, value] for (step, number), value in self._records[kind].items()
            ]
            for kind in _SHARED
        }
        return {"lives": self.lives.export(steps), "records": records}

    def load(self, exported: Any) -> None:
        """Loads the export of another process. Requires: that process has all results of this
        one."""
        self.lives.load(exported["lives"])
        for name, records in exported["records"].items():
            self.forget(Kind[name])
            for life, step, number, value in records:
                self.record(Kind[name], (life, step), number, value)

    def _sheds(self, kind: Kind) -> bool:
        """Drops the tensors of the oldest record of a kind, unless too few records have tensors."""
        if len(sizes := self._sizes[kind]) <= _FEWEST[kind]:
            return False
        self._held[kind] -= sizes.pop(key := next(iter(sizes)))
        if kind.replay is Replay.SHARED:  # keeps the order of records
            self._records[kind][key] = scalars_of(self._records[kind][key])
        else:
            del self._records[kind][key]
        return True


def _copy(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {name: _copy(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [_copy(each) for each in value]
    return value


def _bytes_of(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, Mapping):
        return sum(map(_bytes_of, value.values()))
    return sum(map(_bytes_of, value)) if isinstance(value, (tuple, list)) else 0
