"""Seconds and bytes of the devices of one process, added up over its steps."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from medley import Metrics
from medley_extras.report.trace import Event, parse

if TYPE_CHECKING:
    from medley import Plan, Trainer

BUSY, EXPOSED, IDLE = "busy", "exposed", "idle"
LEAST_SECONDS = 5.0  # between two traces that are read
COST_SHARE = 1e-3  # of the time, that reading traces may take


class Devices:
    """A step tells how long each device waited. What part of that is exposed communication, and the
    bytes of a step by kind, are those of the last trace that was read."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = {}
        self.bytes: dict[str, dict[str, int]] = {}
        self._exposed: dict[str, float] = {}  # share of the waiting
        self._of_a_step: dict[str, dict[str, int]] = {}
        self._plan: Callable[[], Plan | None] = lambda: None  # of the last trace, a weak reference
        self._next = 0.0

    def note(self, trainer: Trainer, metrics: Metrics) -> None:
        """A step of this process is done."""
        start = time.monotonic()
        if trainer.plan is not self._plan() or start >= self._next:
            self._plan = weakref.ref(trainer.plan)
            self._read(trainer.trace_json())
            cost = time.monotonic() - start
            self._next = start + max(LEAST_SECONDS, cost / COST_SHARE)
        for name, share in metrics.devices.items():
            waiting = share * metrics.step_seconds
            exposed = self._exposed.get(name, 0.0) * waiting
            parts = {
                BUSY: metrics.step_seconds - waiting,
                EXPOSED: exposed,
                IDLE: waiting - exposed,
            }
            _add(self.seconds.setdefault(name, {}), parts)
            _add(self.bytes.setdefault(name, {}), self._of_a_step.get(name, {}))

    def totals(self) -> dict[str, dict[str, Any]]:
        """Returns the totals by device."""
        return {
            name: {"seconds": dict(seconds), "bytes": dict(self.bytes[name])}
            for name, seconds in list(self.seconds.items())
        }

    def _read(self, text: str) -> None:
        events = parse(text, "the last step")
        self._exposed, self._of_a_step = {}, {}
        for name in {event.device for event in events.events}:
            own = events.of(name)
            self._exposed[name] = exposed_share(own)
            sent = self._of_a_step[name] = {}
            for event in own:
                if not event.computes:
                    sent[event.category] = sent.get(event.category, 0) + event.bytes


def exposed_share(events: list[Event]) -> float:
    """Returns the share of a device's waiting in which its own communication was under way."""
    waits = [event for event in events if event.computes and not event.works]
    sends = sorted((e.start, e.end) for e in events if not e.computes)
    total = sum(event.end - event.start for event in waits)
    covered = 0
    for wait in waits:
        at = wait.start
        for start, end in sends:
            begin, stop = max(at, start), min(wait.end, end)
            if stop > begin:
                covered += stop - begin
                at = stop
    return covered / total if total else 0.0


def _add(sums: dict[str, Any], parts: dict[str, Any]) -> None:
    for name, value in parts.items():
        sums[name] = sums.get(name, 0) + value
