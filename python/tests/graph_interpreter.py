"""Runs the text form of a graph with PyTorch's own ops, one by one: the proof of a capture."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import torch
from torch import Tensor

from medley.capture.convert import DTYPES

_TOKENS = re.compile(r'"(?:[^"\\]|\\.)*"|%\d+|[\w.+*-]+(?:\[\])?|\[|\]|,')
_NAMED = {"none": None, "true": True, "false": False, "sizes[]": [], "values[]": []}
_NAMED |= {"floats[]": [], "bools[]": []} | {text: dtype for dtype, text in DTYPES.items()}
_LINE = re.compile(r"(.*?) = ([\w.]+)\((.*)\) : (.*) @(\w+) (\"[^\"]*\")")
_INPUT = re.compile(r"(%\d+) = (\w+) (\"[^\"]*\") : (.*)")
_OUTPUT = re.compile(r"output (\w+) (?:(\"[^\"]*\") )?(%\d+)")


@dataclasses.dataclass
class Results:
    """The results of a graph: the loss, gradients by parameter, new values by buffer."""

    loss: Tensor
    gradients: dict[str, Tensor]
    buffers: dict[str, Tensor]


def _argument(token: str, env: dict[str, Tensor], rows: int) -> Any:
    if token in _NAMED:
        return _NAMED[token]
    if token.startswith("%"):
        return env[token]
    if token.startswith('"'):
        return token[1:-1]
    if re.fullmatch(r"(b\*)*(b|-?\d+)", token):
        return math.prod(rows if part == "b" else int(part) for part in token.split("*"))
    return float(token)


def parse_arguments(text: str, env: dict[str, Tensor], rows: int) -> list[Any]:
    """Returns the arguments of an op, values looked up in `env`, b replaced by `rows`."""
    stack: list[list[Any]] = [[]]
    for token in _TOKENS.findall(text):
        if token == "[":
            stack.append([])
        elif token == "]":
            top = stack.pop()
            stack[-1].append(top)
        elif token != ",":
            stack[-1].append(_argument(token, env, rows))
    return stack[0]


def call(name: str, arguments: list[Any]) -> Any:
    """Calls the op `namespace.op.overload` with all arguments of its schema in order."""
    namespace, op, overload = name.split(".")
    if op in ("view", "_unsafe_view"):  # memory formats are not recorded
        return arguments[0].reshape(arguments[1])
    if op == "clone":
        return arguments[0].clone(memory_format=torch.contiguous_format)
    target = getattr(getattr(getattr(torch.ops, namespace), op), overload)
    schema = target._schema.arguments
    named = {a.name: v for a, v in zip(schema, arguments, strict=True) if a.kwarg_only}
    return target(*arguments[: len(schema) - len(named)], **named)


def run(text: str, state: dict[str, Tensor], batch: dict[str, Tensor], rng: Tensor) -> Results:
    """Runs a graph. `state` has parameters, buffers and constants by name."""
    env: dict[str, Tensor] = {}
    rows = next(t.shape[0] for t in batch.values())
    results = Results(torch.tensor(0.0), {}, {})
    for line in text.splitlines():
        if found := _OUTPUT.fullmatch(line):
            kind, name, value = found.groups()
            if kind == "loss":
                results.loss = env[value]
            else:
                kinds = {"gradient": results.gradients, "buffer": results.buffers}
                kinds[kind][name[1:-1]] = env[value]
        elif found := _LINE.match(line):
            names, op, arguments, types = found.groups()[:4]
            values = call(op, parse_arguments(arguments, env, rows))
            values = values if isinstance(values, (tuple, list)) else [values]
            parts = re.findall(r"none|\w+\[[^\]]*\]", types)
            for name, value, kind in zip(names.split(", "), values, parts, strict=True):
                if name == "_":
                    continue
                dtype, _, shape = kind.rstrip("]").partition("[")
                sizes = [_argument(s, env, rows) for s in shape.split(", ") if s]
                assert [*value.shape] == sizes and DTYPES[value.dtype] == dtype, line
                env[name] = value
        elif found := _INPUT.fullmatch(line):
            value, kind, name = found.groups()[:3]
            source = {"batch": batch, "scalar": {"rng": rng}}.get(kind, state)
            env[value] = source[name[1:-1]].detach()
    return results
