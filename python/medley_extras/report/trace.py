"""Traces for figures: the operations of each device over time, simulated or measured.

`medley simulate --trace` and `Trainer.save_trace` write the files.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

from medley.files import read_text

WAITING = "waiting"


@dataclasses.dataclass(frozen=True)
class Event:
    """An event. Times are in nanoseconds."""

    device: str
    computes: bool  # False: communication
    name: str  # "forward 2"
    category: str  # "forward", "all_reduce", WAITING
    start: int
    end: int
    bytes: int = 0

    @property
    def works(self) -> bool:
        """Returns whether the device computes rather than idles."""
        return self.computes and self.category != WAITING

    @property
    def microbatch(self) -> str:
        """The number of a call's micro-batch, or "" for ops that run once per step."""
        return self.name.rpartition(" ")[2] if self.category in ("forward", "backward") else ""


@dataclasses.dataclass(frozen=True)
class Trace:
    """Events in order, and the live bytes by device from a time on."""

    events: list[Event]
    memory: dict[str, list[tuple[int, int]]]

    @property
    def span(self) -> int:
        """The nanoseconds from the first to the last event."""
        return max((event.end for event in self.events), default=0)

    def of(self, device: str) -> list[Event]:
        """Returns the events of a device."""
        return self._by_device.get(device, [])

    @functools.cached_property
    def _by_device(self) -> dict[str, list[Event]]:
        found: dict[str, list[Event]] = {}
        for event in self.events:
            found.setdefault(event.device, []).append(event)
        return found


def parse(text: str, file: str) -> Trace:
    """Parses a trace. Its first event is at 0. Raises ValueError naming an invalid entry."""
    try:
        entries = json.loads(text)["traceEvents"]
        names = {e["pid"]: str(e["args"]["name"]) for e in entries if e["name"] == "process_name"}
        lanes = {
            (e["pid"], e["tid"]): str(e["args"]["name"])
            for e in entries
            if e["name"] == "thread_name"
        }
        events = [_event(entry, names, lanes) for entry in entries if entry["ph"] == "X"]
        memory: dict[str, list[tuple[int, int]]] = {}
        for entry in entries:
            if entry["ph"] == "C":
                point = (_nanoseconds(entry["ts"]), int(entry["args"]["bytes"]))
                memory.setdefault(names[entry["pid"]], []).append(point)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{file}: found no trace, expected what Trainer.save_trace() or "
            "`medley simulate --trace` writes"
        ) from None
    first = min((event.start for event in events), default=0)
    return Trace(
        [
            dataclasses.replace(event, start=event.start - first, end=event.end - first)
            for event in events
        ],
        {device: [(at - first, size) for at, size in points] for device, points in memory.items()},
    )


def read(paths: Sequence[str | os.PathLike[str]]) -> Trace:
    """Reads one trace, or those of the processes of a run, each for its own device."""
    return joined((parse(read_text(path), str(path)), str(path)) for path in paths)


def joined(traces: Iterable[tuple[Trace, str]]) -> Trace:
    """Returns all events of several traces. Raises ValueError if two cover one device."""
    events: list[Event] = []
    memory: dict[str, list[tuple[int, int]]] = {}
    owner: dict[str, str] = {}
    for trace, file in traces:
        for device in sorted({event.device for event in trace.events}):
            if owner.setdefault(device, file) != file:
                raise ValueError(
                    f"{file}: found events of {device}, which {owner[device]} has too, expected "
                    "the traces of the processes of one run"
                )
        events += trace.events
        memory |= trace.memory
    return Trace(events, memory)


def merged(events: Iterable[Event]) -> list[Event]:
    """Returns the events with adjacent ones of the same name joined, and without those of zero
    time."""
    result: list[Event] = []
    for event in events:
        if event.start == event.end:
            continue
        last = result[-1] if result else event
        if result and (last.name, last.category, last.computes, last.end) == (
            event.name,
            event.category,
            event.computes,
            event.start,
        ):
            result[-1] = dataclasses.replace(last, end=event.end, bytes=last.bytes + event.bytes)
        else:
            result.append(event)
    return result


def in_flight(events: Iterable[Event]) -> list[tuple[int, int]]:
    """Returns the number of a device's micro-batches in flight from a time on: those whose forward
    call has begun and whose backward call has not ended."""
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for event in events:
        if event.computes and event.category == "forward":
            begins[event.microbatch] = min(begins.get(event.microbatch, event.start), event.start)
        elif event.computes and event.category == "backward":
            ends[event.microbatch] = max(ends.get(event.microbatch, 0), event.end)
    changes = [(at, 1) for at in begins.values()] + [
        (at, -1) for microbatch, at in ends.items() if microbatch in begins
    ]
    points, count = [(0, 0)], 0
    for at, change in sorted(changes):  # simultaneous ends come first
        count += change
        if points[-1][0] == at:
            points.pop()
        points.append((at, count))
    return points


def _event(
    entry: dict[str, Any], names: dict[int, str], lanes: dict[tuple[int, int], str]
) -> Event:
    start = _nanoseconds(entry["ts"])
    return Event(
        names[entry["pid"]],
        lanes[entry["pid"], entry["tid"]].startswith("compute"),
        str(entry["name"]),
        str(entry["cat"]),
        start,
        start + _nanoseconds(entry["dur"]),
        int(entry["args"].get("bytes", 0)),
    )


def _nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)
