"""One state of several runs: parameters and buffers with the same names have the same values. Each
run divides them as its own plan requires. A value is current in the run that changed it last, and
in the runs that have received it since. All other runs have dropped it. The first of these runs
owns it. Recovery reads it from the owner (`medley/run/recovery.py`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from medley import _core, _runtime
from medley.whole_tensors import CONSTANT

if TYPE_CHECKING:
    from medley.engine import Engine

Value = tuple[str, str]  # kind and name
Owners = dict[Value, str]  # objectives
MASTER = "master:"  # prefix of the full-precision copy of a parameter


class SharedState:
    """`engines`: those of one model by objective. An engine without a run has no values."""

    def __init__(
        self, engines: Mapping[str, Engine], peers: _runtime.ReshardPeers | None = None
    ) -> None:
        """`peers`: the processes of a job."""
        self._engines = engines
        self._changes = 0  # number of owner changes, equal in all processes at the same call
        self.enter(peers, {})

    def enter(self, peers: _runtime.ReshardPeers | None, owners: Owners) -> None:
        """Replaces the runs of the engines. Values are with their owners, or in all runs that have
        them."""
        engines = self._engines
        self._peers = peers
        self._moves: dict[
            tuple[str, str], _core.ReshardPlan
        ] = {}  # keyed by source and target objective
        self._values = {name: shared_values(each.run) for name, each in engines.items()}
        self._check_kinds()
        self._changed = {name: self._changes_of(name) for name in engines}
        self._take(owners)

    def begin(self) -> None:
        """Makes the first objective with a value its owner. Requires: all runs have equal
        values."""
        self._changes += 1
        self._take({})

    def bring(self, name: str) -> None:
        """Gives an objective the values that it reads and lacks. In a job all processes call it."""
        lacking: dict[str, list[Value]] = {}  # by source objective
        for value in self._values[name]:
            if name not in self._current[value]:
                lacking.setdefault(self._current[value][0], []).append(value)
        for giver, values in lacking.items():
            moves = self._moves_of(giver, name).only(values)
            runs = (self._engines[giver].run, self._engines[name].run)
            _runtime.share_state(moves, *runs, self._peers)
            for value in values:
                self._current[value].append(name)

    def take(self, name: str) -> None:
        """Drops the values that a step of an objective changes from all other objectives, so that
        each device stores them once. Requires: all processes have brought them to that objective.
        """
        self.last = name
        changed = False
        for value in self._changed[name]:
            for other in self._current[value]:
                if other != name:
                    self._engines[other].run.drop(*value)
            changed = changed or self._current[value][0] != name
            self._current[value] = [name]
        self._changes += changed

    def owned(self, name: str) -> list[Value]:
        """Returns the values that an objective owns."""
        return [value for value, holders in self._current.items() if holders[0] == name]

    def giver(self, kind: str, name: str) -> str | None:
        """Returns the objective that owns a value, or None."""
        return next(iter(self._current.get((kind, name), [])), None)

    def written(self, name: str) -> list[Value]:
        """Returns the values that an objective writes to a checkpoint: its own state, and those it
        owns."""
        own = [(kind, each) for kind, each in self._engines[name].run.values if kind == "state"]
        return self.owned(name) + [value for value in own if value not in self._values[name]]

    # --- other processes ---

    def export_owners(self) -> tuple[int, list[tuple[Value, str]]]:
        """Returns the number of owner changes and the owner of each value, as input of heard()."""
        return self._changes, [(value, holders[0]) for value, holders in self._current.items()]

    def load_owners(self, exported: Sequence[Any]) -> Owners:
        """Returns the owners that another process has published."""
        self._changes, owners = exported
        return {(kind, name): owner for (kind, name), owner in owners}

    # --- implementation ---

    def _take(self, owners: Owners) -> None:
        """Drops the values from all runs except those of the owners."""
        self.last = ""  # objective of the last step
        self._current: dict[Value, list[str]] = {  # objectives with the value, owner first
            value: [owner] for value, owner in owners.items()
        }
        for name, values in self._values.items():
            for value in values:
                if self._current.setdefault(value, [name]) != [name]:
                    self._engines[name].run.drop(*value)

    def _check_kinds(self) -> None:
        """Raises ValueError for a weight that one objective changes in forward and another reads as
        a parameter: the two values would differ."""
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

    def _changes_of(self, name: str) -> list[Value]:
        """Returns the values that a step of an objective changes."""
        outputs = self._engines[name].graph.core.outputs
        found = [(kind, each) for kind, each, *_ in outputs if kind == "buffer"]
        for parameter in (each for kind, each, *_ in outputs if kind == "gradient"):
            found += [("parameter", parameter), ("state", MASTER + parameter)]
        return [value for value in found if value in self._values[name]]

    def _moves_of(self, giver: str, taker: str) -> _core.ReshardPlan:
        if (giver, taker) not in self._moves:
            before, after = self._engines[giver].program, self._engines[taker].program
            self._moves[giver, taker] = _core.ReshardPlan([(before, before.devices, None)], after)
        return self._moves[giver, taker]


def shared_values(run: Any) -> dict[Value, None]:
    """Returns the values of a run that other runs of the same model share, in order."""
    return {
        (kind, name): None
        for kind, name in ([] if run is None else run.values)
        if kind == "parameter"
        or (kind == "buffer" and not name.startswith(CONSTANT))
        or (kind == "state" and name.startswith(MASTER))
    }
