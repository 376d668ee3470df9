"""A case of cases.py: the operands, the result of the whole op, and the graph of one op."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from medley import _core, _runtime

_ = _runtime  # registers the kernels of our ops

BATCH = 7
OTHER_BATCH = 11  # a size that differs at this batch depends on it

DTYPES = {
    "f64": torch.float64,
    "f32": torch.float32,
    "bf16": torch.bfloat16,
    "i64": torch.int64,
    "i32": torch.int32,
    "u8": torch.uint8,
    "bool": torch.bool,
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_TENSOR = re.compile(r"\b(f64|f32|bf16|i64|i32|u8|bool)\[([^\]]*)\](<\d+|~\d+|>0|=0)?")


def evaluate(size: str, batch: int = BATCH) -> int:
    """Returns the number that a size such as "b*4" is."""
    return math.prod(batch if part == "b" else int(part) for part in size.split("*"))


@dataclasses.dataclass(frozen=True)
class Spec:
    """An operand: dtype, the factors of each dim, and how its elements are drawn."""

    dtype: str
    dims: tuple[tuple[str, ...], ...]
    drawn: str

    @property
    def type(self) -> str:
        return f"{self.dtype}[{', '.join(_product(dim) for dim in self.dims)}]"

    def draw(self, batch: int, generator: torch.Generator) -> Tensor:
        shape = [math.prod(evaluate(f, batch) for f in dim) for dim in self.dims]
        bound = int(self.drawn[1:]) if self.drawn[:1] in ("<", "~") else 2
        if self.drawn.startswith("~"):
            order = torch.rand([*shape[:-1], bound], generator=generator).argsort(-1)
            return order[..., : shape[-1]].contiguous()
        if not DTYPES[self.dtype].is_floating_point:
            least = 1 if self.drawn == ">0" else 0
            whole = torch.randint(least, max(bound, 2 + least), shape, generator=generator)
            return whole.to(DTYPES[self.dtype])
        if self.drawn == "=0":
            return torch.zeros(shape, dtype=DTYPES[self.dtype])
        if self.drawn.startswith("<"):
            return torch.rand(shape, dtype=torch.float64, generator=generator) * bound
        real = torch.randn(shape, dtype=torch.float64, generator=generator)
        return (real.abs() + 0.1 if self.drawn == ">0" else real).to(DTYPES[self.dtype])


def _product(factors: tuple[str, ...]) -> str:
    symbols = [f for f in factors if not f.isdigit()]
    number = math.prod(int(f) for f in factors if f.isdigit())
    return "*".join([*symbols, *([str(number)] if number != 1 or not symbols else [])])


def _parse_spec(dtype: str, dims: str, drawn: str | None) -> Spec:
    texts = [text.strip() for text in dims.split(",") if text.strip()]
    factors = tuple(tuple(text.strip("()").split()) for text in texts)
    return Spec(dtype, factors, drawn or "")


def split(text: str) -> list[str]:
    """Splits at the commas that are in no bracket."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    return [*parts, text[start:].strip()] if text.strip() else []


def _default_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return str(value) if value else "sizes[]"
    return repr(value)


def _function(op: str) -> Any:
    namespace, name, overload = op.split(".")
    return getattr(getattr(getattr(torch.ops, namespace), name), overload)


def with_defaults(op: str, arguments: list[str]) -> list[str]:
    """Returns the arguments with all that the schema has."""
    rest = _function(op)._schema.arguments[len(arguments) :]
    assert all(argument.has_default_value() for argument in rest), f"{op}: needs more arguments"
    return arguments + [_default_text(argument.default_value) for argument in rest]


def call_op(
    op: str, arguments: list[str], tensors: Mapping[int, Tensor], batch: int
) -> list[Tensor | None]:
    """Calls an op with textual arguments; %i stands for tensors[i]."""
    words = {**DTYPES, "b": batch, "none": None, "true": True, "false": False, "t": tensors}
    values = []
    for text in arguments:
        text = re.sub(r"%(\d+)", r"t[\1]", text).replace("sizes[]", "[]")
        values.append(eval(text, {"__builtins__": {}}, words))
    function = _function(op)
    schema = function._schema.arguments
    plain = [v for v, a in zip(values, schema, strict=True) if not a.kwarg_only]
    named = {a.name: v for v, a in zip(values, schema, strict=True) if a.kwarg_only}
    result = function(*plain, **named)
    return list(result) if isinstance(result, (tuple, list)) else [result]


class OpCase:
    def __init__(self, text: str) -> None:
        self.text = text
        self.specs: list[Spec] = []
        text, _, refined = text.partition(" -> ")
        # Factors of the dims of result 0, if it is cut at them.
        self.result_dims = _parse_spec("", refined.strip("[]"), None).dims

        def take(match: re.Match[str]) -> str:
            self.specs.append(_parse_spec(*match.groups()))
            return f"%{len(self.specs) - 1}"

        self.op, arguments = _TENSOR.sub(take, text.replace("'", '"')).rstrip(")").split("(", 1)
        self.arguments = with_defaults(self.op, split(arguments))
        # The place of every operand in `specs`, or None for one that is absent in a list.
        self.slots = [
            int(word[1:]) if word.startswith("%") else None
            for argument in self.arguments
            if "%" in argument
            for word in argument.strip("[]").split(", ")
        ]

    def operands(self, batch: int = BATCH) -> list[Tensor]:
        generator = torch.Generator().manual_seed(zlib.crc32(self.text.encode()))
        return [spec.draw(batch, generator) for spec in self.specs]

    def call(self, operands: list[Tensor], batch: int = BATCH) -> list[Tensor | None]:
        """Returns the results of the whole op, lists flattened."""
        return call_op(self.op, self.arguments, dict(enumerate(operands)), batch)

    @functools.cached_property
    def result_types(self) -> list[str]:
        """Returns the type of every result, "none" for None."""
        here, there = (self.call(self.operands(b), b) for b in (BATCH, OTHER_BATCH))
        return [type_text(x, y) for x, y in zip(here, there, strict=True)]

    def in_slots(self, operands: list[Tensor]) -> list[Tensor | None]:
        return [None if slot is None else operands[slot] for slot in self.slots]

    def op_line(self, first_result: int, ids: dict[int, int] | None = None) -> str:
        """Returns the op in graph format. `ids`: those of the operands if not 0, 1, ..."""
        results = []
        for type_ in self.result_types:
            results.append("_" if type_ == "none" else f"%{first_result}")
            first_result += type_ != "none"
        arguments = ", ".join(self.arguments)
        if ids is not None:
            arguments = re.sub(r"%(\d+)", lambda m: f"%{ids[int(m[1])]}", arguments)
        types = ", ".join(self.result_types)
        return f'{", ".join(results)} = {self.op}({arguments}) : {types} @forward ""'

    @functools.cached_property
    def graph(self) -> _core.Graph:
        """Returns the graph of the op alone, with buffers as operands."""
        lines = ["medley-graph 1", 'graph "case"', "symbols b"]
        zeros = []
        for i, spec in enumerate(self.specs):
            if spec.drawn == "=0":
                zeros.append(f"%{i} = {zeros_op(spec)}")
            else:
                lines.append(f'%{i} = buffer "x{i}" : {spec.type}')
        lines += [*zeros, self.op_line(len(self.specs))]
        return _core.Graph.parse("\n".join(lines) + "\n", self.text)


def zeros_op(spec: Spec) -> str:
    shape = spec.type[len(spec.dtype) :]
    fill = f"aten.full.default({shape}, 0.0, {spec.dtype}, none, none, none)"
    return f'{fill} : {spec.type} @forward ""'


def type_text(here: Tensor | None, there: Tensor | None) -> str:
    """Returns the type of a value that has these elements at one batch and another."""
    if here is None or there is None:
        return "none"
    sizes = []
    for x, y in zip(here.shape, there.shape, strict=True):
        if x == y:
            sizes.append(str(x))
            continue
        assert x * OTHER_BATCH == y * BATCH, "a result has a size that is no multiple of the batch"
        sizes.append("b" if x == BATCH else f"b*{x // BATCH}")
    return f"{_NAMES[here.dtype]}[{', '.join(sizes)}]"
