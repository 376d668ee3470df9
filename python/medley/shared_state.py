"""One state of several runs: parameters and buffers with the same names are the same values.

Each run divides them as its own plan says. A value is current in the run that has changed it last,
and in the runs that have received it since; all other runs have dropped it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medley import _core, _runtime
from medley.whole_tensors import CONSTANT

if TYPE_CHECKING:
    from medley.trainer import Trainer

Value = tuple[str, str]  # kind and name
MASTER = "master:"  # before the name of a parameter: its copy in full precision


class SharedState:
    """`trainers`: those of one model, by the names of their objectives."""

    def __init__(
        self, trainers: Mapping[str, Trainer], peers: _runtime.MovePeers | None = None
    ) -> None:
        """Requires: all trainers have the same values. `peers`: the processes of a job."""
        self._trainers = trainers
        self._peers = peers
        self._moves: dict[tuple[str, str], _core.Moves] = {}  # by the objectives from and to
        self._values = {name: _shared(each._run.values) for name, each in trainers.items()}
        self._check_kinds()
        self._changed = {name: self._changes(name) for name in trainers}
        self._current: dict[
            Value, list[str]
        ] = {}  # the objectives that have it, the first gives it
        self.begin()

    def begin(self) -> None:
        """All runs have the same values: the first objective that has a value keeps it."""
        self._current = {}
        for name, values in self._values.items():
            for value in values:
                if value in self._current:
                    self._trainers[name]._run.drop(*value)
                else:
                    self._current[value] = [name]

    def bring(self, name: str) -> None:
        """Gives an objective the values that it reads and lacks. In a job all processes call it."""
        lacking: dict[str, list[Value]] = {}  # by the objective that gives them
        for value in self._values[name]:
            if name not in self._current[value]:
                lacking.setdefault(self._current[value][0], []).append(value)
        for giver, values in lacking.items():
            moves = self._moves_of(giver, name).only(values)
            runs = (self._trainers[giver]._run, self._trainers[name]._run)
            _runtime.share_state(moves, *runs, self._peers)
            for value in values:
                self._current[value].append(name)

    def prepare_step(self, name: str) -> None:
        """Gives an objective what it reads; all others drop what its step changes, so that each
        device has it once. In a job all processes call it."""
        self.bring(name)
        for value in self._changed[name]:
            for other in self._current[value]:
                if other != name:
                    self._trainers[other]._run.drop(*value)
            self._current[value] = [name]

    def owned(self, name: str) -> list[Value]:
        """Returns the values that an objective gives, of all that there are."""
        return [value for value, holders in self._current.items() if holders[0] == name]

    def giver(self, kind: str, name: str) -> str | None:
        """Returns the objective that gives a value; None if none has it."""
        return next(iter(self._current.get((kind, name), [])), None)

    def shared(self, name: str) -> list[Value]:
        """Returns the values of an objective that others may have, too."""
        return list(self._values[name])

    def written(self, name: str) -> list[Value]:
        """Returns what an objective writes to a checkpoint: its own state, and what it gives."""
        own = [(kind, each) for kind, each in self._trainers[name]._run.values if kind == "state"]
        return self.owned(name) + [value for value in own if value not in self._values[name]]

    def _check_kinds(self) -> None:
        """Raises ValueError for a weight that one objective changes in forward and another reads as
        a parameter: the two would be different values."""
        kinds: dict[str, tuple[str, str]] = {}
        for objective, values in self._values.items():
            for kind, value in values:
                other, known = kinds.setdefault(value, (objective, kind))
                if known != kind and "state" not in (known, kind):
                    changes, reads = (other, objective) if known == "buffer" else (objective, other)
                    raise ValueError(
                        f"objective {changes!r} changes the frozen parameter {value!r} in forward, "
                        f"and objective {reads!r} reads it as a parameter: make it a buffer "
                        "(register_buffer)"
                    )

    def _changes(self, name: str) -> list[Value]:
        """Returns the values that a step of an objective changes."""
        outputs = self._trainers[name]._graph.core.outputs
        found = [(kind, each) for kind, each, *_ in outputs if kind == "buffer"]
        for parameter in (each for kind, each, *_ in outputs if kind == "gradient"):
            found += [("parameter", parameter), ("state", MASTER + parameter)]
        return [value for value in found if value in self._values[name]]

    def _moves_of(self, giver: str, taker: str) -> _core.Moves:
        if (giver, taker) not in self._moves:
            before, after = self._trainers[giver]._program, self._trainers[taker]._program
            self._moves[giver, taker] = _core.Moves([(before, before.devices, None)], after)
        return self._moves[giver, taker]


def _shared(values: Sequence[Any]) -> dict[Value, None]:
    """Returns those of a run that other runs of the same model have, too, in order."""
    return {
        (kind, name): None
        for kind, name in values
        if kind == "parameter"
        or (kind == "buffer" and not name.startswith(CONSTANT))
        or (kind == "state" and name.startswith(MASTER))
    }
