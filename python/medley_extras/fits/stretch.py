"""Graphs of deep models from those of shallow ones: with two and with three of the layers that
repeat, any number is written down without a trace.

Every line of a graph is a template and its numbers: value ids, layers in names, sizes. From n
layers to n + 1 each section (inputs, prologue, forward, backward, outputs) has the same lines more,
whose numbers grow evenly along the layers and with n; sizes do not. Two layers and three say how:
three copies of these lines, of which one is there in both. What does not agree is refused, and
whoever asks captures the whole model.

The length of a sequence is a prime in the shallow graphs, and in each another one. Those sizes
differ that follow from the length, and so say how.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

_GAP = "\0"  # for a number
_STRING = r'"(?:[^"\\]|\\.)*"'
# Strings; words and floats, which are none of ours; value ids; whole numbers.
_TOKEN = re.compile(
    rf"({_STRING})|[A-Za-z_][\w.]*|\d+\.\d*(?:e[-+]?\d+)?|\d+e[-+]?\d+|%(\d+)|(\d+)"
)
_IN_STRING = re.compile(r'(?<=[."])\d+(?=[."])')
_SOURCE = re.compile(rf" at {_STRING}$")
_PHASE = re.compile(r" @(prologue|forward|backward|update) ")
_SECTIONS = (
    "header",
    "parameter",
    "buffer",
    "input",
    "prologue",
    "forward",
    "backward",
    "update",
    "output",
)


class UnevenError(ValueError):
    """Graphs that do not grow evenly."""


@dataclasses.dataclass(frozen=True)
class _Line:
    template: str
    numbers: tuple[int, ...]
    sizes: tuple[bool, ...]  # whether a number is one, and no id and no layer


def _parsed(line: str) -> _Line:
    numbers: list[int] = []
    sizes: list[bool] = []

    def take(text: str, is_size: bool) -> str:
        numbers.append(int(text))
        sizes.append(is_size)
        return _GAP

    def replaced(found: re.Match[str]) -> str:
        string, value, size = found.groups()
        if string is not None:
            return _IN_STRING.sub(lambda inner: take(inner.group(), False), string)
        if value is not None:
            return "%" + take(value, False)
        return take(size, True) if size is not None else found.group()

    template = _TOKEN.sub(replaced, _SOURCE.sub("", line))
    return _Line(template, tuple(numbers), tuple(sizes))


def _sections(text: str) -> list[list[_Line]]:
    sections: dict[str, list[_Line]] = {name: [] for name in _SECTIONS}
    last = 0
    for line in text.splitlines():
        phase = _PHASE.search(line)
        if line.startswith("output "):
            name = "output"
        elif phase is not None:
            name = phase.group(1)
        else:
            name = _kind_of_input(line) if line.startswith("%") else "header"
        if _SECTIONS.index(name) < last:
            raise UnevenError(f"an op of {name} behind those of {_SECTIONS[last]}")
        last = _SECTIONS.index(name)
        sections[name].append(_parsed(line))
    return list(sections.values())


def _kind_of_input(line: str) -> str:
    """Parameters repeat by layers, then buffers do, and all others are there once."""
    kind = line.partition(" = ")[2].partition(" ")[0]
    return kind if kind in _SECTIONS else "input"


@dataclasses.dataclass(frozen=True)
class _Growing:
    """A line whose numbers are base + slope * n + step * i, in copy i of a graph of n layers."""

    template: str
    base: tuple[int, ...]
    slope: tuple[int, ...]
    step: tuple[int, ...]

    def at(self, n: int, i: int) -> tuple[int, ...]:
        terms = zip(self.base, self.slope, self.step, strict=True)
        return tuple(base + slope * n + step * i for base, slope, step in terms)


def _fixed(of_two: _Line, of_three: _Line) -> _Growing:
    """A line that is there once, from graphs of two and of three layers."""
    slope = tuple(b - a for a, b in zip(of_two.numbers, of_three.numbers, strict=True))
    return _Growing(of_two.template, _at_none(of_two, slope), slope, (0,) * len(slope))


def _repeated(of_two: _Line, first: _Line, second: _Line) -> _Growing:
    """A line that is there for each layer but one: that of two layers, those of three."""
    step = tuple(b - a for a, b in zip(first.numbers, second.numbers, strict=True))
    slope = tuple(b - a for a, b in zip(of_two.numbers, first.numbers, strict=True))
    return _Growing(of_two.template, _at_none(of_two, slope), slope, step)


def _at_none(of_two: _Line, slope: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a - 2 * s for a, s in zip(of_two.numbers, slope, strict=True))


class _Section:
    """The lines of one section: those before the copies, one copy, those behind. `sizes` notes how
    those of three layers follow from those of two; by one of `slopes` other numbers grow."""

    def __init__(
        self, two: list[_Line], three: list[_Line], sizes: _Sizes, slopes: set[int]
    ) -> None:
        period = len(three) - len(two)
        split = 0
        while split < len(two) and sizes.are_alike(two[split], three[split], slopes):
            split += 1
        # As far as the lines are the same there may be copies already: the last of these is one.
        split -= period
        if not 0 <= period <= len(two) or split < 0:
            raise UnevenError(f"{len(two)}, {len(three)} lines")
        copy, behind = two[split : split + period], two[split + period :]
        alike = [*two[: split + period], *copy, *behind]
        _same(alike, three)
        three = [sizes.noted(*lines) for lines in zip(alike, three, strict=True)]
        copies = (three[split : split + period], three[split + period : split + 2 * period])
        self._before = [_fixed(*lines) for lines in zip(two[:split], three, strict=False)]
        self._copy = [_repeated(*lines) for lines in zip(copy, *copies, strict=True)]
        behind_of_three = three[split + 2 * period :]
        self._behind = [_fixed(*lines) for lines in zip(behind, behind_of_three, strict=True)]
        self.steps = {step for line in self._copy for step in line.step}
        lines = [*self._before, *self._copy, *self._behind]
        self.slopes = {slope for line in lines for slope in line.slope}

    def lines(self, n: int) -> Iterable[tuple[str, tuple[int, ...]]]:
        """Returns templates and numbers for n layers."""
        for line in self._before:
            yield line.template, line.at(n, 0)
        for i in range(n - 1):
            for line in self._copy:
                yield line.template, line.at(n, i)
        for line in self._behind:
            yield line.template, line.at(n, 0)


def _same(ones: Sequence[_Line], others: Sequence[_Line]) -> None:
    if [line.template for line in ones] != [line.template for line in others]:
        raise UnevenError("the layers have unlike ops")


@dataclasses.dataclass(frozen=True)
class _OfLength:
    """A size: times * length ** power + more."""

    times: int
    power: int
    more: int

    def at(self, length: int) -> int:
        power: int = length**self.power
        return self.times * power + self.more


class _Sizes:
    """The sizes that follow from the length, as they are at the first one."""

    def __init__(self, one: int, other: int) -> None:
        self._one, self._other = one, other
        self._found: dict[int, _OfLength] = {}
        self._constant: set[int] = set()

    def are_alike(self, here: _Line, there: _Line, slopes: set[int]) -> bool:
        """Whether the lines may be one, with a size for each length, in deeper graphs."""
        numbers = zip(here.numbers, there.numbers, here.sizes, strict=False)
        return here.template == there.template and all(
            a == b or (self._of_length(a, b) is not None if is_size else b - a in slopes)
            for a, b, is_size in numbers
        )

    def _of_length(self, a: int, b: int) -> _OfLength | None:
        """Returns how a size follows from the length, of which two cases are known; None: it does
        not."""
        for power in (1, 2) if self._other else ():
            times, rest = divmod(b - a, self._other**power - self._one**power)
            if rest == 0 and times > 0:
                return _OfLength(times, power, a - times * self._one**power)
        return None

    def noted(self, here: _Line, there: _Line) -> _Line:
        """Notes which sizes differ, and returns the line at the other length as it is here."""
        numbers = list(there.numbers)
        for i, (a, b) in enumerate(zip(here.numbers, there.numbers, strict=True)):
            if here.sizes[i]:
                self._note(a, b)
                numbers[i] = a
        return dataclasses.replace(there, numbers=tuple(numbers))

    def _note(self, a: int, b: int) -> None:
        if a == b:
            self._constant.add(a)
            return
        of = self._found.get(a) or self._of_length(a, b)
        if of is None:
            raise UnevenError(f"{a} at a length of {self._one}, {b} at {self._other}")
        self._found[a] = of
        if of.at(self._other) != b:
            raise UnevenError(f"a size of {a} that is two sizes at another length")

    def at(self, length: int) -> dict[int, int]:
        """Returns what the sizes are at a length, by what they are at the first one."""
        if both := self._constant & self._found.keys():
            raise UnevenError(f"a size of {min(both)} that follows from the length, or does not")
        return {size: of.at(length) for size, of in self._found.items()}


def _num_values(lines: Sequence[_Line]) -> int:
    """Returns how many values the lines define; an op may have several."""
    return sum(
        line.template.partition(" = ")[0].count("%") for line in lines if " = " in line.template
    )


def _check(what: str, found: Iterable[set[int]], known: set[int]) -> None:
    if strange := {abs(number) for number in set[int]().union(*found)} - known - {0}:
        raise UnevenError(f"numbers that grow by {min(strange)} {what}")


class Stretched:
    """A model's graph for any number of layers and any length.

    `two`, `three`: the texts for two and three times the `unit` of layers that repeat, at lengths
    of `prime` and `other_prime`; 0 and 0 where there is no length. Raises UnevenError where these
    do not say how the graph grows.
    """

    def __init__(self, two: str, prime: int, three: str, other_prime: int, unit: int = 1) -> None:
        self._sizes = _Sizes(prime, other_prime)
        both = list(zip(_sections(two), _sections(three), strict=True))
        # A number of a copy is that of a layer, or refers to the copy before or behind it, or to
        # what is there once. With n grow layers, and ids by the copies that are written before.
        ids = [_num_values(of_three) - _num_values(of_two) for of_two, of_three in both]
        steps, slopes = {unit, *ids}, {unit, *accumulate(ids)}
        self._sections = [_Section(*lines, self._sizes, slopes) for lines in both]
        _check("from layer to layer", (section.steps for section in self._sections), steps)
        _check("with each layer", (section.slopes for section in self._sections), slopes)
        self._sizes.at(prime)

    def text(self, layers: int, length: int) -> str:
        """Returns the text of the graph; `layers`: how many times the unit."""
        sizes = self._sizes.at(length)
        return (
            "\n".join(
                _with_sizes(template, numbers, sizes)
                for section in self._sections
                for template, numbers in section.lines(layers)
            )
            + "\n"
        )


def _with_sizes(template: str, numbers: tuple[int, ...], sizes: Mapping[int, int]) -> str:
    parts, are_plain, last = _split(template)
    filled = [
        part + str(number if is_plain else sizes.get(number, number))
        for part, is_plain, number in zip(parts, are_plain, numbers, strict=True)
    ]
    return "".join([*filled, last])


@functools.cache
def _split(template: str) -> tuple[list[str], list[bool], str]:
    """Returns what is before each gap, whether the number there is no size, and what is behind."""
    *parts, last = template.split(_GAP)
    are_plain = []
    inside = False
    for part in parts:
        inside ^= part.count('"') % 2 == 1
        are_plain.append(inside or part.endswith("%"))
    return parts, are_plain, last
