"""Random graphs of ops that reshape, split, join, reduce and multiply."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import torch
from op_case import (
    BATCH,
    OTHER_BATCH,
    call_op,
    evaluate,
    type_text,
    with_defaults,
)
from torch import Tensor

LENGTH = 10
MOST_ELEMENTS = 4000
Dims = list[str]  # sizes such as "b*4"


def product(sizes: Dims) -> str:
    """Returns the product of sizes, at most one of which has the batch."""
    number = math.prod(int(p) for size in sizes for p in size.split("*") if p != "b")
    has_batch = any("b" in size for size in sizes)
    return ("b" if number == 1 else f"b*{number}") if has_batch else str(number)


def is_number(size: str) -> bool:
    return "b" not in size


def value_list(values: list[int]) -> str:
    return f"[{', '.join(f'%{value}' for value in values)}]"


class RandomGraph:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.torch_rng = torch.Generator().manual_seed(seed)
        self.here: dict[int, Tensor] = {}  # elements at BATCH
        self.there: dict[int, Tensor] = {}  # and at another
        self.types: dict[int, str] = {}
        self.inputs: list[int] = []
        self.ops: list[str] = []
        self.used: set[int] = set()
        sizes = [["b", "12", "4"], ["b", "6"], ["12", "b", "2"], ["b", "24"], ["8", "6"]]
        self.recent = [self.add_input(self.rng.choice(sizes))]
        while len(self.ops) < LENGTH:
            self.step()

    def dims(self, value: int) -> Dims:
        text = self.types[value].split("[")[1].rstrip("]")
        return text.split(", ") if text else []

    def add_input(self, dims: Dims) -> int:
        value = len(self.types)
        whole = [max(evaluate(d, b) for b in (BATCH, OTHER_BATCH)) for d in dims]
        there = torch.randn(whole, dtype=torch.float64, generator=self.torch_rng)
        here = there[tuple(slice(evaluate(d)) for d in dims)].clone()
        self.here[value], self.there[value] = here, there
        self.types[value] = type_text(here, there)
        self.inputs.append(value)
        return value

    def apply(self, op: str, *arguments: str) -> list[int]:
        texts = with_defaults(op, list(arguments))
        here = call_op(op, texts, self.here, BATCH)
        there = call_op(op, texts, self.there, OTHER_BATCH)
        fresh = list(range(len(self.types), len(self.types) + len(here)))
        for value, x, y in zip(fresh, here, there, strict=True):
            assert x is not None and y is not None
            self.here[value], self.there[value] = x, y
            self.types[value] = type_text(x, y)
        results = ", ".join(f"%{value}" for value in fresh)
        types = ", ".join(self.types[value] for value in fresh)
        self.ops.append(f'{results} = {op}({", ".join(texts)}) : {types} @forward ""')
        for text in texts:
            self.used.update(int(word[1:]) for word in text.strip("[]").split(", ") if "%" in word)
        return fresh

    def step(self) -> None:
        x = self.rng.choice(self.recent[-3:])
        makers: list[Callable[[int], int | None]] = [
            self.split_dim,
            self.merge_dims,
            self.permute,
            self.unsqueeze,
            self.expand,
            self.split_and_join,
            self.unbind_and_stack,
            self.cut_out,
            self.pointwise,
            self.combine,
            self.reduce,
            self.softmax,
            self.contract,
            self.repeat,
            self.along_dim,
            self.pad,
            self.layer_norm,
            self.outer,
            self.positions,
        ]
        result = self.rng.choice(makers)(x)
        if result is not None and self.here[result].numel() <= MOST_ELEMENTS:
            self.recent.append(result)

    def number_dims(self, x: int, least: int = 2) -> list[int]:
        return [d for d, s in enumerate(self.dims(x)) if is_number(s) and int(s) >= least]

    def view(self, x: int, dims: Dims) -> int:
        return self.apply("aten.reshape.default", f"%{x}", f"[{', '.join(dims)}]")[0]

    def split_dim(self, x: int) -> int | None:
        """[12] -> [3, 4], [b*6] -> [b, 6] or [b*2, 3]."""
        dims, found = self.dims(x), []
        for d, size in enumerate(dims):
            number = int(product([p for p in size.split("*") if p != "b"] or ["1"]))
            for first in range(1, number):
                if number % first == 0 and (first > 1 or "b" in size):
                    outer = product([str(first), *(["b"] if "b" in size else [])])
                    found.append((d, [outer, str(number // first)]))
        if not found:
            return None
        d, factors = self.rng.choice(found)
        return self.view(x, dims[:d] + factors + dims[d + 1 :])

    def merge_dims(self, x: int) -> int | None:
        dims = self.dims(x)
        if len(dims) < 2:
            return None
        d = self.rng.randrange(len(dims) - 1)
        return self.view(x, dims[:d] + [product(dims[d : d + 2])] + dims[d + 2 :])

    def permute(self, x: int) -> int | None:
        order = list(range(len(self.dims(x))))
        self.rng.shuffle(order)
        if len(order) == 2:
            return self.apply("aten.t.default", f"%{x}")[0]
        return self.apply("aten.permute.default", f"%{x}", str(order))[0] if order else None

    def unsqueeze(self, x: int) -> int | None:
        dim = self.rng.randint(0, len(self.dims(x)))
        return self.apply("aten.unsqueeze.default", f"%{x}", str(dim))[0]

    def expand(self, x: int) -> int | None:
        dims = self.dims(x)
        ones = [d for d, size in enumerate(dims) if size == "1"]
        if not ones:
            return None
        d = self.rng.choice(ones)
        dims[d] = self.rng.choice(["2", "3", "6"])
        return self.apply("aten.expand.default", f"%{x}", f"[{', '.join(dims)}]")[0]

    def split_and_join(self, x: int) -> int | None:
        found = [d for d in self.number_dims(x) if int(self.dims(x)[d]) % 2 == 0]
        if not found:
            return None
        d = self.rng.choice(found)
        half = int(self.dims(x)[d]) // 2
        parts = self.apply("aten.split.Tensor", f"%{x}", str(half), str(d))
        if self.rng.random() < 0.5:
            parts = [self.apply("aten.tanh.default", f"%{parts[0]}")[0], parts[1], parts[0]]
        joined = self.rng.randrange(len(self.dims(x)))
        return self.apply(
            "aten.cat.default", f"[{', '.join(f'%{p}' for p in parts)}]", str(joined)
        )[0]

    def unbind_and_stack(self, x: int) -> int | None:
        found = [d for d in self.number_dims(x) if int(self.dims(x)[d]) <= 4]
        if not found:
            return None
        parts = self.apply("aten.unbind.int", f"%{x}", str(self.rng.choice(found)))
        self.rng.shuffle(parts)
        place = self.rng.randint(0, len(self.dims(parts[0])))
        return self.apply(
            "aten.stack.default", f"[{', '.join(f'%{p}' for p in parts)}]", str(place)
        )[0]

    def cut_out(self, x: int) -> int | None:
        found = self.number_dims(x)
        if not found:
            return None
        d = self.rng.choice(found)
        size = int(self.dims(x)[d])
        if self.rng.random() < 0.3:
            return self.apply("aten.select.int", f"%{x}", str(d), str(self.rng.randrange(size)))[0]
        start = self.rng.randrange(size)
        end = self.rng.randint(start + 1, size)
        return self.apply("aten.slice.Tensor", f"%{x}", str(d), str(start), str(end))[0]

    def pointwise(self, x: int) -> int | None:
        op = self.rng.choice(["relu.default", "tanh.default", "neg.default", "sigmoid.default"])
        return self.apply(f"aten.{op}", f"%{x}")[0]

    def combine(self, x: int) -> int | None:
        """Adds or multiplies by a value of the same type, or a new one that is broadcast."""
        same = [v for v in self.recent if self.types[v] == self.types[x]]
        y = self.rng.choice(same)
        if self.rng.random() < 0.5:
            dims = [s if self.rng.random() < 0.6 else "1" for s in self.dims(x)]
            y = self.add_input(dims[self.rng.randint(0, len(dims)) :] if dims else dims)
        op = self.rng.choice(["aten.add.Tensor", "aten.mul.Tensor", "aten.sub.Tensor"])
        return self.apply(op, f"%{x}", f"%{y}")[0]

    def reduce(self, x: int) -> int | None:
        if len(self.dims(x)) < 2:
            return None
        op = self.rng.choice(["aten.sum.dim_IntList", "aten.mean.dim", "aten.amax.default"])
        keep = self.rng.choice(["true", "false"])
        return self.apply(op, f"%{x}", f"[{self.rng.randrange(len(self.dims(x)))}]", keep)[0]

    def softmax(self, x: int) -> int | None:
        if not self.dims(x):
            return None
        dim = self.rng.randrange(len(self.dims(x)))
        return self.apply("aten._softmax.default", f"%{x}", str(dim), "false")[0]

    def contract(self, x: int) -> int | None:
        dims = self.dims(x)
        if not dims:
            return None
        w = self.add_input([dims[-1], self.rng.choice(["4", "6", "10"])])
        op = "aten.mm.default" if len(dims) == 2 else "medley.contract.default"
        y = self.apply(op, f"%{x}", f"%{w}")[0]
        return self.apply("aten.tanh.default", f"%{y}")[0]

    def repeat(self, x: int) -> int | None:
        times = [self.rng.choice(["1", "1", "2"]) for _ in self.dims(x)]
        return (
            self.apply("aten.repeat.default", f"%{x}", f"[{', '.join(times)}]")[0]
            if times
            else None
        )

    def along_dim(self, x: int) -> int | None:
        if not self.dims(x):
            return None
        dim = self.rng.randrange(len(self.dims(x)))
        if self.rng.random() < 0.5:
            return self.apply("aten.flip.default", f"%{x}", f"[{dim}]")[0]
        return self.apply("aten.cumsum.default", f"%{x}", str(dim))[0]

    def pad(self, x: int) -> int | None:
        dims = self.dims(x)
        if not dims or not is_number(dims[-1]):
            return None
        return self.apply("aten.constant_pad_nd.default", f"%{x}", "[1, 2]")[0]

    def layer_norm(self, x: int) -> int | None:
        """Its statistics are read as well."""
        dims = self.dims(x)
        if len(dims) < 2 or not is_number(dims[-1]) or dims[-1] == "1":
            return None
        weight, bias = self.add_input(dims[-1:]), self.add_input(dims[-1:])
        arguments = [f"%{x}", f"[{dims[-1]}]", f"%{weight}", f"%{bias}", "1e-05"]
        y, mean, _ = self.apply("aten.native_layer_norm.default", *arguments)
        return self.apply("aten.add.Tensor", f"%{y}", f"%{mean}")[0]

    def outer(self, x: int) -> int | None:
        """Adds x @ x.T over the last dim: one size occurs twice in a value."""
        if len(self.dims(x)) != 3 or sum("b" in size for size in self.dims(x)[:2]) > 1:
            return None
        turned = self.apply("aten.transpose.int", f"%{x}", "1", "2")[0]
        if self.dims(x)[1].startswith("b"):
            return turned
        product = self.apply("aten.bmm.default", f"%{x}", f"%{turned}")[0]
        return self.apply("aten.tanh.default", f"%{product}")[0]

    def positions(self, x: int) -> int | None:
        dims = self.dims(x)
        if not dims or not is_number(dims[-1]):
            return None
        range_ = self.apply("aten.arange.default", dims[-1], "f64")[0]
        scaled = self.apply("aten.mul.Scalar", f"%{range_}", "0.1")[0]
        return self.apply("aten.add.Tensor", f"%{x}", f"%{scaled}")[0]

    def text(self) -> tuple[str, dict[str, Tensor], dict[str, list[Dims]]]:
        """Returns the graph, its buffers and their dims. Unused values become outputs."""
        lines = ["medley-graph 1", 'graph "random"', "symbols b"]
        buffers: dict[str, Tensor] = {}
        dims: dict[str, list[Dims]] = {}
        outputs = []
        next_id = len(self.types)
        for value in self.inputs:
            lines.append(f'%{value} = buffer "x{value}" : {self.types[value]}')
            buffers[f"x{value}"], dims[f"x{value}"] = (
                self.here[value],
                [[s] for s in self.dims(value)],
            )
        for value in self.types:
            if value in self.used or value in self.inputs:
                continue
            lines.append(f'%{next_id} = buffer "y{value}" : {self.types[value]}')
            outputs.append(f'output buffer "y{value}" %{value}')
            buffers[f"y{value}"], dims[f"y{value}"] = (
                self.here[value],
                [[s] for s in self.dims(value)],
            )
            next_id += 1
        lines.append(f'%{next_id} = batch "rows" : f64[b]')
        lines.append(f'%{next_id + 1} = aten.sum.default(%{next_id}, none) : f64[] @forward ""')
        lines += [*self.ops, f"output loss %{next_id + 1}", *outputs]
        return "\n".join(lines) + "\n", buffers, dims
