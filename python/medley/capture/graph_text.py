"""The parts of a graph's text that a run needs: types, sizes, modules."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Mapping

import torch

from medley.whole_tensors import DTYPES

_OP = re.compile(r"(.*?) = ([\w.]+)\((.*)\) : (.*) @(\w+) \"((?:[^\"\\]|\\.)*)\"(?: at \"(.*)\")?$")
_INPUT = re.compile(r"(%\d+) = (\w+) \"((?:[^\"\\]|\\.)*)\" : (.*)")
_TYPE = re.compile(r"none|(\w+)\[([^\]]*)\]")
_FLOATING = [name for name, dtype in DTYPES.items() if dtype.is_floating_point]
_PRODUCTS = ("aten.mm.", "aten.bmm.", "aten.convolution", "medley.attention.", "medley.experts.")


@dataclasses.dataclass(frozen=True)
class Type:
    """The type of a value. Its sizes are texts such as `b*8`."""

    dtype: torch.dtype
    sizes: tuple[str, ...]

    def shape(self, symbols: Mapping[str, int]) -> list[int]:
        """Returns the sizes for given symbols."""
        return [
            math.prod(symbols.get(part) or int(part) for part in size.split("*"))
            for size in self.sizes
        ]

    def numel(self, symbols: Mapping[str, int]) -> int:
        return math.prod(self.shape(symbols))


@dataclasses.dataclass(frozen=True)
class Op:
    """A line of a graph. `results`: the type of each, None if it is unused."""

    name: str
    operands: tuple[str, ...]
    values: tuple[str, ...]
    results: tuple[Type | None, ...]
    phase: str
    module: str
    source: str


class GraphText:
    """A graph by its lines."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.symbols: list[str] = []
        self.inputs: dict[str, Type] = {}  # keyed by kind and name, as in GraphRunner
        self.trained: list[str] = []  # parameters with a gradient
        self.ops: list[Op] = []
        self._types: dict[str, Type | None] = {}
        for line in text.splitlines():
            if line.startswith("output gradient "):
                self.trained.append(_unquoted(line[len('output gradient "') :].rpartition('"')[0]))
            elif line.startswith("symbols"):
                self.symbols = line.replace(",", " ").split()[1:]
            elif found := _OP.match(line):
                self._add_op(found)
            elif found := _INPUT.match(line):
                value, kind, name, type_ = found.groups()
                self._types[value] = _types(type_)[0]
                self.inputs[f"{kind}:{_unquoted(name)}"] = _types(type_)[0]  # type: ignore[assignment]

    def _add_op(self, found: re.Match[str]) -> None:
        values, name, arguments, types, phase, module, source = found.groups()
        names, results = tuple(values.split(", ")), tuple(_types(types))
        self._types.update(zip(names, results, strict=False))
        operands = tuple(re.findall(r"%\d+", arguments))
        op = Op(name, operands, names, results, phase, _unquoted(module), source or "")
        self.ops.append(op)

    def coarsest(self) -> torch.dtype:
        """Returns the floating type with the fewest digits in the graph."""
        held = [each.dtype for each in self._types.values() if each is not None]
        floating = [dtype for dtype in held if dtype.is_floating_point]
        return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)

    def in_double(self) -> str:
        """Returns the graph with every floating type as float64."""
        parts = re.split(r'("(?:[^"\\]|\\.)*")', self.text)
        names = re.compile(rf"\b({'|'.join(_FLOATING)})\b")
        return "".join(part if part.startswith('"') else names.sub("f64", part) for part in parts)

    def bytes(self, symbols: Mapping[str, int]) -> int:
        """Returns the bytes of all results of the forward pass. Views have no bytes."""
        own = (op for op in self.ops if op.phase != "backward" and not _is_view(op.name))
        results = [each for op in own for each in op.results if each is not None]
        return sum(each.numel(symbols) * each.dtype.itemsize for each in results)

    def flops(self, symbols: Mapping[str, int]) -> int:
        """Returns the approximate number of multiplications and additions in forward matmuls."""
        return sum(self._flops_of(op, symbols) for op in self.ops if op.phase != "backward")

    def _flops_of(self, op: Op, symbols: Mapping[str, int]) -> int:
        result = op.results[0]
        if result is None or not op.name.startswith(_PRODUCTS):
            return 0
        inner = self._types.get(op.operands[0])
        if op.name.startswith("aten.convolution"):
            inner = self._types.get(op.operands[1])
            depth = math.prod(inner.shape(symbols)[1:]) if inner else 1
        elif op.name.startswith("medley.attention"):
            key = self._types.get(op.operands[1])
            depth = 2 * key.shape(symbols)[2] if key else 1
        else:
            depth = inner.shape(symbols)[-1] if inner else 1
        return 2 * result.numel(symbols) * depth


@functools.cache
def _is_view(name: str) -> bool:
    """Returns whether an op such as `aten.view.default` returns memory of its operand."""
    packet, _, overload = name.removeprefix("aten.").partition(".")
    op = getattr(getattr(torch.ops.aten, packet, None), overload, None)
    return packet == "_unsafe_view" or bool(op and op.is_view)


def _types(text: str) -> list[Type | None]:
    return [
        Type(DTYPES[dtype], tuple(filter(None, sizes.split(", ")))) if dtype else None
        for dtype, sizes in _TYPE.findall(text)
    ]


def _unquoted(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text)
