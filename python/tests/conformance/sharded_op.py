"""Runs an op on shards by its rule alone, without lowering: slice, run, recombine, compare."""

from __future__ import annotations

import math
import random
import zlib
from collections.abc import Iterator

import torch
from op_case import BATCH, OpCase, evaluate
from torch import Tensor

from medley import _core, _runtime

DEVICES = 3
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 5e-2}

Dims = list[list[int]]  # labels of each dim of a tensor


def random_for(text: str) -> random.Random:
    return random.Random(zlib.crc32(text.encode()))


def draw_lengths(size: int, rng: random.Random) -> list[int]:
    """Returns the lengths of random shards of a size. Often one is empty."""
    cuts = sorted(rng.randint(0, size) for _ in range(DEVICES - 1))
    return [cuts[0], cuts[1] - cuts[0], size - cuts[1]]


def partitions(size: int, rng: random.Random) -> Iterator[list[int]]:
    """Two ways to divide a size over the devices: with an empty shard, and unequal without one."""
    first = rng.randint(1, size - 1) if size > 1 else size
    lengths = [first, size - first]
    lengths.insert(rng.randrange(DEVICES), 0)
    yield lengths
    if size >= DEVICES:
        cuts = sorted(rng.sample(range(1, size), DEVICES - 1))
        yield [cuts[0], cuts[1] - cuts[0], size - cuts[1]]


def label_factors(case: OpCase, instance: _core.Instance) -> list[list[str]]:
    """Returns the factors of every label: those that the case gives a dim, else its size."""
    factors = [[label.size] for label in instance.labels]
    tensors = [
        (() if slot is None else case.specs[slot].dims, dims)
        for slot, dims in zip(case.slots, instance.operands, strict=True)
    ]
    for declared_dims, dims in [*tensors, (case.result_dims, instance.results[0])]:
        for declared, labels in zip(declared_dims, dims, strict=False):
            rest = list(declared)
            for label in labels if len(declared) > 1 else []:
                size, taken = evaluate(instance.labels[label].size), []
                while rest and math.prod(map(evaluate, taken)) < size:
                    taken.append(rest.pop(0))
                assert math.prod(map(evaluate, taken)) == size, f"{case.text}: factors of a dim"
                factors[label] = taken
    return factors


class ShardedOp:
    """An op by an instance of its rule, which may be another than the real one."""

    def __init__(self, case: OpCase, instance: _core.Instance) -> None:
        self.case = case
        self.instance = instance
        self.factors = label_factors(case, instance)
        operands = case.operands()
        self.operands = case.in_slots(operands)
        self.expected = case.call(operands)
        self.tolerance = tolerance_of(operands)

    def cuts(self) -> Iterator[tuple[int, int]]:
        """Yields the legal (label, factor)."""
        for index, label in enumerate(self.instance.labels):
            if not label.locked:
                yield from ((index, k) for k in range(1 if label.select else self.count(index)))

    def count(self, label: int) -> int:
        return len(self.factors[label])

    def disagreements(self) -> list[str]:
        """Returns the differences from the whole op, over all cuts and linear groups."""
        found = self.run_whole("replicate", self.operands)
        strided = [x if x is None or x.dim() < 2 else _permuted(x) for x in self.operands]
        # Passes fold clones, so that operands may be less contiguous than they were in eager.
        found += self.run_whole("strided", strided)
        for label, factor in self.cuts():
            size = evaluate(self.factors[label][factor])
            for lengths in partitions(size, random_for(f"{self.case.text} {label} {factor}")):
                found += self.run_cut(label, factor, lengths)
        for group in self.instance.linear:
            members = [self.operands[i] for i in group]
            if all(x is not None and x.is_floating_point() for x in members):
                found += self.run_linear(group)
        return found

    def local_runner(
        self, label: int, factor: int, length: int, offset: int
    ) -> _runtime.GraphRunner:
        graph = _core.local_op(self.case.graph, self.instance, label, factor, self.factors)
        return _runtime.GraphRunner(graph.text(), [BATCH, length, offset])

    def run(
        self, runner: _runtime.GraphRunner, operands: list[Tensor | None]
    ) -> list[Tensor | None]:
        given = {f"buffer:x{i}": x for i, x in enumerate(operands) if x is not None}
        outputs = runner.run(given)
        return [outputs.get(f"buffer:y{j}") for j in range(len(self.expected))]

    def run_whole(self, what: str, operands: list[Tensor | None]) -> list[str]:
        return self.compare(what, self.run(self.local_runner(-1, 0, 0, 0), operands))

    def run_cut(self, label: int, factor: int, lengths: list[int]) -> list[str]:
        what = f"{self.instance.labels[label].name}.{factor} {lengths}"
        parts = []
        for device, length in enumerate(lengths):
            offset = sum(lengths[:device])
            shards = [
                None
                if x is None
                else self.shard(x, self.instance.operands[i], label, factor, offset, length)
                for i, x in enumerate(self.operands)
            ]
            for i, (x, shape_only) in enumerate(zip(shards, self.instance.shape_only, strict=True)):
                if shape_only and x is not None and x.is_floating_point():
                    shards[i] = torch.full_like(x, math.nan)
            parts.append(self.run(self.local_runner(label, factor, length, offset), shards))
        found, results = [], []
        for j, whole in enumerate(self.expected):
            pieces = [part[j] for part in parts]
            if whole is None or any(piece is None for piece in pieces):
                results.append(pieces[0])
            elif self.position(self.instance.results[j], label, factor) is not None:
                results.append(self.assemble(j, label, factor, lengths, pieces))
            elif self.instance.absent[j][label] == _core.Absent.UNAFFECTED:
                for piece in pieces:
                    found += self.compare_one(what, j, piece)
                results.append(whole)
            else:
                results.append(self.reduce(j, label, pieces))
        return found + self.compare(what, results)

    def run_linear(self, group: list[int]) -> list[str]:
        generator = torch.Generator().manual_seed(7)
        operands = [list(self.operands) for _ in range(DEVICES)]
        for i in group:
            rest = self.operands[i]
            assert rest is not None
            for device in range(1, DEVICES):
                share = torch.randn(rest.shape, dtype=rest.dtype, generator=generator)
                operands[device][i] = share
                rest = rest - share
            operands[0][i] = rest
        parts = [self.run(self.local_runner(-1, 0, 0, 0), each) for each in operands]
        sums = [None if column[0] is None else sum(column) for column in zip(*parts, strict=True)]
        return self.compare(f"linear {group}", sums)

    def flat(self, tensor: Tensor, dims: Dims) -> list[int]:
        """Returns the sizes of all factors of a whole tensor."""
        sizes: list[int] = []
        for size, labels in zip(tensor.shape, dims, strict=False):
            own = [evaluate(f) for label in labels for f in self.factors[label]]
            sizes += own if labels else [size]
        return sizes

    def position(self, dims: Dims, label: int, factor: int) -> int | None:
        """Returns where among the factors of a tensor the cut is."""
        position = 0
        for labels in dims:
            for each in labels:
                if each == label:
                    return position + factor
                position += self.count(each)
            position += not labels
        return None

    def shard(
        self, whole: Tensor, dims: Dims, label: int, factor: int, offset: int, length: int
    ) -> Tensor:
        position = self.position(dims, label, factor)
        if position is None:
            return whole
        full = evaluate(self.factors[label][factor])
        shape, seen = list(whole.shape), False
        for d, labels in enumerate(dims):
            if label in labels and not seen:
                shape[d], seen = shape[d] // full * length, True
        factors = whole.reshape(self.flat(whole, dims))
        return factors.narrow(position, offset, length).contiguous().view(shape)

    def assemble(
        self, j: int, label: int, factor: int, lengths: list[int], pieces: list[Tensor]
    ) -> Tensor:
        whole, dims = self.expected[j], self.instance.results[j]
        assert whole is not None
        flat = self.flat(whole, dims)
        position = self.position(dims, label, factor)
        assert position is not None
        shaped = []
        for length, piece in zip(lengths, pieces, strict=True):
            local = [length if p == position else size for p, size in enumerate(flat)]
            shaped.append(piece.reshape(local))
        return torch.cat(shaped, position).reshape(whole.shape)

    def reduce(self, j: int, label: int, pieces: list[Tensor]) -> Tensor:
        stacked = torch.stack(pieces)
        if self.instance.absent[j][label] == _core.Absent.MAX:
            return stacked.amax(0)
        return stacked.sum(0).to(pieces[0].dtype)

    def compare(self, what: str, results: list[Tensor | None]) -> list[str]:
        return [text for j, r in enumerate(results) for text in self.compare_one(what, j, r)]

    def compare_one(self, what: str, j: int, result: Tensor | None) -> list[str]:
        where = f"{self.case.text}: {what}: result {j}"
        return difference(where, self.expected[j], result, self.tolerance)


def _permuted(tensor: Tensor) -> Tensor:
    """Returns the same elements with the first and the last dim swapped in memory."""
    return tensor.transpose(0, -1).contiguous().transpose(0, -1)


def tolerance_of(operands: list[Tensor]) -> float:
    """Returns the tolerance of the operand with the fewest digits."""
    return max((TOLERANCE.get(x.dtype, 0) for x in operands), default=0)


def difference(
    what: str, expected: Tensor | None, found: Tensor | None, relative: float
) -> list[str]:
    """Returns a line on the difference of two results, or none if they are equal."""
    if expected is None or found is None:
        return [] if expected is found else [f"{what}: one is None"]
    if expected.shape != found.shape or expected.dtype != found.dtype:
        types = [f"{x.dtype}{list(x.shape)}" for x in (expected, found)]
        return [f"{what}: expected {types[0]}, found {types[1]}"]
    relative = max(relative, TOLERANCE.get(expected.dtype, 0))
    tolerance = relative * (1 + finite_max(expected))
    if torch.allclose(expected, found, rtol=0, atol=tolerance, equal_nan=True):
        return []
    worst = (expected.double() - found.double()).abs().max().item()
    return [f"{what}: differs by {worst:.3g}"]


def finite_max(tensor: Tensor) -> float:
    values = tensor.double()
    values = values[values.isfinite()].abs()
    return values.max().item() if values.numel() else 0.0
