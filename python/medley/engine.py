"""The engine of one objective: model graph, optimizer, and plan and run of the current
generation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from medley import _core, _runtime, carried, extras, whole_tensors
from medley.cluster import Cluster, load_cluster
from medley.data.inputs import Inputs, Size, StepBatch
from medley.data.pictures import pictures_in
from medley.drift import report_drift
from medley.evaluation import Evaluation
from medley.files import read_text
from medley.from_torch import trains
from medley.graph import Graph, as_graph, capture_isomorphic
from medley.lengths import Lengths
from medley.methods import called
from medley.metrics import Given, Metrics, Outputs, seconds_of, waiting_of
from medley.model_files import read_model, tensors_of
from medley.optimizer import Optimizer
from medley.plan import Plan
from medley.run import connections, devices, exchange
from medley.run.job import Job
from medley.run.replanning import Subject, expected_nanoseconds
from medley.sizes import Sizes
from medley.whole_tensors import CONSTANT

if TYPE_CHECKING:
    from medley.run.change import Trial

Value = TypeVar("Value")


class OfEngine(Generic[Value]):
    """An attribute of a trainer that is forwarded to its engine."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, trainer: Any, owner: type) -> Value:
        found: Value = getattr(trainer.engine, self._name)
        return found

    def __set__(self, trainer: Any, value: Value) -> None:
        setattr(trainer.engine, self._name, value)


class Engine:
    """Runs the steps of one objective, "" if it is the only one. It has no run before the first
    generation, nor while the plan uses no device of this process. `lead` is the engine whose run
    monitors the others."""

    name = ""
    run: Any = None
    program: _core.Program
    drift: _runtime.Drift | None = None
    _meter: _runtime.Drift | None = None
    was_planned = False  # whether the last batch had the planned size
    _speed: extras.Speed | None = None  # of a job of fixed size, under the current plan
    _report: weakref.finalize[..., Any] | None = None
    _drift_report: weakref.finalize[..., Any] | None = None
    order: list[int] | None = None  # ranks of the plan's devices, if they differ from plan order
    trial: Trial | None = None  # until a step has succeeded under another plan

    def __init__(
        self,
        model: nn.Module,
        graph: Graph | _core.Graph,
        plan: Plan | str | os.PathLike[str],
        optimizer: Optimizer | torch.optim.Optimizer | None,
        this: Job | None,
        *,
        seed: int,
        cluster: Cluster | str | os.PathLike[str] | None,
        keep_gradients: bool,
        trace: bool = False,
        profile: str | os.PathLike[str] | None = None,
        lengths: Lengths | None = None,
        lead: Engine | None = None,
    ) -> None:
        self.graph = as_graph(graph)
        self.model = model = called(model, self.graph.loss)
        self.plan = plan if isinstance(plan, Plan) else Plan.load(plan)
        self.optimizer = trains(optimizer, model)
        self.steps = 0
        machines = self.plan.cluster if cluster is None else load_cluster(cluster)
        if machines is None:
            raise ValueError("Trainer: the plan was read from a file: expected also cluster=...")
        self.machines = machines
        self.seed = seed  # seed of the first run
        self.is_elastic = this is not None and this.elastic
        self.job = this  # job of the current generation; None without a device of the plan
        self.types = carried.held_types(
            whole_tensors.types_of(self.graph.core), self.graph.carry, self.plan.global_batch
        )
        self.resets: dict[int, dict[str, Tensor]] = {}  # initial values, by step
        self._options: dict[str, Any] = {
            "seed": seed,
            "keep_gradients": keep_gradients,
            "trace": trace or profile is not None,
        }
        self._profile = profile
        self._lead = lead
        self._sizes: Sizes | None = None
        agree = None if this is None or lengths is None else exchange.largest
        if self.graph.pictures is None:  # the graph was read from a file
            pictures = pictures_in(model, self.types)
            self.graph = dataclasses.replace(self.graph, pictures=pictures)
        self.inputs = Inputs(self.types, lengths, agree, self.graph.pictures)
        self.evaluation = Evaluation(self)

    # --- its parts, in every generation ---

    def program_of(self, plan: Plan) -> _core.Program:
        """Returns the program of a plan. In an elastic run the all-reduce of the norm is its
        commit."""
        rule = self.optimizer.core(self.graph.core, self.is_elastic)
        kept = self._options["keep_gradients"]
        return _core.Program(self.graph.core, plan.core, self.machines, rule, kept, self.is_elastic)

    def make_run(self, plan: Plan, program: _core.Program, this: Job | None) -> Any:
        """Returns the run of this process, without values."""
        options = self._options | devices.options(plan, program, self.machines, this)
        self.places: list[str] = options["torch_devices"]
        if self._lead is not None:  # its run monitors all others
            del options["membership"]
            if not exchange.is_same(program.hash()):
                raise ValueError(
                    "JointTrainer: found different programs in the processes, expected the same "
                    "model and plans in all"
                )
        self._generation = options.get("membership", {}).get("generation", 0)
        with connections.guarded():  # the connection to the store
            return _runtime.Run(program, self.machines, options)

    def open(self) -> None:
        """Makes the first run. At the end, op drift from the profile is printed, and the devices of
        a job that were slower than the plan expects."""
        self.program = self.program_of(self.plan)
        self.run = self.make_run(self.plan, self.program, self.job)
        self._watch()

    def _watch(self) -> None:
        """Compares the current run with its prediction, until its end."""
        measured = "" if self._profile is None else read_text(self._profile)
        if self._profile is not None:
            self.drift = _runtime.Drift(self.run, self.machines, measured, str(self._profile))
            first = self.job is None or self.job.rank == 0
            self._drift_report = weakref.finalize(self, report_drift, self.drift, first)
        if self.job is not None and not self.is_elastic:
            plan, machines = self.plan, self.machines
            expect = functools.partial(expected_nanoseconds, Subject.of(self), plan, measured)
            self._speed = extras.speed(self.job, self._generation, plan, machines, measured, expect)
            if self._speed is not None:
                self._report = weakref.finalize(self, self._speed.report)

    def start(self, read: Callable[[], Mapping[str, Tensor]]) -> None:
        """Gives the run the initial values that `read` returns in the first process."""
        self.settle()
        constants = {**self.graph.constants, **carried.zeros(self.types)}
        whole_tensors.start(self.run, self.job, self.types, constants, read)
        self.resets.clear()

    def load_constants(self, run: Any) -> None:
        """Gives a new run of this process, or None, the constants of the graph."""
        for kind, name in [] if run is None else run.values:
            if name.startswith(CONSTANT):
                run.load(kind, name, self.graph.constants[name].detach().cpu())

    def enter(self, plan: Plan, program: _core.Program, run: Any, this: Job | None) -> None:
        """Replaces plan, program, run and job by these."""
        self.plan, self.program, self.run, self.job = plan, program, run, this
        self.drift = self._meter = None
        self.evaluation.move()

    def replace(self, plan: Plan, program: _core.Program, run: Any, this: Job | None) -> None:
        """Enters another plan between two steps."""
        for report in filter(None, (self._report, self._drift_report)):
            report.detach()
        self.evaluation.finish()
        self.enter(plan, program, run, this)
        self._watch()

    def settle(self) -> None:
        """Ends the trial of a plan."""
        if self.trial is not None:
            self.trial.end()

    @property
    def ranks(self) -> tuple[int, int] | None:
        """Returns the number of this process among those that train and their count, or None if the
        current plan does not use it."""
        if self.run is None:
            return None
        return (0, 1) if self.job is None else (self.job.rank, self.job.size)

    @property
    def is_first(self) -> bool:
        """Returns whether this process is the first, which prints and reports."""
        return self.ranks is not None and self.ranks[0] == 0

    # --- steps ---

    def read(self, batch: Any) -> StepBatch:
        """Returns the rows of a batch that this process needs."""
        own = self.job is not None and not self.is_elastic
        carried.require_without(batch, self.graph.carry)
        rows = self.plan.global_batch
        return self.inputs.read(batch, rows, self._sizes_now(), own, self.is_elastic)

    def step(self, batch: StepBatch) -> Metrics:
        self.reset()
        size = self._sizes_now().number(batch)
        scalars = self.optimizer.scalars(self.steps)
        result = self.run.step(batch.tensors, scalars, self.steps, size)
        self.was_planned = size == 0
        if size == 0:
            for meter in (self.drift, self._meter):
                if meter is not None:
                    meter.add(self.run)
            if self._speed is not None:
                self._speed.add(result.nanoseconds[0] - result.waiting[0])
        return self.metrics(Given.of(result, self.graph.rows), result, batch.size)

    def finish_step(self, committed: float | None) -> Metrics:
        """Computes the rest of a step after its commit, which returned `committed`."""
        result = self.run.finish_step(committed)
        return self.metrics(Given.of(result, self.graph.rows), result)

    def metrics(self, given: Given, result: Any = None, size: Size | None = None) -> Metrics:
        """Returns the metrics of the current step. `result` is that of this process, if it has
        one."""
        seconds, shares = seconds_of(result), waiting_of(result)
        tokens = self.inputs.tokens(size or self.inputs.planned(self.plan.global_batch))
        rows = self.graph.rows
        return Metrics(
            step=self.steps,
            loss=given.loss,
            grad_norm=given.grad_norm,
            learning_rate=self.optimizer.learning_rate(self.steps),
            step_seconds=seconds,
            tokens_per_second=tokens / max(seconds, 1e-12),
            waiting=sum(shares.values()) / max(1, len(shares)),
            devices=shares,
            outputs=Outputs(given.outputs, rows) if result is None else given.outputs,
        )

    def measure_against(self, cluster: Cluster | None) -> _runtime.Drift | None:
        """Measures the op times of this run from now on, relative to the figures of a cluster. None
        ends it. Requires a traced run."""
        self._meter = None if cluster is None else _runtime.Drift(self.run, cluster, "", "")
        return self._meter

    def reset(self) -> None:
        """Sets the initial values of the next step before they are read."""
        if self.run is None or self.steps not in self.resets:
            return
        held = set(self.run.values)
        for name, value in self.resets[self.steps].items():
            if ("buffer", name) in held:
                self.run.load("buffer", name, value)

    def _sizes_now(self) -> Sizes:
        if self._sizes is None or self._sizes.run is not self.run:  # a run of an earlier generation
            rank = None if self.job is None else self.job.rank
            planned = self.inputs.planned(self.plan.global_batch)
            # A weak reference lets the engine, and the checkpoint being written, end with its
            # trainer.
            at_length = functools.partial(Engine._program_at, weakref.proxy(self))
            self._sizes = Sizes(self.run, self.program, planned, rank, at_length)
        return self._sizes

    def _program_at(self, length: int, example: Any) -> _core.Program:
        """Returns the program for sequences of this length, captured from the model."""
        example = carried.with_zeros(example, self.graph, self.inputs)
        graph = capture_isomorphic(self.model, example, self.graph, length)
        rule = self.optimizer.core(graph.core, self.is_elastic)
        graphs, kept = (self.graph.core, graph.core), self._options["keep_gradients"]
        try:
            return self.program.isomorphic(
                *graphs, self.plan.core, self.machines, rule, kept, self.is_elastic
            )
        except ValueError as error:
            raise ValueError(f"batch of length {length}: {error}") from None

    # --- whole tensors ---

    def read_kind(self, kind: str, among: Collection[str] | None = None) -> dict[str, Tensor]:
        """Returns copies of the tensors of one kind, limited to the names `among` if given. Returns
        none if the plan does not use this device."""
        if self.run is None:
            return {}
        return whole_tensors.read_kind(self.run, self.job, self.types, kind, among, self.together)

    def read_one(self, kind: str, name: str) -> Tensor:
        with exchange.reordered(self.order):
            return whole_tensors.read_one(self.run, self.job, self.types, kind, name)

    def load_model(self, folder: str | os.PathLike[str]) -> None:
        with self.together("load_model()"):
            self.start(lambda: tensors_of(self.model) | read_model(Path(folder), self.model))

    # --- other processes ---

    @contextlib.contextmanager
    def together(self, call: str) -> Iterator[None]:
        """Wraps a call that all processes of a job must make: each publishes its call, and a call
        that only some make ends the run."""
        run = self.run if self._lead is None else self._lead.run
        with exchange.reordered(self.order), exchange.together(run, call):
            yield

    def in_first(self, write: Callable[[], None], doing: str) -> None:
        """Runs `write` in the first process. `doing` describes it in the messages of waiting
        processes."""

        def make() -> bytes:
            write()
            return b""

        make() if self.job is None else exchange.from_first(make, doing)

    def fail(self, cause: str) -> str:
        """Ends the run on all devices. Returns its first cause, which may be on another device."""
        return str(self.run.fail(cause)) if self.run is not None else cause

    def finish(self) -> None:
        """Notifies the other devices that this one has finished."""
        self.evaluation.finish()
        self.settle()
        if self.run is not None:
            self.run.finish()

    def report_slow(self) -> None:
        """Prints the devices of a job that were slower than the plan expects."""
        if self._report is not None:
            self._report()
