"""Times at which nodes of spot pools came and went: readers of published traces. Nodes get the
names of Medley's clusters: a new node takes the lowest free place of its pool, `v100/0`, `v100/1`,
... Knows no plans and no costs."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import json
from collections.abc import Iterable, Sequence
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Change:
    """The changes at one moment, in seconds since the start of the trace."""

    at: float
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


class Pool:
    """Gives places to nodes."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        """Returns the lowest free place."""
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give(self, place: int) -> None:
        """Frees a place."""
        heapq.heappush(self._free, place)

    def node(self, place: int) -> str:
        """Returns the name of the node in a place."""
        return f"{self._name}/{place}"


def read(path: Path, pool: str) -> list[Change]:
    """Reads a trace: events (.csv) or counts (.json). Raises ValueError with file and place."""
    return read_counts(path, pool) if path.suffix == ".json" else read_events(path, pool)


def read_events(path: Path, pool: str) -> list[Change]:
    """Reads lines `milliseconds,add|remove,node`, as Bamboo and Oobleck publish them."""
    places, alive = Pool(pool), dict[str, int]()
    events: list[tuple[float, bool, int]] = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        words = line.strip().split(",")
        if len(words) != 3 or not words[0].isdigit() or words[1] not in ("add", "remove"):
            raise ValueError(
                f"{path}:{number}: found {line}, expected milliseconds,add|remove,node"
            )
        at, node = int(words[0]) / 1e3, words[2]
        if events and at < events[-1][0]:
            raise ValueError(f"{path}:{number}: found {at:g} s after {events[-1][0]:g} s")
        if (words[1] == "add") == (node in alive):
            known = "is there already" if node in alive else "is not there"
            raise ValueError(f"{path}:{number}: found {words[1]} of {node}, which {known}")
        if words[1] == "add":
            alive[node] = places.take()
            events.append((at, True, alive[node]))
        else:
            place = alive.pop(node)
            events.append((at, False, place))
            places.give(place)
    return _changes(events, places)


def read_counts(path: Path, pool: str) -> list[Change]:
    """Reads a list of `{"Time": seconds, "GPUs": count}`, as published with Sailor. The newest node
    leaves first."""
    places, alive = Pool(pool), list[int]()
    events: list[tuple[float, bool, int]] = []
    last = 0.0
    for number, entry in enumerate(json.loads(path.read_text())):
        if set(entry) != {"Time", "GPUs"} or entry["Time"] < last or entry["GPUs"] < 0:
            raise ValueError(f"{path}: [{number}]: found {entry}, expected a later Time and GPUs")
        last = float(entry["Time"])
        while len(alive) < entry["GPUs"]:
            alive.append(places.take())
            events.append((last, True, alive[-1]))
        while len(alive) > entry["GPUs"]:
            events.append((last, False, alive[-1]))
            places.give(alive.pop())
    return _changes(events, places)


def _changes(events: Sequence[tuple[float, bool, int]], places: Pool) -> list[Change]:
    """Joins the events of the same moment. A node that came and left in it is ignored, and a place
    taken over by another has a new node."""
    result = []
    for at, group in itertools.groupby(events, key=lambda event: event[0]):
        seen = [(joins, places.node(place)) for _, joins, place in group]
        joined = tuple(node for joins, node in seen if joins)
        left = tuple(node for joins, node in seen if not joins)
        result.append(Change(at, joined, left))
    return result


def merge(traces: Iterable[Sequence[Change]]) -> list[Change]:
    """Returns several pools' traces as one."""
    result: list[Change] = []
    for change in sorted((c for trace in traces for c in trace), key=lambda change: change.at):
        if result and result[-1].at == change.at:
            last = result.pop()
            change = Change(change.at, last.joined + change.joined, last.left + change.left)
        result.append(change)
    return result
