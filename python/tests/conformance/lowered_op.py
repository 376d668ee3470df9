"""Runs an op on the devices of a plan, through lowering and the runtime. Operands and results are
buffers with random placements in the plan. This tests every redistribution between R, P and S: of
the buffers to the op, and of its results to the buffers."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator

import torch
from op_case import BATCH, OpCase, Spec, evaluate, zeros_op
from sharded_op import DEVICES, difference, draw_lengths, label_factors, random_for, tolerance_of
from torch import Tensor

from medley import _core, _runtime
from medley.cluster import parse_cluster

DRAWS = int(os.environ.get("MEDLEY_CONFORMANCE_DRAWS", "3"))  # plan per choice

CLUSTER = f"""
format: medley-cluster
version: 1
nodes:
  - {{name: a, count: {DEVICES}, device: CPU, devices_per_node: 1}}
networks:
  - {{name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 50 us}}
"""


class LoweredOp:
    def __init__(self, case: OpCase, cluster: _core.Cluster) -> None:
        instance = _core.instantiate(case.graph)
        assert instance is not None
        self.case = case
        self.cluster = cluster
        self.instance = instance
        self.factors = label_factors(case, instance)
        operands = case.operands()
        self.expected = case.call(operands)
        self.tolerance = tolerance_of(operands)
        self.buffers: dict[str, Tensor] = {}  # by name
        self.dims: dict[str, list[list[str]]] = {}  # factors of each dim of a buffer
        self.text, self.name = self._write_graph(operands)

    def _write_graph(self, operands: list[Tensor]) -> tuple[str, str]:
        """Returns the graph and the stable name of the op."""
        specs = self.case.specs
        lines: list[str] = []
        ops: list[tuple[str, str]] = []  # definition of %i, and the text of the op
        outputs: list[tuple[str, int]] = []

        def add_buffer(name: str, type_: str, whole: Tensor, dims: list[list[str]]) -> None:
            lines.append(f'%{len(lines)} = buffer "{name}" : {type_}')
            self.buffers[name] = whole
            self.dims[name] = dims

        ids = {}
        for i, (spec, whole) in enumerate(zip(specs, operands, strict=True)):
            if spec.drawn != "=0":
                ids[i] = len(lines)
                add_buffer(f"x{i}", spec.type, whole, [list(dim) for dim in spec.dims])
        refined = [i for i, s in enumerate(specs) if any(len(dim) > 1 for dim in s.dims)]
        for i in refined:
            flat = tuple((factor,) for dim in specs[i].dims for factor in dim)
            spec = Spec(specs[i].dtype, flat, "")
            shape = [evaluate(dim[0]) for dim in flat]
            add_buffer(f"r{i}", spec.type, operands[i].reshape(shape), [list(d) for d in flat])
            ops.append((spec.type, f"aten.view.default(%{ids[i]}, {spec.type[len(spec.dtype) :]})"))
        for j, type_ in enumerate(self.case.result_types):
            whole = self.expected[j]
            if whole is None:
                continue
            sizes = [s for s in type_.split("[")[1].strip("]").split(", ") if s]
            add_buffer(f"y{j}", type_, torch.zeros_like(whole), [[s] for s in sizes])
        if self.case.result_dims:
            self._add_refined_result(add_buffer)
        lines.append(f'%{len(lines)} = batch "rows" : f64[b]')
        ops.insert(0, ("f64[]", f"aten.sum.default(%{len(lines) - 1}, none)"))

        next_id = len(lines)
        for k, (type_, op) in enumerate(ops):
            lines.append(f'%{next_id} = {op} : {type_} @forward ""')
            if k > 0:
                outputs.append((f"r{refined[k - 1]}", next_id))
            next_id += 1
        loss = next_id - len(ops)
        num_ops = len(ops)
        for i, spec in enumerate(specs):
            if spec.drawn == "=0":
                ids[i] = next_id
                lines.append(f"%{next_id} = {zeros_op(spec)}")
                next_id += 1
                num_ops += 1
        first_result = next_id
        lines.append(self.case.op_line(next_id, ids))
        for j, whole in enumerate(self.expected):
            if whole is not None:
                outputs.append((f"y{j}", next_id))
                next_id += 1
        if self.case.result_dims:
            type_ = self.result_spec().type
            view = f"aten.view.default(%{first_result}, {type_[type_.index('[') :]})"
            lines.append(f'%{next_id} = {view} : {type_} @forward ""')
            outputs.append(("refined", next_id))
        lines.append(f"output loss %{loss}")
        lines += [f'output buffer "{name}" %{value}' for name, value in outputs]
        text = "\n".join(["medley-graph 1", 'graph "case"', "symbols b", *lines]) + "\n"
        return text, _core.Graph.parse(text, self.case.text).stable_names()[num_ops]

    def result_spec(self) -> Spec:
        """Returns the first result with a dim for each of its factors."""
        flat = tuple((factor,) for dim in self.case.result_dims for factor in dim)
        return Spec(self.case.result_types[0].split("[")[0], flat, "")

    def _add_refined_result(self, add_buffer: Callable[..., None]) -> None:
        spec, whole = self.result_spec(), self.expected[0]
        assert whole is not None
        zeros = torch.zeros([evaluate(dim[0]) for dim in spec.dims], dtype=whole.dtype)
        add_buffer("refined", spec.type, zeros, [list(dim) for dim in spec.dims])

    def choices(self) -> Iterator[tuple[str, str, int]]:
        """Yields (start of the choice's text, size of the factor that is cut, label)."""
        yield "replicate", "", -1
        for index, label in enumerate(self.instance.labels):
            if label.composite:
                yield f"composite {label.name}", self.factors[index][0], index
            if label.locked:
                continue
            for k in range(1 if label.select else len(self.factors[index])):
                yield f"{label.name}.{k}", self.factors[index][k], index
        for group in self.instance.linear:
            slots = [self.case.slots[i] for i in group]
            if all(s is not None and self.case.specs[s].dtype[0] in "fb" for s in slots):
                yield f"linear {{{'+'.join(map(str, group))}}}", "", -1

    def disagreements(self) -> list[str]:
        found = []
        for choice, size, label in self.choices():
            rng = random_for(f"{self.case.text} {choice}")
            for _ in range(DRAWS):
                found += self.run(choice, size, label, rng)
        return found

    def run(self, choice: str, size: str, label: int, rng: random.Random) -> list[str]:
        parts = [{"name": "s", "shares": draw_lengths(rng.randint(1, 9), rng)}]
        rows = draw_lengths(BATCH, rng)
        part = "rows" if size == "b" else "p"
        if size and size != "b":
            parts.append({"name": "p", "lengths": draw_lengths(evaluate(size), rng)})
        states = {name: draw_state(self.dims[name], "s", rng) for name in self.buffers}
        if choice.startswith("composite"):
            self.cut_operands(states, label, part)
        plan = {
            "format": "medley-plan",
            "version": 1,
            "global_batch": BATCH,
            "parts": parts,
            "pipelines": [
                {
                    "microbatches": [{"rows": BATCH, "lengths": rows}],
                    "stages": [
                        {
                            "mesh": {"devices": [f"a/{i}/0" for i in range(DEVICES)]},
                            "placements": states,
                            "ops": {self.name: f"{choice} {part}" if size else choice},
                        }
                    ],
                }
            ],
        }
        what = f"{self.case.text}: {choice} {json.dumps(parts)} rows {rows} {states}"
        return self.step(what, json.dumps(plan))

    def cut_operands(self, states: dict[str, str], label: int, part: str) -> None:
        """Stores operands with the composite label cut, so that the op must be expanded."""
        for slot, dims in zip(self.case.slots, self.instance.operands, strict=True):
            for d, labels in enumerate(dims):
                if label in labels and f"x{slot}" in states:
                    states[f"x{slot}"] = f"S({d}, {part})"

    def step(self, what: str, plan: str) -> list[str]:
        graph = _core.Graph.parse(self.text, "<graph>")
        program = _core.Program(graph, _core.Plan(plan), self.cluster, _core.Optimizer([]))
        run = _runtime.Run(program, self.cluster, {"timeout_ms": 20000})
        if "composite" in plan and self.case.op in program.text():
            return [f"{what}: not expanded"]
        for name, whole in self.buffers.items():
            run.load("buffer", name, whole)
        batch = {"rows": torch.ones(BATCH, dtype=torch.float64)}
        found = []
        if abs(run.step(batch, [[0.1, 1.0]], 0).loss - BATCH) > 1e-12:
            found.append(f"{what}: the loss differs")
        for j, expected in enumerate(self.expected):
            if expected is None:
                continue
            shards = [run.shard("buffer", f"y{j}", i) for i in range(DEVICES)]
            if run.is_cut("buffer", f"y{j}"):
                shards = [run.assemble("buffer", f"y{j}", shards)]
            for whole in shards:
                found += difference(f"{what}: result {j}", expected, whole, self.tolerance)
        return found


def small_cluster() -> _core.Cluster:
    return parse_cluster(CLUSTER)


def draw_state(dims: list[list[str]], part: str, rng: random.Random, rows: str = "rows") -> str:
    """Returns a random placement of a buffer whose dims have these factors. `rows` divides the
    batch."""
    places = [
        (d, k, factor)
        for d, factors in enumerate(dims)
        for k, factor in enumerate(factors)
        if "*" not in factor and (factor == "b" or int(factor) > 1)
    ]
    if not places or rng.random() < 0.25:
        return "R"
    d, k, factor = rng.choice(places)
    return f"S({d}.{k}, {rows if factor == 'b' else part})"
