"""Traces of a report: parsing, calls that continue, micro-batches in flight."""

from __future__ import annotations

import json

from medley_extras.report.trace import Event, Trace, in_flight, merged, parse


def event(name: str, start: int, end: int, device: str = "a", computes: bool = True) -> Event:
    return Event(device, computes, name, name.partition(" ")[0], start, end)


def test_events_that_go_on_are_one() -> None:
    parts = [event("forward 0", 0, 3), event("forward 0", 3, 5), event("forward 1", 5, 6)]
    assert merged([*parts, event("update", 6, 6)]) == [
        event("forward 0", 0, 5),
        event("forward 1", 5, 6),
    ]


# The first of two stages under 1F1B: F0 F1 B0 F2 B1 B2.
def test_in_flight_is_between_forward_and_backward() -> None:
    order = ["forward 0", "forward 1", "backward 0", "forward 2", "backward 1", "backward 2"]
    events = [event(name, 10 * i, 10 * i + 10) for i, name in enumerate(order)]
    assert in_flight(events) == [(0, 1), (10, 2), (30, 2), (50, 1), (60, 0)]


def test_trace_begins_with_its_first_event() -> None:
    entries = [
        {"ph": "M", "name": "process_name", "pid": 3, "tid": 0, "args": {"name": "a"}},
        {"ph": "M", "name": "thread_name", "pid": 3, "tid": 0, "args": {"name": "compute"}},
        {
            "ph": "X",
            "name": "forward 0",
            "cat": "forward",
            "pid": 3,
            "tid": 0,
            "ts": 7.5,
            "dur": 1.25,
            "args": {},
        },
        {"ph": "C", "name": "memory", "pid": 3, "ts": 8.0, "args": {"bytes": 64}},
    ]
    trace = parse(json.dumps({"traceEvents": entries}), "t.json")
    assert trace == Trace([event("forward 0", 0, 1250)], {"a": [(500, 64)]})
