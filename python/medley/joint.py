"""Several losses of one model, each with its own graph, plan and optimizer, over one state."""

from __future__ import annotations

import dataclasses
import functools
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from medley import _core, checkpoint, whole_tensors
from medley.checkpoint import Checkpoint, Part, Saving, Wanted
from medley.cluster import Cluster
from medley.cursor import Cursor
from medley.graph import Graph, as_graph
from medley.joint_job import JointJob
from medley.lengths import Lengths
from medley.metrics import Metrics
from medley.model_files import write_model
from medley.optimizer import Optimizer
from medley.plan import Plan
from medley.run import ends, exchange, job
from medley.run.journal import Kind
from medley.run.recovery import Recovery
from medley.schedules import schedule_text
from medley.shared_state import SharedState, Value, shared_values
from medley.trainer import Trainer
from medley.whole_tensors import CARRIED

Made = TypeVar("Made")
_KIND = "joint"  # of the optimizer, in a checkpoint


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss of a model: its graph, from `medley.capture(model, batch, loss=..., train=...)`, the
    plan for it, and the optimizer of the parameters that it trains."""

    graph: Graph
    plan: Plan | str | os.PathLike[str]
    optimizer: Optimizer | None = None
    lengths: Lengths | None = None


class JointTrainer:
    """Trains `model` on several objectives, in any order: a generator and a discriminator, a
    student and a teacher.

    Parameters and buffers are one state. Each objective has its own plan, learning rate, moments of
    its optimizer, and step count. Before a step of an objective it receives the values that others
    have changed, divided as its plan says; a device that needs the same part as before copies
    nothing. All other arguments are those of `Trainer`; the random numbers of the n-th objective
    have the seed `seed` + n, counted from 0. In a job the plans of all objectives have the same
    devices, in any order, and all processes make the same calls.
    """

    def __init__(
        self,
        model: nn.Module,
        objectives: Mapping[str, Objective],
        *,
        seed: int = 0,
        local: bool = False,
        cluster: Cluster | str | os.PathLike[str] | None = None,
        keep_gradients: bool = True,
    ) -> None:
        _check_names(objectives)
        _check_carried(objectives)
        self._model = model
        plans = {
            name: each.plan if isinstance(each.plan, Plan) else Plan.load(each.plan)
            for name, each in objectives.items()
        }
        self._job = JointJob(None if local else exchange.join(), plans)
        self._trainers: dict[str, Trainer] = {}
        this = self._job.this
        self._recovery = None
        if this is not None and this.elastic:
            self._recovery = Recovery(self, this, len(objectives))
        for number, (name, objective) in enumerate(objectives.items()):
            with exchange.reordered(self._job.orders.get(name)):
                trainer: Trainer = _Part(
                    self._recovery,
                    next(iter(self._trainers.values()), None),
                    model,
                    objective.graph,
                    plans[name],
                    objective.optimizer,
                    seed=seed + number,
                    local=local,
                    cluster=cluster,
                    keep_gradients=keep_gradients,
                    lengths=objective.lengths,
                )
            trainer._order = self._job.orders.get(name)
            self._trainers[name] = trainer
        self._state = SharedState(self._trainers, self._job.peers(self._first._machines))
        for name, trainer in self._trainers.items():
            # A trainer ends when its user lets go of it: nothing of it has it.
            evaluation = trainer._evaluation
            evaluation.bring = functools.partial(
                SharedState.bring, weakref.proxy(self._state), name
            )
            evaluation.fill = functools.partial(JointTrainer._fill, weakref.proxy(self), name)
        self._saver: Any = None
        first = self._first
        if first._run is not None:
            self._saver = checkpoint.Saver(first._run, first._program, first._job)
        if self._recovery is not None:
            ends.watch(self)
            self._recovery.begin()
        else:
            weakref.finalize(self, self._saver.leave)

    # --- training ---

    @property
    def steps(self) -> dict[str, int]:
        """The steps done, by objective."""
        return {name: trainer.steps for name, trainer in self._trainers.items()}

    def step(self, objective: str, batch: Any) -> Metrics:
        """Trains one objective on one batch, as `Trainer.step` does. In a job all processes call it
        for the same objectives in the same order."""
        trainer = self._of(objective)
        if self._recovery is None:
            self._state.bring(objective)
            self._state.take(objective)
        metrics = trainer.step(batch)
        if self._saver is not None:
            self._saver.poll()
        return metrics

    def evaluate(self, objective: str, data: Any) -> dict[str, float]:
        """Returns the mean loss of an objective and its metrics, as `Trainer.evaluate` does."""
        return self._of(objective).evaluate(data)

    def catch_up(self) -> Metrics | None:
        """Goes on where the others are, in a process that takes the place of a lost one, as
        `Trainer.catch_up` does. The script then begins at the sum of `steps`."""
        return self._first.catch_up()

    def fail(self, cause: str) -> str:
        """Ends the run on all devices; returns its first cause, which may be another's."""
        return self._first.fail(cause)

    def predict(self, objective: str, batch: Any) -> dict[str, Any]:
        """Returns what the model gives for one batch of an objective, as `Trainer.predict` does."""
        return self._of(objective).predict(batch)

    def reset_carried(self, objective: str, values: Mapping[str, Tensor] | None = None) -> None:
        """Lets the next step of an objective begin anew, as `Trainer.reset_carried` does."""
        self._of(objective).reset_carried(values)

    def finish(self) -> None:
        """Tells the other devices that this one has nothing more to do; completes what is being
        saved first."""
        if self._recovery is not None:
            self._recovery.finish()
        else:
            self._saver.wait()
        for trainer in self._trainers.values():
            trainer.finish()

    # --- whole tensors ---

    def parameters(self) -> dict[str, Tensor]:
        """Returns copies of all parameters that an objective has, tied ones once. In a job all
        processes call it."""
        return self._first.together(lambda: self._read("parameter"))

    def buffers(self) -> dict[str, Tensor]:
        """Returns copies of the buffers that an objective uses. In a job all processes call it."""
        found = self._first.together(lambda: self._read("buffer"))
        return {name: value for name, value in found.items() if not name.startswith(CARRIED)}

    def gradients(self, objective: str) -> dict[str, Tensor]:
        """Returns the gradients of the last step of an objective by name, before clipping."""
        return self._of(objective).gradients()

    def averages(self, objective: str) -> dict[str, Tensor]:
        """Returns the averages of parameters that the optimizer of an objective keeps."""
        return self._of(objective).averages()

    # --- checkpoints ---

    def save(
        self,
        folder: str | os.PathLike[str],
        *,
        keep: int = 3,
        keep_every: int = 0,
        wait: bool = True,
        spread: float = 0.0,
        data: Cursor | tuple[int, int, int] | None = None,
    ) -> None:
        """Writes one checkpoint of all objectives, `folder`/step-<steps of all>, as `Trainer.save`
        does."""
        saving = Saving(keep, keep_every, spread)
        place = None if data is None else Cursor(*data)
        error = self._once(lambda: self._save(os.fspath(folder), saving, wait, place))
        if wait and error:
            raise OSError(error)

    def load(
        self,
        folder: str | os.PathLike[str],
        *,
        exact: bool = False,
        parameters_only: bool = False,
    ) -> Checkpoint:
        """Takes everything from what `save` wrote for the same objectives under any plans, as
        `Trainer.load` does. `parameters_only` takes parameters and buffers of the checkpoint of any
        trainer that has all of them."""
        found = self._load(os.fspath(folder), exact, parameters_only)
        if found is None:
            raise ValueError(f"{folder}: found no checkpoint, expected one")
        return found

    def resume(self, folder: str | os.PathLike[str]) -> Checkpoint | None:
        """Goes on from the newest checkpoint in a folder; None, and nothing, if there is none."""
        return self._load(os.fspath(folder), False, False)

    def save_model(self, folder: str | os.PathLike[str]) -> None:
        """Writes parameters and buffers as `Trainer.save_model` does."""

        def save() -> None:
            tensors = self._read("parameter") | self._read("buffer")
            whole = whole_tensors.persistent(tensors, self._model)

            def first() -> bytes:
                write_model(Path(folder), whole, self._model)
                return b""

            if self._first._run is not None:  # the plans use this device
                with self._first._together("save_model()"):
                    this = self._first._job
                    first() if this is None else exchange.from_first(first, "writes the model")

        self._once(save)

    def load_model(self, folder: str | os.PathLike[str]) -> None:
        """Takes parameters and buffers from a file as `Trainer.load_model` does; the optimizers and
        the steps start anew."""

        def load() -> list[int]:
            for trainer in self._trainers.values():
                trainer._load_model(folder)
            self._state.begin()
            return [0] * len(self._trainers)

        counts = load() if self._recovery is None else self._recovery.go_on_after(load)
        for trainer, count in zip(self._trainers.values(), counts, strict=True):
            trainer.steps = count

    # --- how it does that ---

    def _of(self, objective: str) -> Trainer:
        """Returns the trainer of an objective."""
        if objective not in self._trainers:
            raise ValueError(
                f"objective: found {objective!r}, expected one of {', '.join(self._trainers)}"
            )
        return self._trainers[objective]

    @property
    def _first(self) -> Trainer:
        return next(iter(self._trainers.values()))

    def _once(self, make: Callable[[], Made]) -> Made:
        """Does once in a run what all processes do at the same place: see Trainer._once()."""
        return make() if self._recovery is None else self._recovery.acts.once(Kind.SAVE, make)

    def _fill(self, objective: str, run: Any) -> None:
        """Gives an evaluation the values that only other objectives train."""
        for kind, value in self._trainers[objective]._evaluation.lacking:
            if (giver := self._state.giver(kind, value)) is None:
                continue
            trainer = self._trainers[giver]
            with exchange.reordered(trainer._order):
                whole = whole_tensors.read_one(
                    trainer._run, trainer._job, trainer._types, kind, value
                )
            run.load(kind, value, whole)

    def _read(self, kind: str) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, trainer in self._trainers.items():
            own = [each for k, each in self._state.owned(name) if k == kind]
            found |= trainer._read_kind(kind, own)
        return found

    def _save(self, folder: str, saving: Saving, wait: bool, data: Cursor | None) -> str:
        """Returns why there is no checkpoint, "" if there is or will be one."""
        if self._first._run is None:  # the plans do not use this device
            return ""
        state, parts = self._description(data), self._parts()
        with self._first._together("save()"):
            error: str = self._saver.begin(folder, state, saving, not wait, parts)
            return error or (self._saver.wait() if wait else "")

    def _description(self, data: Cursor | None) -> dict[str, Any]:
        """Returns where training is; what is of one objective is named "<objective>/..."."""
        facts: dict[str, Any] = {"kind": _KIND}
        for name, trainer in self._trainers.items():
            own = trainer.optimizer.description() | {
                "step": trainer.steps,
                "seed": trainer._run.seed,
                "schedule": schedule_text(trainer.optimizer.lr),
            }
            facts |= {f"{name}/{key}": value for key, value in own.items()}
        trainers = self._trainers.values()
        return {
            "step": sum(self.steps.values()),
            "global_batch": max(trainer.plan.global_batch for trainer in trainers),
            "seed": self._first._run.seed,
            "data": data,
            "optimizer": facts,
            "schedule": "",
            "graph": _hash_of_all(trainer._graph.hash() for trainer in trainers),
            "plan": _hash_of_all(trainer.plan.text for trainer in trainers),
            "cluster": self._first.plan.core.cluster_hash,
            "versions": checkpoint.versions(),
        }

    def _parts(self) -> list[Part]:
        """Returns what each objective writes: its own state, and what it gives of the shared."""
        parts = []
        for name, trainer in self._trainers.items():
            prefix, values = f"{name}/", self._state.written(name)
            deal = _core.Deal(trainer._program, values, prefix)
            parts.append(Part(trainer._run, deal, f"{name}."))
        return parts

    def _load(self, folder: str, exact: bool, parameters_only: bool) -> Checkpoint | None:
        def read() -> list[Any] | None:
            runs = {name: trainer._run for name, trainer in self._trainers.items()}
            first = self._first
            only = {"exact": exact, "parameters_only": parameters_only}
            with first._together("load()"):
                self._saver.wait()
                result = checkpoint.load(
                    lambda path, manifest: self._wanted(runs, path, manifest, parameters_only),
                    first._job,
                    folder,
                    sum(self.steps.values()),
                    **only,
                )
            if result is None:
                return None
            found, manifest = result
            counts = [0] * len(runs)
            if not parameters_only:
                counts = [int(manifest.optimizer[f"{name}/step"]) for name in runs]
                for run, seed in zip(runs.values(), self._seeds(manifest), strict=True):
                    run.seed = seed
            self._state.begin()
            return [found.path, found.step, found.global_batch, found.data, counts]

        told = read() if self._recovery is None else self._recovery.acts.once(Kind.LOAD, read)
        if told is None:
            return None
        path, step, rows, data, counts = told
        for trainer, count in zip(self._trainers.values(), counts, strict=True):
            trainer.steps = count
        if self._recovery is not None:
            self._recovery.begin_at(counts, path)
        return Checkpoint(path, step, rows, None if data is None else Cursor(*data))

    def _wanted(
        self, runs: Mapping[str, Any], path: str, manifest: Any, parameters_only: bool = False
    ) -> list[Wanted]:
        """Returns what runs, None without a device of the plans, find in a checkpoint."""
        shared = {name: shared_values(run) for name, run in runs.items() if run is not None}
        if shared and not parameters_only:
            self._check(path, manifest, {value for values in shared.values() for value in values})
        return [
            (runs[name], manifest.part(list(values), f"{name}/"), f"{name}/")
            for name, values in shared.items()
        ]

    def _seeds(self, manifest: Any) -> list[int]:
        return [int(manifest.optimizer[f"{name}/seed"]) for name in self._trainers]

    def _check(self, path: str, manifest: _core.Manifest, known: set[Value]) -> None:
        """Raises ValueError for a checkpoint of other objectives, or of more parameters than those
        among the values that are `known`."""
        checkpoint.require_kind(path, manifest, _KIND)
        facts = manifest.optimizer
        there = {key.partition("/")[0] for key in facts if "/" in key}
        if there != set(self._trainers):
            raise ValueError(
                f"{path}: found the objectives {', '.join(sorted(there))}, expected "
                f"{', '.join(sorted(self._trainers))}"
            )
        for name, trainer in self._trainers.items():
            kind = trainer.optimizer.description()["kind"]
            if (found := facts[f"{name}/kind"]) != kind:
                raise ValueError(
                    f"{path}: objective {name!r}: found the optimizer {found}, expected {kind}"
                )
        for kind, name, *_ in manifest.values:
            if kind == "parameter" and (kind, name) not in known:
                raise ValueError(f"{path}: {kind} {name!r}: no objective has it")


class _Part(Trainer):
    """The trainer of one objective."""

    def __init__(
        self, recovery: Recovery | None, first: Trainer | None, *arguments: Any, **options: Any
    ) -> None:
        """`recovery`: of all, in an elastic run; `first`: the trainer of the first objective."""
        self._of_all, self._leads = recovery, first
        super().__init__(*arguments, **options)

    def _recovery_of(self) -> Recovery | None:
        return self._of_all

    def _begin(self) -> None:
        """They begin together."""

    def finish(self) -> None:
        """Tells the other devices that this one has nothing more to do."""
        if self._of_all is None:
            return super().finish()
        self._evaluation.finish()
        if self._run is not None:
            self._run.finish()

    def _watched_run(self) -> Any:
        first = self if self._of_all is None or self._leads is None else self._leads
        return first._run

    def _run_options(
        self, plan: Plan, program: _core.Program, this: job.Job | None
    ) -> dict[str, Any]:
        """In an elastic run that of the first objective watches over the others."""
        options = super()._run_options(plan, program, this)
        if self._of_all is not None and self._leads is not None:
            del options["membership"]
            if not exchange.is_same(program.hash()):
                raise ValueError(
                    "JointTrainer: found different programs in the processes, expected the same "
                    "model and plans in all"
                )
        return options


def _check_names(objectives: Mapping[str, Objective]) -> None:
    if not objectives:
        raise ValueError("JointTrainer: found no objectives, expected at least one")
    for name in objectives:
        if not (isinstance(name, str) and name.replace("_", "a").replace("-", "a").isalnum()):
            raise ValueError(
                f"JointTrainer: found the objective {name!r}, expected a name of letters, digits, "
                "_ and -"
            )


def _check_carried(objectives: Mapping[str, Objective]) -> None:
    seen: dict[str, str] = {}
    for name, objective in objectives.items():
        for given in as_graph(objective.graph).carry:
            if (other := seen.setdefault(given, name)) != name:
                raise ValueError(
                    f"JointTrainer: found the objectives {other!r} and {name!r} that carry "
                    f"{given!r}, expected other names of inputs"
                )


def _hash_of_all(texts: Iterable[str]) -> str:
    return checkpoint.text_hash("\n".join(texts))
