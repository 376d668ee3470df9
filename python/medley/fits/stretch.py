"""Graphs of deep models from those of shallow ones: with one, two and three of the layers that
repeat, any number is written down without a trace.

Every line of a graph is a template and its numbers: value ids, layers in names, sizes. From n
layers to n + 1 each section (inputs, prologue, forward, backward, outputs) has the same lines more,
whose numbers grow evenly along the layers and with n. Three graphs say how, and more often than
needed: what does not agree is refused, and whoever asks captures the whole model.

The length of a sequence is a prime in the shallow graphs. At another prime those numbers differ
that follow from the length, and so say how.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence

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


def _text(template: str, numbers: Iterable[int]) -> str:
    parts = template.split(_GAP)
    filled = [part + str(number) for part, number in zip(parts[:-1], numbers, strict=True)]
    return "".join([*filled, parts[-1]])


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


def _grows_evenly(one: _Line, two: _Line, three: _Line) -> bool:
    if not one.template == two.template == three.template:
        return False
    numbers = zip(one.numbers, two.numbers, three.numbers, strict=True)
    return all(b - a == c - b for a, b, c in numbers)


def _fixed(one: _Line, two: _Line, three: _Line) -> _Growing:
    """A line that is there once, from graphs of one, two and three layers."""
    if not _grows_evenly(one, two, three):
        raise UnevenError(_said(three))
    slope = tuple(b - a for a, b in zip(one.numbers, two.numbers, strict=True))
    base = tuple(a - s for a, s in zip(one.numbers, slope, strict=True))
    return _Growing(one.template, base, slope, (0,) * len(base))


def _repeated(of_two: _Line, first: _Line, second: _Line) -> _Growing:
    """A line that is there for each layer but one: that of two layers, those of three."""
    step = tuple(b - a for a, b in zip(first.numbers, second.numbers, strict=True))
    slope = tuple(b - a for a, b in zip(of_two.numbers, first.numbers, strict=True))
    base = tuple(a - 2 * s for a, s in zip(of_two.numbers, slope, strict=True))
    return _Growing(of_two.template, base, slope, step)


def _said(line: _Line) -> str:
    return "does not grow evenly with the layers: " + _text(line.template, line.numbers)


class _Section:
    """The lines of one section: those before the copies, one copy, those behind."""

    def __init__(self, one: list[_Line], two: list[_Line], three: list[_Line]) -> None:
        period = len(two) - len(one)
        if period < 0 or len(three) - len(two) != period:
            raise UnevenError(f"{len(one)}, {len(two)}, {len(three)} lines")
        split = 0
        while split < len(one) and _grows_evenly(one[split], two[split], three[split]):
            split += 1
        tail = len(one) - split
        ends = [lines[len(lines) - tail :] for lines in (one, two, three)]
        copies = [two[split : split + period]]
        copies += [three[split : split + period], three[split + period : split + 2 * period]]
        for other in (two, three):
            _same(one[:split], other[:split])
            _same(ends[0], other[len(other) - tail :])
        _same(copies[0], copies[1])
        _same(copies[0], copies[2])
        self._before = [_fixed(*lines) for lines in zip(one[:split], two, three, strict=False)]
        self._copy = [_repeated(*lines) for lines in zip(*copies, strict=True)]
        self._behind = [_fixed(*lines) for lines in zip(*ends, strict=True)]
        self.steps = {step for line in self._copy for step in line.step}
        self.ids = {line.step[0] for line in self._copy if line.template[0] == "%"}

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


def _of_length(at_one: int, at_other: int, one: int, other: int) -> _OfLength:
    """Returns how a size follows from the length, of which two cases are known."""
    for power in (1, 2):
        times, rest = divmod(at_other - at_one, other**power - one**power)
        if rest == 0 and times > 0:
            return _OfLength(times, power, at_one - times * one**power)
    raise UnevenError(f"{at_one} at a length of {one}, {at_other} at {other}")


class Stretched:
    """A model's graph for any number of layers and any length.

    `shallow`: the texts for one, two and three times the `unit` of layers that repeat, at a length
    of `prime`; `other`: that of the first at a length of `other_prime`. Raises UnevenError where
    these do not say how the graph grows.
    """

    def __init__(
        self, shallow: Sequence[str], prime: int, other: str, other_prime: int, unit: int = 1
    ) -> None:
        one, two, three = (_sections(text) for text in shallow)
        self._sections = [_Section(*lines) for lines in zip(one, two, three, strict=True)]
        # A number of a copy is that of a layer, or refers to the copy before or behind it, or to
        # what is there once.
        steps = {unit}.union(*(section.ids for section in self._sections))
        known = {0, *steps, *(-step for step in steps)}
        if strange := set().union(*(section.steps for section in self._sections)) - known:
            raise UnevenError(f"numbers that grow by {min(strange)} from layer to layer")
        self._sizes = _sizes_of_length(one, _sections(other), prime, other_prime)

    def text(self, layers: int, length: int) -> str:
        """Returns the text of the graph; `layers`: how many times the unit."""
        sizes = {size: of.at(length) for size, of in self._sizes.items()}
        return (
            "\n".join(
                _with_sizes(template, numbers, sizes)
                for section in self._sections
                for template, numbers in section.lines(layers)
            )
            + "\n"
        )


def _with_sizes(template: str, numbers: tuple[int, ...], sizes: Mapping[int, int]) -> str:
    parts = template.split(_GAP)
    inside = False
    filled = []
    for part, number in zip(parts[:-1], numbers, strict=True):
        inside ^= part.count('"') % 2 == 1
        plain = inside or part.endswith("%")
        filled.append(part + str(number if plain else sizes.get(number, number)))
    return "".join([*filled, parts[-1]])


def _sizes_of_length(
    ones: list[list[_Line]], others: list[list[_Line]], one: int, other: int
) -> dict[int, _OfLength]:
    """Returns the sizes that follow from the length, as they are at the first one."""
    found: dict[int, _OfLength] = {}
    constant: set[int] = set()
    for here, there in zip(ones, others, strict=True):
        _same(here, there)
        for line, same in zip(here, there, strict=True):
            for a, b, is_size in zip(line.numbers, same.numbers, line.sizes, strict=True):
                if a != b and not is_size:
                    raise UnevenError("ids that follow from the length")
                if a == b:
                    constant.update([a] if is_size else [])
                elif found.setdefault(a, _of_length(a, b, one, other)).at(other) != b:
                    raise UnevenError(f"a size of {a} that is two sizes at another length")
    if both := constant & found.keys():
        raise UnevenError(f"a size of {min(both)} that follows from the length, or does not")
    return found
