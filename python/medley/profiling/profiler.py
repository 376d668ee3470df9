"""Measures the times of ops and collectives of models in rounds: the work of `medley profile`.
Every op is measured once at every size that occurs, independent of repeated layers, and at a grid
of shards around these sizes. Times of emulated devices come from the emulation."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from medley import _core, _runtime
from medley.cluster import Cluster
from medley.files import read_text, write_atomically
from medley.graph import Graph
from medley.optimizer import AdamW, Optimizer
from medley.plan import Plan, plan
from medley.profiling.link_times import (
    MOST_BYTES,
    Links,
    own_device,
    wanted_collectives,
    window_here,
)
from medley.run import exchange

STRATEGIES = ("data-parallel-even", "data-parallel-proportional")
_SAVE_SECONDS = 5.0
_DECISIVE = 0.95  # share of the predicted time of ops that is measured before messages
_OPS_FIRST, _MESSAGES_UNTIL = 0.4, 0.7  # shares of the budget, before other sizes of ops

Report = Callable[[str, int, int], None]  # takes a text, the number done, and the total


@dataclasses.dataclass(frozen=True)
class Truth:
    """The true behaviour of emulated devices (medley/emulation/hidden_truth.h).

    Example:
        truth = Truth(seed=1, spread=0.1)
        wanted = wanted_ops([graph], cluster, global_batch=64)
        profiler = Profiler(wanted, cluster, Path("profile.json"), truth=truth)
    """

    seed: int = 0
    spread: float = 0.0  # in [0, 1): relative deviation of times from the data sheets


@dataclasses.dataclass
class Outcome:
    """The counts of a run of the profiler.

    Example:
        outcome = profiler.run(budget=60, report=print)
        print(outcome.wanted - outcome.left, outcome.failed)
    """

    seen: int  # ops that take time, over layers and devices
    unique: int  # distinct ones among them
    wanted: int  # distinct ones and the grid
    share: float  # measured, of the predicted time of the distinct ones
    left: int  # not measured within the budget
    collectives: int  # measured in this run
    failed: list[str]  # one sentence each
    seconds: float = 0.0


def executor_name(truth: Truth | None) -> str:
    """Returns the conditions, besides the device, on which times depend."""
    if truth is not None:
        return f"emulated seed {truth.seed} spread {truth.spread:g}"
    return f"aten {torch.__version__.split('+')[0]}"


def pieces_of(cluster: Cluster) -> list[int]:
    """Returns the numbers of shards of ops in the grid: powers of two, up to the share of the
    slowest device of a very heterogeneous cluster."""
    pieces = [2]
    while pieces[-1] < min(2 * len(cluster.devices), 64):
        pieces.append(2 * pieces[-1])
    return pieces


def wanted_ops(
    graphs: Sequence[Graph],
    cluster: Cluster,
    plans: Sequence[Plan] = (),
    global_batch: int | None = None,
    optimizer: Optimizer | None = None,
    grid: bool = True,
) -> _core.WantedOps:
    """Returns the ops to measure: first those of the plans, then the whole graphs, then a grid.
    Without plans the ops are those of data parallelism at `global_batch` rows."""
    wanted = _core.WantedOps(cluster)
    for graph in graphs:
        rule = (optimizer or AdamW()).core(graph.core)
        chosen = list(_plans_of(graph, graphs, plans))
        if not plans:
            chosen = _simple_plans(graph, cluster, global_batch, optimizer)
        for each in chosen:
            wanted.add_plan(graph.core, each.core, cluster, rule)
        batches = {each.global_batch for each in chosen} | {global_batch or 0}
        for rows in sorted(batches - {0}):
            wanted.add_graph(graph.core, rows, rule)
    if grid:
        wanted.add_grid(pieces_of(cluster))
    return wanted


def _plans_of(graph: Graph, graphs: Sequence[Graph], plans: Sequence[Plan]) -> list[Plan]:
    found = []
    for each in plans:
        made_for = json.loads(each.text).get("graph_hash", "")
        if made_for == graph.hash() or (not made_for and len(graphs) == 1):
            found.append(each)
        elif made_for not in {other.hash() for other in graphs}:
            raise ValueError("--plan: found a plan of another graph, expected one of those given")
    return found


def _simple_plans(
    graph: Graph, cluster: Cluster, global_batch: int | None, optimizer: Optimizer | None
) -> list[Plan]:
    if global_batch is None:
        raise ValueError("profile: expected --plan or --global-batch, the number of rows of a step")
    plans, reason = [], ""
    for strategy in STRATEGIES:
        try:
            plans.append(
                plan(graph, cluster, strategy, global_batch=global_batch, optimizer=optimizer)
            )
        except ValueError as error:
            reason = str(error)
    if not plans and not reason.startswith("no plan fits"):
        raise ValueError(reason)
    return plans


class Profiler:
    """Measures in rounds, and saves after each round.

    `truth`: that of emulated devices. Without it the devices here are measured: in a single process
    `device`, as the type `kind` of the cluster. `resume` keeps the content of `output`. `window`:
    each time is the median of means over this many seconds, or of single runs for 0; None chooses
    for a CPU. `busy`: see `wanted_collectives`, with None for CPUs only. Within a budget, the ops
    with the most time of a step come first, then messages, then the remaining ops.

    Example:
        wanted = wanted_ops([graph], cluster, global_batch=64)
        profiler = Profiler(wanted, cluster, Path("profile.json"), kind="A100-40GB")
        outcome = profiler.run(budget=600, report=print)
    """

    def __init__(
        self,
        wanted: _core.WantedOps,
        cluster: Cluster,
        output: Path,
        truth: Truth | None = None,
        kind: str | None = None,
        device: str | None = None,
        resume: bool = False,
        window: float | None = 0.0,
        collectives: bool = True,
        busy: float | None = 0.0,
    ) -> None:
        known = ""
        if resume and output.exists():
            known = read_text(output)
        self._job = exchange.join() if truth is None else None
        self._cluster = cluster
        self.kinds = _core.device_kinds(cluster)
        self._truth = truth
        self._links = collectives
        self._output = output
        self._saved = time.monotonic()
        self._session = _core.MeasuringSession(wanted, known, str(output), executor_name(truth))
        self._collectives = {
            (collective, tuple(devices), tuple(lengths))
            for collective, devices, lengths in self._session.collectives
        }
        if truth is None:
            self._kind = self._own_kind(kind)
            name = device or own_device(self._job)
            self._device = _open(name)
            is_cpu = name == "cpu"
            self._window = window_here() if window is None and is_cpu else window or 0.0
            self._busy = busy if busy is not None or is_cpu else 0.0

    def _own_kind(self, kind: str | None) -> str:
        kinds = self.kinds
        if self._job is not None:
            expected = len(self._cluster.devices)
            if self._job.size != expected:
                raise ValueError(
                    f"world size: found {self._job.size} processes, expected {expected}: one for "
                    "each device of the cluster"
                )
            return str(self._cluster.kind(self._job.rank).name)
        if kind is None and len(kinds) > 1:
            raise ValueError(
                f"profile: the cluster has the kinds {', '.join(kinds)}: expected --kind with the "
                "one that this machine has, or --emulate, or one process per device (torchrun)"
            )
        if kind is not None and kind not in kinds:
            raise ValueError(f"--kind: found {kind!r}, expected one of {', '.join(kinds)}")
        return kind or kinds[0]

    def run(self, budget: float | None, report: Report) -> Outcome:
        """Measures until all is done or `budget` seconds have passed."""
        self._save(always=True)  # fails early if the output cannot be written
        begin = time.monotonic()
        end = begin + budget if budget is not None else math.inf
        session = self._session
        outcome = Outcome(session.seen, session.unique, session.wanted, 0.0, 0, 0, [])
        try:
            if self._truth is not None:
                self._emulated(end, outcome, report)
            else:
                self._real(end, outcome, report)
        finally:
            self._save(always=True)
        # Some errors of PyTorch have a stack trace after the first line.
        own = [sentence.partition("\n")[0] for sentence in self._session.failed]
        elsewhere = self._failed_elsewhere(own)
        outcome.failed = own + elsewhere
        outcome.share = self._session.share
        outcome.left = self._session.left - len(elsewhere)
        outcome.seconds = time.monotonic() - begin
        return outcome

    def _tell(self, report: Report) -> None:
        report("ops", self._session.wanted - self._session.left, self._session.wanted)
        self._save()

    def _save(self, always: bool = False) -> None:
        if self._job is not None and self._job.rank != 0:
            return
        if always or time.monotonic() > self._saved + _SAVE_SECONDS:
            write_atomically(self._output, self._session.text())
            self._saved = time.monotonic()

    # --- emulated ---

    def _emulated(self, end: float, outcome: Outcome, report: Report) -> None:
        assert self._truth is not None
        seed, spread = self._truth.seed, self._truth.spread
        for kind in self.kinds:
            left = 1
            while left and time.monotonic() < end:
                seconds = min(0.5, max(0.0, end - time.monotonic()))
                left = self._session.run_emulated(self._cluster, kind, seed, spread, seconds)
                self._tell(report)
        wanted = _core.wanted_collectives(self._cluster, MOST_BYTES) if self._links else []
        for index, each in enumerate(wanted):
            if time.monotonic() > end:
                return
            if self._is_known(*each):
                continue
            self._session.run_collective_emulated(self._cluster, MOST_BYTES, index)
            outcome.collectives += 1
            report("collectives", index + 1, len(wanted))
        self._session.run_overlap_emulated(self._cluster, seed, spread)

    def _is_known(self, collective: str, devices: list[int], lengths: list[int]) -> bool:
        names = tuple(self._cluster.devices[number] for number in devices)
        return (collective, names, tuple(lengths)) in self._collectives

    # --- real ---

    def _real(self, end: float, outcome: Outcome, report: Report) -> None:
        begin = time.monotonic()
        self._ops(begin + _OPS_FIRST * (end - begin), _DECISIVE, report)
        if self._links and self._job is not None and self._job.size > 1:
            self._real_collectives(begin + _MESSAGES_UNTIL * (end - begin), outcome, report)
        self._ops(end, math.inf, report)

    def _ops(self, end: float, share: float, report: Report) -> None:
        """Measures ops until `end`, all of them or this share of their predicted time."""
        first, stride = self._share()
        left = self._session.left
        while left and not exchange.largest(
            time.monotonic() >= end or self._session.share >= share
        ):
            seconds = min(1.0 if self._job is None else 5.0, max(0.0, end - time.monotonic()))
            mine = self._device.run(
                self._session, self._kind, seconds, first, stride, window=self._window
            )
            left = int(exchange.largest(mine))
            self._exchange()
            self._tell(report)

    def _share(self) -> tuple[int, int]:
        """Returns the share of this device: devices of one type divide its ops."""
        if self._job is None:
            return 0, 1
        same = [
            number
            for number in range(len(self._cluster.devices))
            if self._cluster.kind(number).name == self._kind
        ]
        return same.index(self._job.rank), len(same)

    def _exchange(self) -> None:
        if self._job is None:
            return
        for rank, text in enumerate(exchange.texts(self._session.text())):
            if rank != self._job.rank:
                self._session.add(text, f"rank {rank}")

    def _failed_elsewhere(self, own: list[str]) -> list[str]:
        """Returns the ops that other processes failed to measure, each once."""
        if self._job is None:
            return []
        everybody = {each for ops in exchange.values(own) for each in ops}
        return sorted(everybody - set(own))

    def _real_collectives(self, end: float, outcome: Outcome, report: Report) -> None:
        assert self._job is not None
        links = Links(self._job, wanted_collectives(self._cluster, self._busy))
        for index, (collective, devices, lengths, seconds_before) in enumerate(links.wanted):
            if exchange.largest(time.monotonic() > end):
                return
            if exchange.largest(self._is_known(collective, devices, lengths)):
                continue
            seconds = links.time(collective, devices, lengths, seconds_before)
            names = [self._cluster.devices[number] for number in devices]
            self._session.add_collective(
                collective, "backend", names, lengths, max(1, round(seconds * 1e9))
            )
            outcome.collectives += 1
            report("collectives", index + 1, len(links.wanted))
            self._save()
        if not self._busy:
            self._session.add_overlap(self._kind, links.slowdown())
        self._exchange()


def _open(name: str) -> _runtime.RealDevice:
    try:
        torch.zeros(1, device=name)
        return _runtime.RealDevice(name)
    except (RuntimeError, AssertionError) as error:  # the latter if PyTorch lacks CUDA
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device: found {name!r}, which cannot be used: {reason}") from None
