"""Evaluating on the devices of a plan: the model in eval mode, without gradients."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from medley import _core, _runtime, whole_tensors
from medley.cluster import Cluster
from medley.data.inputs import Inputs, StepBatch
from medley.data.loader import UnreadBatch
from medley.graph import Graph, capture_forward
from medley.model_files import tensors_of
from medley.optimizer import AdamW
from medley.plan import Plan
from medley.run import devices
from medley.run.job import Job
from medley.sizes import Sizes

NOT_ELASTIC = "evaluate: an elastic run cannot evaluate yet: save, and evaluate that"
Together = Callable[[str], contextlib.AbstractContextManager[None]]


class Evaluation:
    """Runs the forward phase for a trainer's run. Has no parameters of its own: between calls it
    has none, and in one those of the run."""

    def __init__(
        self,
        model: nn.Module,
        graph: Graph,
        plan: Plan,
        machines: Cluster,
        job: Job | None,
        inputs: Inputs,
    ) -> None:
        """`inputs`: of training."""
        self._model = model
        self._graph = graph
        self._plan = plan
        self._machines = machines
        self._job = job
        self._run: Any = None
        self._sizes: Sizes | None = None
        self._inputs = inputs

    def means(
        self, run: Any, batches: Iterable[Any], step: int, together: Together
    ) -> dict[str, float]:
        """Returns the means of loss and metrics over the rows of all batches, at the parameters
        that `run` has. Raises ValueError if there are none."""
        sums: dict[str, float] = {}
        rows = 0
        shared = False
        try:
            for batch in batches:
                with together("evaluate()"):
                    if self._run is None:
                        self._begin(run, batch)
                    if not shared:
                        self._run.share_values(run)
                        shared = True
                    count, found = self._step(batch, step)
                rows += count
                for name, value in found.items():
                    sums[name] = sums.get(name, 0.0) + count * value
        finally:
            if shared:
                self._run.drop_values()
        if not rows:
            raise ValueError("evaluate: found no batch, expected one at least")
        return {name: value / rows for name, value in sums.items()}

    def finish(self) -> None:
        """Tells the other devices that this one evaluates no more."""
        if self._run is not None:
            self._run.finish()

    def _begin(self, run: Any, batch: Any) -> None:
        """Makes the run, with the first batch as an example."""
        example = batch.rows([0]) if isinstance(batch, UnreadBatch) else batch
        example = self._inputs.longest(example)
        with in_eval_mode(self._model):
            forward = capture_forward(self._model, example, self._graph.autocast)
        text, program = lowered(self._plan, self._graph.core, forward.core, self._machines)
        chosen = Plan(text, forward, self._machines)
        options = devices.options(chosen, program, self._machines, self._job)
        options |= {"emulation": {}}  # it takes no time of the emulated devices
        self._run = _runtime.Run(program, self._machines, options | {"seed": run.seed})
        types = whole_tensors.types_of(forward.core)
        known = set(run.values)
        lacking = {each: type for each, type in types.items() if each not in known}
        whole_tensors.start(
            self._run, self._job, lacking, forward.constants, lambda: tensors_of(self._model)
        )
        rank = None if self._job is None else self._job.rank
        self._inputs = self._inputs.of(types)
        size = self._inputs.planned(self._plan.global_batch)
        self._sizes = Sizes(
            self._run,
            program,
            size,
            rank,
            functools.partial(self._at_length, text, forward, program),
        )

    def _step(self, batch: Any, step: int) -> tuple[int, dict[str, float]]:
        """Returns the rows of a batch, and its loss and metrics."""
        assert self._sizes is not None
        read: StepBatch = self._inputs.read(
            batch, self._plan.global_batch, self._sizes, own=self._job is not None
        )
        result = self._run.step(read.tensors, [], step, self._sizes.number(read))
        return read.size.rows, {"loss": result.loss, **result.metrics}

    def _at_length(
        self, text: str, planned: Graph, program: _core.Program, length: int, example: Any
    ) -> _core.Program:
        with in_eval_mode(self._model):
            forward = capture_forward(self._model, example, self._graph.autocast)
        rule = AdamW().core(forward.core)
        return program.alike(planned.core, forward.core, text, self._machines, rule)


def is_batch(data: Any) -> bool:
    """Returns whether this is one batch, and not what yields some, such as a list of dicts. Raises
    ValueError for what is neither."""
    if isinstance(data, list) and all(isinstance(each, Mapping) for each in data):
        return False
    if isinstance(data, (Tensor, Mapping, tuple, list, UnreadBatch)):
        return True
    if isinstance(data, Iterable):
        return False
    raise ValueError(f"evaluate: found {data!r}, expected a batch or a loader")


@contextlib.contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Every module is in eval mode inside the block, and as it was behind it."""
    before = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def lowered(
    plan: Plan, training: _core.Graph, forward: _core.Graph, machines: Cluster
) -> tuple[str, _core.Program]:
    """Returns what a plan of the training graph says of the forward phase, and its program: where
    weights are, who has which rows, where stages begin, and what ops divide as far as they are the
    same."""
    rule = AdamW().core(forward)  # which updates nothing
    # An op may divide what it does not have in eval mode: then what suits its operands. Metrics may
    # be of all rows at once: then micro-batches are one.
    ways = ((True, False), (False, False), (True, True), (False, True))
    errors = []
    for with_ops, whole in ways:
        try:
            text = plan_for(plan, training, forward, with_ops, whole)
            return text, _core.Program(forward, text, machines, rule)
        except ValueError as error:
            errors.append(error)
    raise errors[1]


def plan_for(
    plan: Plan, training: _core.Graph, forward: _core.Graph, with_ops: bool, whole: bool
) -> str:
    """Returns the text of the plan for the forward phase, with or without the choices of ops;
    `whole`: each pipeline has one micro-batch."""
    entries = plan.to_dict()
    for key in ("graph_hash", "bound", "owners"):
        entries.pop(key, None)
    names = {name for _, name, _, _ in forward.inputs}
    ops = forward.stable_names()
    order = [name for name in training.stable_names() if "/~" not in name]
    for pipeline in entries["pipelines"]:
        if whole:
            pipeline["microbatches"] = [_joined(pipeline["microbatches"])]
        begun = ""  # the op with which the stage before begins
        for stage in pipeline["stages"]:
            for key in ("updates", "recompute"):
                stage.pop(key, None)
            for key, known in (
                ("states", names),
                ("batch", names),
                ("ops", ops if with_ops else ()),
            ):
                if key in stage:
                    stage[key] = _matching(stage[key], known)
            if stage.get("first"):
                stage["first"] = begun = _first_of(stage["first"], order, ops, begun)
    return Plan.from_dict(entries).text


def _joined(microbatches: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the micro-batch of the rows of all."""
    joined: dict[str, Any] = {"rows": sum(each["rows"] for each in microbatches)}
    lengths = [each["lengths"] for each in microbatches if "lengths" in each]
    if len(lengths) == len(microbatches):
        joined["lengths"] = [sum(each) for each in zip(*lengths, strict=True)]
    return joined


def _matching(choices: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Returns the entries whose key, in which `*` stands for any characters, is that of a name."""
    known = list(names)
    kept = {}
    for key, text in choices.items():
        pattern = re.compile(".*".join(map(re.escape, key.split("*"))))
        if any(pattern.fullmatch(name) for name in known):
            kept[key] = text
    return kept


def _first_of(name: str, order: Sequence[str], ops: Sequence[str], begun: str) -> str:
    """Returns the op with which a stage begins: that of training, or the next one that there is. A
    stage that has dropout only would be empty: it gets the op with which the next one begins."""
    known = set(ops)
    begin = order.index(name) if name in order else len(order)
    if begun:
        begin = max(begin, order.index(begun) + 1)
    for each in order[begin:]:
        if each in known:
            return each
    raise ValueError(f"evaluate: a stage begins at {name!r}, and has no op in eval mode")
