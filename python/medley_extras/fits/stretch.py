"""Graphs of deep models derived from shallow ones, with two and three of the repeated layers.

Every line of a graph is a template with numbers: value ids, layers in names, sizes. From n layers
to n + 1 each section (inputs, prologue, forward, backward, outputs) grows by the same lines. Their
numbers grow evenly along the layers and with n; sizes stay. The graphs of two and three layers give
the growth: three copies of these lines, one of them in both. If they disagree, the caller captures
the whole model.

The sequence length is another prime in each shallow graph. Sizes that differ depend on the length.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate

_GAP = "\0"  # stands for a number
_STRING = r'"(?:[^"\\]|\\.)*"'
# Strings; words and floats, which contain no numbers of ours; value ids; integers.
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
    sizes: tuple[bool, ...]  # whether a number is a size rather than an id or a layer


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
    """Returns the kind of an input. Parameters repeat by layers, then buffers do; all others occur
    once."""
    kind = line.partition(" = ")[2].partition(" ")[0]
    return kind if kind in _SECTIONS else "input"


@dataclasses.dataclass(frozen=True)
class _Growing:
    """A line with the numbers base + slope * n + step * i, in copy i of a graph of n layers."""

    template: str
    base: tuple[int, ...]
    slope: tuple[int, ...]
    step: tuple[int, ...]

    def at(self, n: int, i: int) -> tuple[int, ...]:
        terms = zip(self.base, self.slope, self.step, strict=True)
        return tuple(base + slope * n + step * i for base, slope, step in terms)


def _fixed(of_two: _Line, of_three: _Line) -> _Growing:
    """Returns a line that occurs once, from graphs of two and of three layers."""
    slope = tuple(b - a for a, b in zip(of_two.numbers, of_three.numbers, strict=True))
    return _Growing(of_two.template, _at_none(of_two, slope), slope, (0,) * len(slope))


def _repeated(of_two: _Line, first: _Line, second: _Line) -> _Growing:
    """Returns a line that occurs for each layer but one, from the line of two layers and those of
    three."""
    step = tuple(b - a for a, b in zip(first.numbers, second.numbers, strict=True))
    slope = tuple(b - a for a, b in zip(of_two.numbers, first.numbers, strict=True))
    return _Growing(of_two.template, _at_none(of_two, slope), slope, step)


def _at_none(of_two: _Line, slope: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a - 2 * s for a, s in zip(of_two.numbers, slope, strict=True))


class _Section:
    """The lines of one section: before the copies, one copy, and after them. `sizes` records sizes
    that depend on the length. Other numbers grow by one of `slopes`."""

    def __init__(
        self, two: list[_Line], three: list[_Line], sizes: _Sizes, slopes: set[int]
    ) -> None:
        period = len(three) - len(two)
        split = 0
        while split < len(two) and sizes.are_identical(two[split], three[split], slopes):
            split += 1
        # The equal lines may include copies already: the last of these is one.
        split -= period
        if not 0 <= period <= len(two) or split < 0:
            raise UnevenError(f"{len(two)}, {len(three)} lines")
        copy, behind = two[split : split + period], two[split + period :]
        identical = [*two[: split + period], *copy, *behind]
        _same(identical, three)
        three = [sizes.noted(*lines) for lines in zip(identical, three, strict=True)]
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
    """The sizes that depend on the length, by their value at the first one."""

    def __init__(self, one: int, other: int) -> None:
        self._one, self._other = one, other
        self._found: dict[int, _OfLength] = {}
        self._constant: set[int] = set()

    def are_identical(self, here: _Line, there: _Line, slopes: set[int]) -> bool:
        """Returns whether the lines may be equal in deeper graphs, with a size for each length."""
        numbers = zip(here.numbers, there.numbers, here.sizes, strict=False)
        return here.template == there.template and all(
            a == b or (self._of_length(a, b) is not None if is_size else b - a in slopes)
            for a, b, is_size in numbers
        )

    def _of_length(self, a: int, b: int) -> _OfLength | None:
        """Returns the dependence of a size on the length, from two cases, or None."""
        for power in (1, 2) if self._other else ():
            times, rest = divmod(b - a, self._other**power - self._one**power)
            if rest == 0 and times > 0:
                return _OfLength(times, power, a - times * self._one**power)
        return None

    def noted(self, here: _Line, there: _Line) -> _Line:
        """Records the sizes that differ. Returns the line of the other length with the sizes of
        this one."""
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
        """Returns the sizes at a length, by their value at the first one."""
        if both := self._constant & self._found.keys():
            raise UnevenError(f"a size of {min(both)} that follows from the length, or does not")
        return {size: of.at(length) for size, of in self._found.items()}


def _num_values(lines: Sequence[_Line]) -> int:
    """Returns the number of values that the lines define; an op may have several."""
    return sum(
        line.template.partition(" = ")[0].count("%") for line in lines if " = " in line.template
    )


def _check(what: str, found: Iterable[set[int]], known: set[int]) -> None:
    if strange := {abs(number) for number in set[int]().union(*found)} - known - {0}:
        raise UnevenError(f"numbers that grow by {min(strange)} {what}")


class Stretched:
    """A model's graph for any number of layers and any length.

    `two`, `three`: the texts for two and three times the `unit` of repeated layers, at lengths
    `prime` and `other_prime`, or 0 and 0 without a length. Raises UnevenError if the growth is
    ambiguous.
    """

    def __init__(self, two: str, prime: int, three: str, other_prime: int, unit: int = 1) -> None:
        self._sizes = _Sizes(prime, other_prime)
        both = list(zip(_sections(two), _sections(three), strict=True))
        # A number of a copy refers to its layer, to a neighbouring copy, or to a line that occurs
        # once. Layers grow with n, and ids with the number of earlier copies.
        ids = [_num_values(of_three) - _num_values(of_two) for of_two, of_three in both]
        steps, slopes = {unit, *ids}, {unit, *accumulate(ids)}
        self._sections = [_Section(*lines, self._sizes, slopes) for lines in both]
        _check("from layer to layer", (section.steps for section in self._sections), steps)
        _check("with each layer", (section.slopes for section in self._sections), slopes)
        self._sizes.at(prime)

    def text(self, layers: int, length: int) -> str:
        """Returns the text of the graph. `layers`: multiple of the unit."""
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
    """Returns the text before each gap, whether its number is no size, and the text after the
    last."""
    *parts, last = template.split(_GAP)
    are_plain = []
    inside = False
    for part in parts:
        inside ^= part.count('"') % 2 == 1
        are_plain.append(inside or part.endswith("%"))
    return parts, are_plain, last
