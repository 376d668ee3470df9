"""What the processes of an elastic run have made, so that a loss or a restart repeats nothing that
is done and leaves nothing out.

A record is (step, number, kind, value): the `number`-th of its kind at a step. A step is known by
the life of the run (`lives.py`) and its place there. Kinds differ only in their replay.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from medley.metrics import scalars_of
from medley.run.lives import Lives

Step = tuple[int, int]  # the life of a run, and the steps before in it
Key = tuple[Step, int]  # with the number there
SCRIPT: Step = (0, -1)  # of records that are counted over the whole script


class Replay(enum.Enum):
    """What becomes of a record after a loss."""

    TOLD = enum.auto()  # nobody makes it again: a process that lacks it is told its value
    REPEATED = enum.auto()  # whoever has made it makes it again with those that have not
    INPUT = enum.auto()  # a step that is made again reads the same value
    RESUMED = enum.auto()  # it was given up, and begins again where the state is that of its step


class Kind(enum.Enum):
    """The kinds of records, each with its name in the store and its replay."""

    def __init__(self, key: str, replay: Replay) -> None:
        self.key, self.replay = key, replay

    EVALUATION = "evaluation", Replay.TOLD
    PREDICTION = "prediction", Replay.TOLD
    SAVE = "save", Replay.TOLD
    LOAD = "load", Replay.TOLD
    FIT = "fit", Replay.TOLD  # after how many steps a call of `fit` has ended
    READ = "read", Replay.REPEATED  # a callable; parameters that all read
    BATCH = "batch", Replay.INPUT
    WRITING = "writing", Replay.RESUMED  # the arguments of a save beside training


_TOLD = [kind for kind in Kind if kind.replay is Replay.TOLD]
# The bytes of tensors that the records of a kind hold together, and how many of the newest records
# hold theirs in any case: a step that was under way is always made again.
MOST_BYTES = {Kind.PREDICTION: 64 << 20, Kind.BATCH: 1 << 30}
_FEWEST = {Kind.PREDICTION: 1, Kind.BATCH: 2}


class Journal:
    """The records of one process. `number`: of objectives."""

    def __init__(self, number: int = 1, most_bytes: Mapping[Kind, int] = MOST_BYTES) -> None:
        self.lives = Lives(number)
        self._records: dict[Kind, dict[Key, Any]] = {kind: {} for kind in Kind}
        self._most_bytes = most_bytes
        self._sizes: dict[Kind, dict[Key, int]] = {kind: {} for kind in most_bytes}
        self._held = dict.fromkeys(most_bytes, 0)  # bytes
        self._asked: dict[Kind, tuple[Step, int]] = {}  # the last step, and how often there

    def ask(self, kind: Kind, step: Step) -> int:
        """The script comes to a record of a kind; returns its number."""
        last, count = self._asked.get(kind, (step, 0))
        number = count if last == step else 0
        self._asked[kind] = step, number + 1
        return number

    def record(self, kind: Kind, step: Step, number: int, value: Any) -> None:
        """Adds a record; one that is there stays as it is. Of an input a copy is held, since a
        script may use its memory again. Drops the oldest tensors above the limit of bytes."""
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
        """Returns the value of a record; None if there is none."""
        return self._records[kind].get((step, number))

    def has(self, kind: Kind, step: Step, number: int = 0) -> bool:
        return (step, number) in self._records[kind]

    def at(self, kind: Kind, step: Step) -> list[Any]:
        """Returns the values of a kind at a step, in order."""
        return [value for (each, _), value in self._records[kind].items() if each == step]

    def last(self, kind: Kind) -> tuple[int, Any] | None:
        """Returns the steps before the newest record of a kind, and its value, if it is of the
        life that the script is in."""
        for ((life, steps), _), value in reversed(self._records[kind].items()):
            return (steps, value) if life == self.lives.place else None
        return None

    def forget(self, kind: Kind, before: Step | None = None) -> None:
        """Drops the records of a kind, or those of steps before one."""
        for key in [key for key in self._records[kind] if before is None or key[0] < before]:
            self._held[kind] = self._held.get(kind, 0) - self._sizes.get(kind, {}).pop(key, 0)
            del self._records[kind][key]

    def require(self, steps: range, what: str) -> None:
        """Raises ValueError if the batch of one of these steps is not held any more."""
        life = self.lives.newest
        if lacking := [step for step in steps if not self.has(Kind.BATCH, (life, step))]:
            raise ValueError(
                f"{what}: the next step is {steps.start}, and the batches of steps {lacking[0]} to "
                f"{lacking[-1]} are not kept: expected at most "
                f"{self._most_bytes[Kind.BATCH] >> 20} MiB"
            )

    # --- a save that was given up ---

    @property
    def writing(self) -> Any:
        """The arguments of the save that begins again, else None."""
        return next(iter(self._records[Kind.WRITING].values()), None)

    def set_writing(self, steps: int, arguments: Any) -> None:
        """Replaces the save that begins again at the state after so many steps; None: by none."""
        self.forget(Kind.WRITING)
        if arguments is not None:
            self.record(Kind.WRITING, (self.lives.newest, steps), 0, arguments)

    def take_writing(self, steps: int) -> Any:
        """Returns the save that begins again at the state after so many steps, else None. Forgets
        it, and one of an older state."""
        found = self.find(Kind.WRITING, (self.lives.newest, steps))
        self.forget(Kind.WRITING, (self.lives.newest, steps + 1))
        return found

    # --- other processes ---

    def count(self) -> int:
        """Returns how many records others can be told of."""
        return sum(len(self._records[kind]) for kind in _TOLD)

    def export(self, steps: int) -> Any:
        """Returns what others load: all that can be told, and so many steps of the last life."""
        told = {
            kind.name: [
                [*step, number, value] for (step, number), value in self._records[kind].items()
            ]
            for kind in _TOLD
        }
        return {"lives": self.lives.export(steps), "records": told}

    def load(self, told: Any) -> None:
        """Takes what another process has exported that has made all that this one has."""
        self.lives.load(told["lives"])
        for name, records in told["records"].items():
            self.forget(Kind[name])
            for life, step, number, value in records:
                self.record(Kind[name], (life, step), number, value)

    def _sheds(self, kind: Kind) -> bool:
        """Lets go of the tensors of the oldest record of a kind, unless too few have theirs."""
        if len(sizes := self._sizes[kind]) <= _FEWEST[kind]:
            return False
        self._held[kind] -= sizes.pop(key := next(iter(sizes)))
        if kind.replay is Replay.TOLD:  # the order of records stays
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
