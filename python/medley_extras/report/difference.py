"""The first difference of a measured step from the predicted one. Knows no plan and no drawing.

The step of each device is divided into pieces, which add up to it:

    forward 0 | wait for transfer x | forward 1 | pause before backward 0 | backward 0 | pause

Pieces of two traces match by device, name and ordinal, never by time. The difference of two steps
is thus, on each device, the sum of the differences of its pieces.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from medley_extras.report.trace import WAITING, Trace

COMPUTES, MESSAGES, COLLECTIVES, PAUSES = "computes", "messages", "collectives", "pauses"
WAITS = (MESSAGES, COLLECTIVES)
AGREE = 0.01  # share of the predicted step; a smaller difference is none
CAUSE = 0.25  # share of the difference that makes a part of a device's time a cause
LARGE = 0.25  # change of a piece that differs, relative to the mean change of its part


class Key(NamedTuple):
    """The identity of a piece: the ordinal counts the pieces of a name on a device."""

    device: str
    part: str  # COMPUTES, MESSAGES, COLLECTIVES or PAUSES
    category: str  # "forward", "all_reduce", PAUSES
    name: str  # "forward 0". A pause has the name of the next piece, or "" at the end
    ordinal: int


@dataclasses.dataclass
class Piece:
    """The time of a piece in nanoseconds. `time` excludes waits between `start` and `end`."""

    start: int = 0
    end: int = 0
    time: int = 0


class Total(NamedTuple):
    """A part of a device's step, in nanoseconds."""

    device: str
    part: str
    predicted: int
    measured: int

    @property
    def change(self) -> int:
        """The measured time beyond the predicted one."""
        return self.measured - self.predicted


@dataclasses.dataclass(frozen=True)
class First:
    """The first piece that differs. Times are in nanoseconds."""

    key: Key
    predicted: Piece
    measured: Piece
    count: int  # of the pieces of its category on the device, without those of zero time in both
    mean_predicted: float
    mean_measured: float
    share: float  # of all computing, waits or pauses of the device in the difference
    others: int  # number of other devices with as large a share in the same way


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of two steps. `first`: None if they agree."""

    predicted: int
    measured: int
    totals: list[Total]
    first: First | None

    @property
    def change(self) -> int:
        """The measured step beyond the predicted one, in nanoseconds."""
        return self.measured - self.predicted


def divide(trace: Trace) -> dict[Key, Piece]:
    """Returns the pieces of all devices, in order of device and time."""
    found: dict[Key, Piece] = {}
    for device in dict.fromkeys(event.device for event in trace.events):
        events = trace.of(device)
        kinds = {event.name: event.category for event in events if not event.computes}
        seen: Counter[tuple[str, str]] = Counter()
        call, clock = Key(device, COMPUTES, "", "", 0), 0
        for event in sorted((e for e in events if e.computes), key=lambda each: each.start):
            if event.category == WAITING:
                kind = kinds.get(event.name, event.name.partition(" ")[0])
                part = MESSAGES if kind == "transfer" else COLLECTIVES
                key = Key(device, part, kind, event.name, seen[part, event.name])
                seen[part, event.name] += 1
            elif event.start == event.end:  # simultaneous with an op of another call
                continue
            elif event.name != call.name:
                ordinal = seen[COMPUTES, event.name]
                key = call = Key(device, COMPUTES, event.category, event.name, ordinal)
                seen[COMPUTES, event.name] += 1
            else:
                key = call
            _add(found, Key(device, PAUSES, PAUSES, key.name, key.ordinal), clock, event.start)
            _add(found, key, event.start, event.end)
            clock = max(clock, event.end)
        _add(found, Key(device, PAUSES, PAUSES, "", 0), clock, trace.span)
    return found


def _add(found: dict[Key, Piece], key: Key, start: int, end: int) -> None:
    if key.part != PAUSES or end > start:
        piece = found.setdefault(key, Piece(start))
        piece.end = end
        piece.time += end - start


def compare(predicted: Trace, measured: Trace) -> Difference:
    """Returns the difference of two steps of one plan. A piece of one trace only has no time in
    the other one."""
    before, after = divide(predicted), divide(measured)
    sums: dict[tuple[str, str], list[int]] = {}
    for side, pieces in enumerate((before, after)):
        for key, piece in pieces.items():
            sums.setdefault((key.device, key.part), [0, 0])[side] += piece.time
    totals = [Total(*of, *both) for of, both in sums.items() if any(both)]
    totals.sort(key=lambda each: (COMPUTES, *WAITS, PAUSES).index(each.part))
    change = measured.span - predicted.span
    first = None
    if abs(change) > AGREE * predicted.span:
        first = _first(_Both(before, after), totals, change)
    return Difference(predicted.span, measured.span, totals, first)


class _Both:
    """The pieces of two traces."""

    def __init__(self, before: dict[Key, Piece], after: dict[Key, Piece]) -> None:
        self.before, self.after = before, after
        self.keys: dict[str, list[Key]] = {}  # by device, without pieces of no time
        for key in before | after:
            if any(self.times(key)):
                self.keys.setdefault(key.device, []).append(key)
        self._starts = {(k.device, k.name, k.ordinal): each.start for k, each in before.items()}

    def times(self, key: Key) -> tuple[int, int]:
        """Returns the predicted and the measured time of a piece."""
        none = Piece()
        return self.before.get(key, none).time, self.after.get(key, none).time

    def order(self, key: Key) -> tuple[int, bool]:
        """Returns the predicted end of a piece: a wait ends after the late call or the slow
        communication that it is for. Of simultaneous ends, computing comes first. A pause that
        is not predicted is at the start of the next piece."""
        if key in self.before:
            return self.before[key].end, key.part != COMPUTES
        start = self._starts.get((key.device, key.name, key.ordinal))
        return self.after[key].end if start is None else start, True

    def first(self, device: str, parts: Sequence[str], change: int) -> Key:
        """Returns the first piece of these parts with a large share of their change."""
        keys = [key for key in self.keys[device] if key.part in parts]
        changes = {key: self.times(key)[1] - self.times(key)[0] for key in keys}
        usual = change / len(keys)  # the mean: one piece at least changes by so much
        return min((key for key in keys if changes[key] / usual >= LARGE), key=self.order)


def _first(both: _Both, totals: Sequence[Total], change: int) -> First:
    """Returns the first piece of all parts that can be a cause."""
    changes: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for total in totals:
        changes[total.device, _together(total.part)] += total.change
    shares = {of: own / change for of, own in changes.items()}
    least = min(CAUSE, max(shares.values()))
    causes = [of for of, share in shares.items() if share >= least]
    firsts = {both.first(*of, changes[of]): of for of in causes}
    key = min(firsts, key=lambda each: (both.order(each), shares[firsts[each]]))
    same = [both.times(each) for each in both.keys[key.device] if each[:3] == key[:3]]
    means = [sum(times) / len(same) for times in zip(*same, strict=True)]
    others = sum(parts == _together(key.part) for _, parts in causes) - 1
    return First(
        key,
        both.before.get(key, Piece()),
        both.after.get(key, Piece()),
        len(same),
        means[0],
        means[1],
        shares[firsts[key]],
        others,
    )


def _together(part: str) -> tuple[str, ...]:
    """Returns the parts that are one cause: all communication of a device."""
    return WAITS if part in WAITS else (part,)
