"""`medley profile`: measures what the ops and collectives of somebody's models take.

Every op is measured once at every size that occurs, however many layers repeat it, and at a grid of
shards around these. On emulated devices through the emulation, on real ones by running them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from medley import _core, _runtime, job
from medley.cluster import Cluster, load_cluster
from medley.files import read_text, write_atomically
from medley.graph import Graph, capture
from medley.optimizer import SGD, AdamW, Optimizer
from medley.plan import Plan, plan

STRATEGIES = ("data-parallel-even", "data-parallel-proportional")
MOST_BYTES = 16 << 20  # of a collective
_SAVE_SECONDS = 5.0
_SLOW_SECONDS = 2.0  # a collective that takes longer is measured once
_TIMEOUT_MS = 120_000

Report = Callable[[str, int, int], None]  # what, done, of


@dataclasses.dataclass(frozen=True)
class Truth:
    """How emulated devices really behave (medley/emulation/hidden_truth.h)."""

    seed: int = 0
    spread: float = 0.0


@dataclasses.dataclass
class Outcome:
    """What a run of the profiler has done."""

    seen: int  # ops that take time, layer by layer and device by device
    unique: int  # of these
    wanted: int  # unique ones and the grid
    left: int  # not measured: the budget was spent
    collectives: int  # measured in this run
    failed: list[str]
    seconds: float = 0.0


def executor_name(truth: Truth | None) -> str:
    """Returns what the times depend on besides the device."""
    if truth is not None:
        return f"emulated seed {truth.seed} spread {truth.spread:g}"
    return f"aten {torch.__version__.split('+')[0]}"


def pieces_of(cluster: Cluster) -> list[int]:
    """Returns into how many shards ops are cut for the grid: powers of two until the share of the
    slowest of very unequal devices."""
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
    """Returns the ops to measure: those of the plans first, then the whole graphs, then a grid.

    Without plans those of data parallelism at `global_batch` rows are taken.
    """
    rule = (optimizer or AdamW()).description()
    kind, momentum = rule["kind"], rule.get("momentum", 0.0)
    wanted = _core.WantedOps(cluster)
    for graph in graphs:
        chosen = list(_plans_of(graph, graphs, plans))
        if not plans:
            chosen = _simple_plans(graph, cluster, global_batch, optimizer)
        for each in chosen:
            wanted.add_plan(graph.core, each.text, "plan", cluster, kind, momentum)
        batches = {each.global_batch for each in chosen} | {global_batch or 0}
        for rows in sorted(batches - {0}):
            wanted.add_graph(graph.core, rows, kind, momentum)
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
    """Measures in rounds, and saves after each: what is measured is never lost."""

    def __init__(
        self,
        wanted: _core.WantedOps,
        cluster: Cluster,
        output: Path,
        truth: Truth | None = None,
        kind: str | None = None,
        device: str | None = None,
        resume: bool = False,
        window: float = 0.0,
        collectives: bool = True,
    ) -> None:
        known = ""
        if resume and output.exists():
            known = read_text(output)
        self._job = job.join() if truth is None else None
        self._cluster = cluster
        self._truth = truth
        self._window = window
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
            self._device = _open(device or _own_device(self._job))

    def _own_kind(self, kind: str | None) -> str:
        kinds = _core.device_kinds(self._cluster)
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
        self._save(always=True)  # an output that cannot be written is found before hours are spent
        begin = time.monotonic()
        end = begin + budget if budget is not None else float("inf")
        outcome = Outcome(self._session.seen, self._session.unique, self._session.wanted, 0, 0, [])
        try:
            if self._truth is not None:
                self._emulated(end, outcome, report)
            else:
                self._real(end, outcome, report)
        finally:
            self._save(always=True)
        outcome.left = self._session.left
        # Some of PyTorch's errors have a trace of the stack behind the first line.
        outcome.failed = [sentence.partition("\n")[0] for sentence in self._session.failed]
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
        for kind in _core.device_kinds(self._cluster):
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
        first, stride = self._share()
        left = 1
        while left:
            seconds = 1.0 if self._job is None else 5.0
            mine = self._device.run(
                self._session, self._kind, seconds, first, stride, window=self._window
            )
            left = int(job.largest(mine))
            self._exchange()
            self._tell(report)
            if job.largest(time.monotonic() >= end):
                return
        if self._links and self._job is not None and self._job.size > 1:
            self._real_collectives(end, outcome, report)

    def _share(self) -> tuple[int, int]:
        """Devices of a kind divide its ops among themselves."""
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
        for rank, text in enumerate(job.texts(self._session.text())):
            if rank != self._job.rank:
                self._session.add(text, f"rank {rank}")

    def _real_collectives(self, end: float, outcome: Outcome, report: Report) -> None:
        assert self._job is not None
        links = Links(self._job, _core.wanted_collectives(self._cluster, MOST_BYTES))
        for index, (collective, devices, lengths) in enumerate(links.wanted):
            if job.largest(time.monotonic() > end):
                return
            if job.largest(self._is_known(collective, devices, lengths)):
                continue
            seconds = links.time(collective, devices, lengths)
            names = [self._cluster.devices[number] for number in devices]
            self._session.add_collective(
                collective, "backend", names, lengths, max(1, round(seconds * 1e9))
            )
            outcome.collectives += 1
            report("collectives", index + 1, len(links.wanted))
            self._save()
        self._session.add_overlap(self._kind, links.slowdown())
        self._exchange()


def _own_device(this: job.Job | None) -> str:
    if not torch.cuda.is_available():
        return "cpu"
    return f"cuda:{(this.local_rank if this else 0) % torch.cuda.device_count()}"


def _open(name: str) -> _runtime.RealDevice:
    try:
        torch.zeros(1, device=name)
        return _runtime.RealDevice(name)
    except (RuntimeError, AssertionError) as error:  # the latter: PyTorch is without CUDA
        reason = str(error).splitlines()[0]
        raise ValueError(f"--device: found {name!r}, which cannot be used: {reason}") from None


# --- other processes ------------------------------------------------------------------------------


class Links:
    """Times collectives between the processes of a job, as the transport of a run does them."""

    def __init__(
        self, this: job.Job, wanted: list[tuple[str, list[int], list[int]]], repetitions: int = 5
    ) -> None:
        self._rank = this.rank
        self._size = this.size
        self._repetitions = repetitions
        self.wanted = wanted
        everybody = tuple(range(this.size))
        sets = sorted({tuple(devices) for _, devices, _ in wanted} | {everybody})
        cuda = torch.cuda.is_available()
        self._device = torch.device(_own_device(this))
        names = {"/".join(map(str, ("profile", *each))): list(each) for each in sets}
        made = job.make_groups(names, "nccl" if cuda else "gloo")
        self._transport = _runtime.c10d_transport(
            {tuple(names[name]): group for name, group in made.items()}, _TIMEOUT_MS
        )

    def time(self, collective: str, devices: list[int], lengths: list[int]) -> float:
        """Returns the median over repetitions of the slowest device's seconds."""
        once = self._once(collective, devices, lengths)
        self._timed(once)
        times = [job.largest(self._timed(once))]
        while times[0] < _SLOW_SECONDS and len(times) < self._repetitions:
            times.append(job.largest(self._timed(once)))
        return statistics.median(times)

    def _once(
        self, collective: str, devices: list[int], lengths: list[int]
    ) -> Callable[[], object] | None:
        if self._rank not in devices:
            return None
        me, size = devices.index(self._rank), 4
        elements = [length // size for length in lengths]
        count = len(devices)
        send: list[int] = []
        receive: list[int] = []
        if collective == "all_gather":
            own, receive = elements[me], elements
        elif collective == "all_to_all":
            send, receive = elements[me * count : (me + 1) * count], elements[me::count]
            own = sum(send)
        else:
            own = sum(elements)
            send = [] if collective == "all_reduce" else elements
        tensor = torch.rand(own, device=self._device)

        def run() -> object:
            pending = self._transport.post(collective, devices, me, [tensor], send, receive)
            return pending.wait()

        return run

    def _timed(self, once: Callable[[], object] | None) -> float:
        dist.barrier()
        if once is None:
            return 0.0
        begin = time.perf_counter()
        once()
        self._synchronize()
        return time.perf_counter() - begin

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def slowdown(self) -> float:
        """Returns how many times as long a matrix product takes while its device communicates."""
        left = torch.rand(384, 384, device=self._device)
        alone = statistics.median(self._product(left) for _ in range(20))
        devices = list(range(self._size))
        data: Tensor = torch.rand(MOST_BYTES // 4, device=self._device)
        together: list[float] = []
        for _ in range(3):
            dist.barrier()
            pending = self._transport.post("all_reduce", devices, self._rank, [data])
            together += [self._product(left) for _ in range(5)]
            pending.wait()
        return max(1.0, statistics.median(together) / alone)

    def _product(self, left: Tensor) -> float:
        begin = time.perf_counter()
        torch.mm(left, left)
        self._synchronize()
        return time.perf_counter() - begin


# --- the command ----------------------------------------------------------------------------------


def read_seconds(text: str, option: str = "--budget") -> float:
    """Reads "90", "60s", "5m"."""
    unit = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(text[-1:], 1.0)
    digits = text[:-1] if text[-1:] in ("s", "m", "h") else text
    try:
        seconds = float(digits) * unit
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e7:
        raise ValueError(f"{option}: found {text!r}, expected a time such as 60s or 5m")
    return seconds


def describe(outcome: Outcome, output: Path, kinds: Sequence[str]) -> str:
    """Returns the outcome in two or three sentences."""
    text = (
        f"{outcome.unique} unique of {outcome.seen} ops, on {', '.join(kinds)}\n"
        f"{outcome.wanted - outcome.unique} more for sizes in between, "
        f"{outcome.collectives} collectives\n"
        f"{output}: {outcome.wanted - outcome.left - len(outcome.failed)} of {outcome.wanted} "
        f"ops measured, {outcome.seconds:.1f} s"
    )
    if outcome.left:
        text += f"; {outcome.left} are left: --resume goes on"
    for sentence in outcome.failed[:5]:
        text += f"\nnot measured: {sentence}"
    if len(outcome.failed) > 5:
        text += f"\n... and {len(outcome.failed) - 5} more"
    return text


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `medley profile`."""
    parser.add_argument(
        "graphs", nargs="+", help="files that `medley capture` wrote, or package.module:function"
    )
    parser.add_argument("cluster", help="cluster.yaml")
    parser.add_argument("-o", "--output", default="profile.json", help="write the profile here")
    parser.add_argument(
        "--plan", nargs="+", default=[], help="measure the ops of these plans, at their sizes"
    )
    parser.add_argument(
        "--global-batch",
        type=int,
        metavar="N",
        help="rows of a step; without --plan the plans of data parallelism are measured",
    )
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--no-grid", action="store_true", help="no other sizes than these")
    parser.add_argument(
        "--no-collectives", action="store_true", help="ops only: links are as cluster.yaml says"
    )
    parser.add_argument(
        "--emulate", action="store_true", help="measure the emulated devices of the cluster"
    )
    parser.add_argument("--truth-seed", type=int, default=0, help="of emulated devices")
    parser.add_argument("--truth-spread", type=float, default=0.0, help="of emulated devices")
    parser.add_argument("--kind", help="the kind of device of the cluster that this machine has")
    parser.add_argument("--device", help="cpu or cuda:0; the default is what this machine has")
    parser.add_argument("--budget", metavar="TIME", help="stop after 60s or 5m; --resume goes on")
    parser.add_argument(
        "--window",
        metavar="TIME",
        help="median of three means over so long, not of single runs: 0.4s for processors under a "
        "quota (the testbed)",
    )
    parser.add_argument("--resume", action="store_true", help="keep what the output already has")


def command(arguments: argparse.Namespace) -> int:
    """Runs `medley profile`."""
    budget = read_seconds(arguments.budget) if arguments.budget else None
    window = read_seconds(arguments.window, "--window") if arguments.window else 0.0
    if not 0 <= arguments.truth_spread < 1:
        raise ValueError(
            f"--truth-spread: found {arguments.truth_spread}, expected a number in [0, 1)"
        )
    if not 0 <= arguments.truth_seed < 2**64:
        raise ValueError(
            f"--truth-seed: found {arguments.truth_seed}, expected a number in [0, 2^64)"
        )
    if arguments.global_batch is not None and arguments.global_batch < 1:
        raise ValueError(f"--global-batch: found {arguments.global_batch}, expected 1 or more")
    cluster = load_cluster(arguments.cluster)
    plans = [Plan.load(path) for path in arguments.plan]
    graphs = [_load(name) for name in arguments.graphs]
    optimizer: Optimizer = AdamW() if arguments.optimizer == "adamw" else SGD(lr=0.1)
    output = Path(arguments.output)
    truth = Truth(arguments.truth_seed, arguments.truth_spread) if arguments.emulate else None
    profiler = Profiler(
        wanted_ops(
            graphs, cluster, plans, arguments.global_batch, optimizer, not arguments.no_grid
        ),
        cluster,
        output,
        truth,
        arguments.kind,
        arguments.device,
        arguments.resume,
        window,
        not arguments.no_collectives,
    )
    return _run(profiler, output, _core.device_kinds(cluster), budget, arguments.json)


def _load(name: str) -> Graph:
    if Path(name).is_file():
        return Graph.load(name)
    if ":" not in name:
        raise ValueError(f"{name}: cannot be read: no such file")
    from medley import model_name

    model, batch = model_name.load(name, None)
    return capture(model, batch)


def _run(
    profiler: Profiler,
    output: Path,
    kinds: Sequence[str],
    budget: float | None,
    as_json: bool,
) -> int:
    """Runs the profiler with a progress bar and prints what it did."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    this = job.current()
    quiet = as_json or (this is not None and this.rank != 0)
    columns = (
        TextColumn("measuring {task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    try:
        with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
            task = progress.add_task("ops", total=None)

            def report(what: str, done: int, of: int) -> None:
                progress.update(task, description=what, completed=done, total=of)

            outcome = profiler.run(budget, report)
    except KeyboardInterrupt:
        console.print(f"{output} has what was measured; --resume goes on", highlight=False)
        raise
    if this is not None and this.rank != 0:
        return 0
    if as_json:
        figures: dict[str, Any] = dataclasses.asdict(outcome)
        print(json.dumps({"profile": str(output), "kinds": list(kinds), **figures}, indent=2))
    else:
        print(describe(outcome, output, kinds))
    return 0
