"""Evaluation on the devices of a plan: the model in eval mode, without gradients."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from medley import _core, _runtime, carried, whole_tensors
from medley.ambient import in_eval_mode
from medley.capture.batch import entries
from medley.cluster import Cluster
from medley.data.inputs import Inputs, StepBatch
from medley.data.loader import UnreadBatch
from medley.graph import Graph, capture_forward
from medley.metrics import Given, scalars_of
from medley.model_files import tensors_of
from medley.optimizer import AdamW
from medley.plan import Plan
from medley.run import devices, elastic, exchange
from medley.sizes import Sizes

if TYPE_CHECKING:
    from medley.engine import Engine


@dataclasses.dataclass
class Sums:
    """Running sums over the batches of an evaluation."""

    batches: int = 0
    rows: int = 0
    values: dict[str, float] = dataclasses.field(default_factory=dict)  # sum over all rows

    def add(self, rows: int, means: Mapping[str, float]) -> None:
        """Adds a batch of `rows` rows with these means."""
        self.batches += 1
        self.rows += rows
        for name, value in means.items():
            self.values[name] = self.values.get(name, 0.0) + rows * value

    def means(self) -> dict[str, float]:
        """Returns the means over all rows. Raises ValueError if there are no rows."""
        if not self.rows:
            raise ValueError("evaluate: found no batch, expected one at least")
        return {name: value / self.rows for name, value in self.values.items()}


@dataclasses.dataclass
class _Begun:
    """A run that evaluates, with its reader of batches. `has_values`: it has the trainer's
    values."""

    run: Any
    sizes: Sizes
    inputs: Inputs
    carried: dict[str, Tensor]  # initial carried values of the rows
    has_values: bool = False


class Evaluation:
    """Runs the forward phase for a trainer's run. It has parameters only during a call: those of
    the run."""

    def __init__(self, engine: Engine) -> None:
        self._engine: Engine = weakref.proxy(engine)  # owner of this object
        self._captured = b""  # graph shared by all processes
        # Runs by the factor between their rows and those of the plan.
        self._begun: dict[int, _Begun] = {}
        self.lacking: list[tuple[str, str]] = []  # (kind, name) missing in the training graph
        self.bring: Callable[[], None] = lambda: None  # gives the trainer's run the missing values
        # gives a run the missing values, if known
        self.fill: Callable[[Any], None] = lambda run: None

    def means(self, batches: Iterable[Any]) -> dict[str, float]:
        """Returns the means of loss and metrics over the rows of all batches, at the current
        parameters. Raises ValueError if there are no rows."""
        sums = Sums()
        try:
            for batch in batches:
                with self._engine.together("evaluate()"):
                    self.add(sums, batch)
        finally:
            self.drop_values()
        return sums.means()

    def add(self, sums: Sums, batch: Any) -> Given:
        """Evaluates one batch, adds its rows and means to `sums`, and returns its results. A batch
        of more rows than the plan's is divided into more micro-batches."""
        with self._reading():
            times = self._times(batch)
        if times not in self._begun:
            self._begun[times] = self._begin(batch, times)
        begun = self._begun[times]
        if not begun.has_values:
            if self._engine.graph.carry and any(each.has_values for each in self._begun.values()):
                raise ValueError(
                    "evaluate: found batches of other sizes, expected the same number of rows in "
                    "all, since rows carry values from batch to batch"
                )
            self.bring()
            begun.run.share_values(self._engine.run)
            for name, value in begun.carried.items():
                begun.run.load("buffer", name, value)
            self.fill(begun.run)
            begun.has_values = True
        own = self._engine.job is not None and not self._engine.is_elastic
        with self._reading():
            most = times * self._engine.plan.global_batch
            read: StepBatch = begun.inputs.read(batch, most, begun.sizes, own)
        result = begun.run.step(read.tensors, [], self._engine.steps, begun.sizes.number(read))
        found = Given.of(result, self._engine.graph.rows)
        sums.add(read.size.rows, {"loss": found.loss, **scalars_of(found.outputs)})
        return found

    def outputs(self, batch: Any) -> dict[str, Any]:
        """Returns the outputs of the model for one batch, by name."""
        try:
            with self._engine.together("predict()"):
                found = self.add(Sums(), batch)
        finally:
            self.drop_values()
        return {"loss": found.loss, **found.outputs}

    def _times(self, batch: Any) -> int:
        """Returns the least power of two by which the plan's rows must be multiplied to fit a
        batch."""
        rows = self._engine.inputs.rows(batch)
        return 1 << (max(1, -(-rows // self._engine.plan.global_batch)) - 1).bit_length()

    def fingerprint(self, batch: Any) -> str:
        """Returns a digest of the parts of a batch that must be identical in all processes. `batch`
        has all rows in each process, or only its own."""
        with self._reading():
            most = self._times(batch) * self._engine.plan.global_batch
            return self._engine.inputs.fingerprint(batch, most)

    def drop_values(self) -> None:
        """Frees the parameters."""
        for begun in self._begun.values():
            if begun.has_values:
                begun.run.drop_values()
                begun.has_values = False

    def move(self) -> None:
        """Drops the runs of the old plan. A new run is made when it is needed."""
        self._begun = {}

    def abort(self, cause: str) -> None:
        """Aborts all current and future waits of its runs. May be called from any thread."""
        for begun in list(self._begun.values()):
            begun.run.abort(cause)

    def finish(self) -> None:
        """Notifies the other devices that this one has finished evaluating."""
        for begun in self._begun.values():
            begun.run.finish()

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context around code of the script."""
        return elastic.of_script() if self._engine.is_elastic else contextlib.nullcontext()

    def _begin(self, batch: Any, times: int) -> _Begun:
        """Makes the run for `times` times the rows of the plan, with the first batch as an
        example."""
        of, graph = self._engine, self._engine.graph
        if of.is_elastic:
            self._captured = exchange.from_any(self._captured)
        with self._reading(), in_eval_mode(of.model):
            example = batch.rows([0]) if isinstance(batch, UnreadBatch) else batch
            example = carried.with_zeros(of.inputs.longest(example), graph, of.inputs)
            forward, self._captured = capture_forward(of.model, example, graph, self._captured)
        plan, program = lowered(of.plan, graph.core, forward.core, of.machines, times)
        made = _runtime.Run(program, of.machines, self._options(plan, program))
        if of.is_elastic:
            exchange.check()  # the call that aborts all waits may precede the run
        rows = times * of.plan.global_batch
        types = carried.held_types(whole_tensors.types_of(forward.core), graph.carry, rows)
        known = set(of.run.values)
        lacking = {each: type for each, type in types.items() if each not in known}
        self.lacking = [each for each in lacking if each in set(made.values)]
        constants = forward.constants
        whole_tensors.start(made, of.job, lacking, constants, lambda: tensors_of(of.model))
        rank = None if of.job is None else of.job.rank
        inputs = of.inputs.of(types)
        size = inputs.planned(rows)
        at_length = functools.partial(self._at_length, plan.core, forward, program)
        sizes = Sizes(made, program, size, rank, at_length)
        return _Begun(made, sizes, inputs, carried.zeros(types))

    def _options(self, plan: Plan, program: _core.Program) -> dict[str, Any]:
        machines, this = self._engine.machines, self._engine.job
        options = devices.options(plan, program, machines, this, takes_time=False)
        options["seed"] = self._engine.run.seed
        if self._engine.is_elastic:
            # In a generation the training run monitors the others, and this run is part of it.
            del options["membership"]
            options["keep_undo"] = False
            if len(set(exchange.texts(program.hash()))) > 1:
                raise ValueError(
                    "evaluate: the processes have different programs: expected the same model and "
                    "batches in all"
                )
        return options

    def _at_length(
        self, plan: _core.Plan, planned: Graph, program: _core.Program, length: int, example: Any
    ) -> _core.Program:
        with in_eval_mode(self._engine.model):
            example = carried.with_zeros(example, self._engine.graph, self._engine.inputs)
            forward, _ = capture_forward(self._engine.model, example, self._engine.graph)
        rule = AdamW().core(forward.core)
        return program.isomorphic(planned.core, forward.core, plan, self._engine.machines, rule)


def is_batch(data: Any, names: Collection[str]) -> bool:
    """Returns whether `data` is one batch rather than an iterable of batches. A list of dicts is an
    iterable, as is an object without the names of the model's arguments. Raises ValueError if it is
    neither."""
    if isinstance(data, list) and all(isinstance(each, Mapping) for each in data):
        return False
    if isinstance(data, list) and data and not isinstance(data[0], Tensor):
        return not entries(data).keys().isdisjoint(names)
    if isinstance(data, (Tensor, Mapping, tuple, list, UnreadBatch)):
        return True
    if isinstance(data, Iterable):
        return False
    raise ValueError(f"evaluate: found {data!r}, expected a batch or a loader")


def lowered(
    plan: Plan, training: _core.Graph, forward: _core.Graph, machines: Cluster, times: int = 1
) -> tuple[Plan, _core.Program]:
    """Returns the plan and the program of the forward phase, derived from a plan of the training
    graph. It keeps the device mapping of weights and rows and the starts of stages, and the
    division of ops that both graphs have. Each micro-batch occurs `times` times."""
    rule = AdamW().core(forward)  # updates no parameter
    # An op may divide a dim that it lacks in eval mode; its division is then derived from its
    # operands. A metric may need all rows at once; there is then one micro-batch.
    ways = ((True, False), (False, False), (True, True), (False, True))
    errors = []
    for with_ops, whole in ways:
        try:
            found = plan_for(plan, training, forward, with_ops, whole, times)
            return found, _core.Program(forward, found.core, machines, rule)
        except ValueError as error:
            errors.append(error)
    raise errors[1]


def plan_for(
    plan: Plan,
    training: _core.Graph,
    forward: _core.Graph,
    with_ops: bool,
    whole: bool,
    times: int = 1,
) -> Plan:
    """Returns the plan for the forward phase, with or without the choices of ops. `whole` gives
    each pipeline one micro-batch. The rows are `times` times the plan's."""
    entries = plan.to_dict()
    entries["global_batch"] *= times
    for key in ("graph_hash", "bound", "owners"):
        entries.pop(key, None)
    names = {name for _, name, _, _ in forward.inputs}
    ops = forward.stable_names()
    order = [name for name in training.stable_names() if "/~" not in name]
    for pipeline in entries["pipelines"]:
        pipeline["microbatches"] = pipeline["microbatches"] * times
        if whole:
            pipeline["microbatches"] = [_joined(pipeline["microbatches"])]
        begun = ""  # first op of the stage before
        for stage in pipeline["stages"]:
            for key in ("updates", "recompute"):
                stage.pop(key, None)
            for key, known in (
                ("placements", names),
                ("batch", names),
                ("ops", ops if with_ops else ()),
            ):
                if key in stage:
                    stage[key] = _matching(stage[key], known)
            if stage.get("first"):
                stage["first"] = begun = _first_of(stage["first"], order, ops, begun)
    return Plan.from_dict(entries)


def _joined(microbatches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns one micro-batch with the rows of all."""
    joined: dict[str, Any] = {"rows": sum(each["rows"] for each in microbatches)}
    lengths = [each["lengths"] for each in microbatches if "lengths" in each]
    if len(lengths) == len(microbatches):
        joined["lengths"] = [sum(each) for each in zip(*lengths, strict=True)]
    return joined


def _matching(choices: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Returns the entries whose key matches one of `names`; `*` stands for any characters."""
    known = list(names)
    kept = {}
    for key, text in choices.items():
        pattern = re.compile(".*".join(map(re.escape, key.split("*"))))
        if any(pattern.fullmatch(name) for name in known):
            kept[key] = text
    return kept


def _first_of(name: str, order: Sequence[str], ops: Sequence[str], begun: str) -> str:
    """Returns the first op of a stage: that of training, or the next one that exists. An otherwise
    empty stage, such as one with only dropout, gets the first op of the next stage."""
    known = set(ops)
    begin = order.index(name) if name in order else len(order)
    if begun:
        begin = max(begin, order.index(begun) + 1)
    for each in order[begin:]:
        if each in known:
            return each
    raise ValueError(f"evaluate: a stage begins at {name!r}, and has no op in eval mode")
