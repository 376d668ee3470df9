"""Medley's plans for some nodes of a cluster, simulated, and stored in a file."""

from __future__ import annotations

import functools
import hashlib
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.spot.replay import Plan
from medley import _core
from medley.cluster import load_cluster
from medley.files import read_text
from medley.optimizer import AdamW

_NO_PLAN = "no plan fits: "  # start of planning's message; other errors are ours


class Planned:
    """Plans for nodes by name. Nodes of a pool are identical: a plan is made for the first ones,
    and applies to any others of the same number."""

    def __init__(
        self, graph: Path, cluster: Path, global_batch: int, strategy: str, cache: Path | None
    ) -> None:
        self._strategy, self._batch, self._cache = strategy, global_batch, cache
        self._file = cluster
        self._graph = _core.Graph.parse(read_text(graph), str(graph))
        self._optimizer = AdamW().core(self._graph)
        self._cluster = load_cluster(cluster)
        self._devices: dict[str, list[str]] = {}  # [node]
        for number, name in enumerate(self._cluster.devices):
            self._devices.setdefault(self._cluster.node(number), []).append(name)
        said = f"{self._graph.hash()} {self._cluster.hash} {global_batch} {strategy}"
        self._key = hashlib.sha256(said.encode()).hexdigest()
        self._found: dict[str, dict[str, Any]] = {}  # by counts
        self._moved: dict[tuple[frozenset[str], ...], float] = {}
        if cache is not None and cache.exists():
            self._found = json.loads(cache.read_text()).get(self._key, {})

    def __call__(self, nodes: frozenset[str]) -> Plan:
        """Returns the simulated plan for these nodes. Raises ValueError for a node outside the
        cluster."""
        if not nodes:
            return Plan(0.0)
        found = self._entry(nodes)
        return Plan(*(found[name] for name in ("rows", "copies", "step", "planning")))

    def moved(self, before: frozenset[str], left: frozenset[str], after: frozenset[str]) -> float:
        """Returns the largest number of bytes that a node receives or sends on the way from the
        plan of some nodes, of which `left` remain, to that of others. Raises ValueError if some
        state is lost."""
        key = (before, left, after)
        if key not in self._moved:
            old = self._program(before)
            kept = [d for d in old.devices if self._cluster.node(d) in left]
            moves = _core.ReshardPlan([(old, kept, None)], self._program(after))
            if moves.lost:
                raise ValueError(f"{moves.lost[0]}: nobody who is left has it")
            self._moved[key] = float(moves.busiest)
        return self._moved[key]

    def _entry(self, nodes: frozenset[str]) -> dict[str, Any]:
        if unknown := sorted(nodes - set(self._devices)):
            raise ValueError(f"{self._file}: has no node {unknown[0]}, which the trace has")
        counts = Counter(_pool(node) for node in nodes)
        key = " ".join(f"{pool}:{count}" for pool, count in sorted(counts.items()))
        if key not in self._found:
            first = [f"{pool}/{i}" for pool, count in sorted(counts.items()) for i in range(count)]
            self._found[key] = self._plan(first)
            self._save()
            print(f"{key}: {self._found[key]['rows']:,.1f} samples/s", file=sys.stderr, flush=True)
        return self._found[key]

    def _plan(self, nodes: Iterable[str]) -> dict[str, Any]:
        devices = [device for node in nodes for device in self._devices[node]]
        begin = time.perf_counter()
        try:
            plan = _core.plan(
                self._graph,
                self._cluster,
                self._strategy,
                self._batch,
                optimizer=self._optimizer,
                devices=devices,
            )
        except ValueError as error:
            if not str(error).startswith(_NO_PLAN):
                raise
            return {"rows": 0.0, "copies": 1.0, "step": 0.0, "planning": 0.0, "plan": ""}
        planning = time.perf_counter() - begin
        simulated: Any = _core.simulate(
            _core.Program(self._graph, plan, self._cluster, self._optimizer), self._cluster
        )
        step = simulated["step"] * 1e-9
        return {
            "rows": self._batch / step,
            "copies": copies(json.loads(plan.text())),
            "step": step,
            "planning": planning,
            "plan": plan.text(),
        }

    @functools.lru_cache(maxsize=64)  # noqa: B019 (one of these lives as long as the program)
    def _program(self, nodes: frozenset[str]) -> _core.Program:
        """Returns the program of the plan for these very nodes."""
        places: dict[str, str] = {}
        numbers = Counter[str]()
        for node in sorted(nodes, key=lambda name: (_pool(name), int(name.rsplit("/", 1)[1]))):
            places[f"{_pool(node)}/{numbers[_pool(node)]}"] = node
            numbers[_pool(node)] += 1

        def renamed(found: re.Match[str]) -> str:
            node, _, device = found[1].rpartition("/")
            return f'"{places[node]}/{device}"'

        text = re.sub(r'"([\w.-]+/\d+/\d+)"', renamed, self._entry(nodes)["plan"])
        return _core.Program(self._graph, _core.Plan(text), self._cluster, self._optimizer)

    def _save(self) -> None:
        if self._cache is None:
            return
        whole = json.loads(self._cache.read_text()) if self._cache.exists() else {}
        whole[self._key] = self._found
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        self._cache.write_text(json.dumps(whole, indent=1, sort_keys=True))


def _pool(node: str) -> str:
    return node.rsplit("/", 1)[0]


def copies(plan: dict[str, Any]) -> float:
    """Returns how often the devices of a plan hold the state, as if its stages were equally large
    and every device held all of its stage."""
    return float(
        sum(
            sum(len(stage["mesh"]["devices"]) for stage in pipeline["stages"])
            / len(pipeline["stages"])
            for pipeline in plan["pipelines"]
        )
    )
