"""The trainer: a model, its graph and a plan at work."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from medley import _core, _runtime, carried, checkpoint, whole_tensors
from medley.adapters import check_adapted, trained_names, write_adapter
from medley.checkpoint import Checkpoint, Saving
from medley.cluster import Cluster, load_cluster
from medley.cursor import Cursor
from medley.data.inputs import Inputs, Size, StepBatch
from medley.data.pictures import pictures_in
from medley.drift import comparable, expected_nanoseconds, report_drift
from medley.evaluation import Evaluation, is_batch
from medley.files import read_text
from medley.first_step import FirstStep
from medley.from_torch import trains
from medley.graph import Graph, as_graph, capture_alike
from medley.lengths import Lengths
from medley.methods import called
from medley.metrics import Given, Metrics, Outputs, seconds_of, waiting_of
from medley.model_files import read_model, tensors_of, write_model
from medley.optimizer import Optimizer
from medley.plan import Plan
from medley.run import connections, devices, ends, exchange, job, stragglers
from medley.run.journal import Kind
from medley.run.recovery import Recovery
from medley.schedules import schedule_text
from medley.sizes import Sizes
from medley.trainer_records import Records
from medley.trainer_tensors import WholeTensors
from medley.whole_tensors import CARRIED, CONSTANT

if TYPE_CHECKING:
    from medley.callbacks import Callback
    from medley.checkpoint import Wanted
    from medley.fit import Fitted
    from medley.shared_state import SharedState

Made = TypeVar("Made")


class Trainer(WholeTensors, Records):
    """Trains `model` as `plan` says: on threads of this process, or as one process of a job.

    The parameters are taken from `model` when the trainer is made (in a job: from that of the first
    process); `model` itself is not changed. `local=True` runs all devices as threads of this
    process also within a job. `profile` is the file that the plan was made with: how far the times
    of ops have drifted from it is said when the trainer ends. Batches may have shorter sequences
    than the planned ones; `lengths` says more of them.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: Graph | _core.Graph,
        plan: Plan | str | os.PathLike[str],
        optimizer: Optimizer | torch.optim.Optimizer | None = None,
        *,
        seed: int = 0,
        local: bool = False,
        cluster: Cluster | str | os.PathLike[str] | None = None,
        keep_gradients: bool = True,
        trace: bool = False,
        profile: str | os.PathLike[str] | None = None,
        lengths: Lengths | None = None,
    ) -> None:
        self._graph = as_graph(graph)
        self._model = model = called(model, self._graph.loss)
        self.plan = plan if isinstance(plan, Plan) else Plan.load(plan)
        self.optimizer = trains(optimizer, model)
        self.steps = 0
        machines = self.plan.cluster if cluster is None else load_cluster(cluster)
        if machines is None:
            raise ValueError("Trainer: the plan was read from a file: expected also cluster=...")
        self._machines = machines
        self._options: dict[str, Any] = {
            "seed": seed,
            "keep_gradients": keep_gradients,
            "trace": trace or profile is not None,
        }
        self._types = carried.held_types(
            whole_tensors.types_of(self._graph.core), self._graph.carry, self.plan.global_batch
        )
        self._resets = {}
        self._rows = self._graph.rows
        self._sizes: Sizes | None = None
        self._took = stragglers.Stopwatch()
        self._drift = None
        self._job = None if local else exchange.join()
        agree = None if self._job is None or lengths is None else exchange.largest
        if self._graph.pictures is None:  # it was read from a file
            pictures = pictures_in(model, self._types)
            self._graph = dataclasses.replace(self._graph, pictures=pictures)
        self._inputs = Inputs(self._types, lengths, agree, self._graph.pictures)
        self._evaluation = Evaluation(
            model, self._graph, self.plan, machines, self._job, self._inputs
        )
        self._first_step = FirstStep(model, self._graph, self.plan, machines, self._inputs, Trainer)
        self._run: Any = None
        self._saver: Any = None
        self._order: list[int] | None = None  # the ranks of the plan's devices, if not in order
        self._recovery = self._recovery_of()
        if self._recovery is not None and job.joins_later():
            return self._begin()
        self._program = self._program_of(self.plan)
        options = self._run_options(self.plan, self._program, self._job)
        self._run = self._new_run(self._program, options)
        self._saver = checkpoint.Saver(self._run, self._program, self._job)
        if self._recovery is None:
            weakref.finalize(self, self._saver.leave)
        measured = "" if profile is None else read_text(profile)
        if profile is not None:
            self._drift = _runtime.Drift(self._run, machines, measured, str(profile))
            first = self._job is None or self._job.rank == 0
            weakref.finalize(self, report_drift, self._drift, first)
        if self._job is not None and self._recovery is None:
            self._end = weakref.finalize(
                self,
                stragglers.report,
                self._job,
                options["membership"]["epoch"],
                comparable(self.plan.devices, machines, measured),
                self._took,
                functools.partial(
                    expected_nanoseconds,
                    self._graph.core,
                    self.plan.core,
                    machines,
                    measured,
                    self.optimizer.core(self._graph.core),
                ),
            )
            ends.know_as(self.plan.devices[self._job.rank])
            exchange.introduce()
            ends.watch(self)
        with self._together("Trainer()"):
            self._start(lambda: tensors_of(model))
        self._begin()

    # --- what it is made of; of an elastic run, in every epoch ---

    @property
    def _trainers(self) -> dict[str, Trainer]:
        """The trainers that are recovered together, by objective."""
        return {"": self}

    @property
    def _state(self) -> SharedState | None:
        """With other trainers."""
        return None

    def _recovery_of(self) -> Recovery | None:
        """Returns what lets this trainer go on when processes are lost, in an elastic run."""
        if self._job is None or not self._job.elastic:
            return None
        ends.watch(self)
        return Recovery(self, self._job)

    def _begin(self) -> None:
        """The run stands; or this process takes the place of a lost one, and gets it now."""
        if self._recovery is not None:
            self._recovery.begin()

    def _program_of(self, plan: Plan) -> _core.Program:
        elastic = self._recovery is not None  # the sum of the norm is the commit of a step
        rule, kept = self.optimizer.core(self._graph.core, elastic), self._options["keep_gradients"]
        return _core.Program(self._graph.core, plan.core, self._machines, rule, kept, elastic)

    def _run_options(
        self, plan: Plan, program: _core.Program, this: job.Job | None
    ) -> dict[str, Any]:
        return self._options | devices.options(plan, program, self._machines, this)

    def _make_run(self, plan: Plan, program: _core.Program, this: job.Job | None) -> Any:
        """Returns the run of this process, which has no values yet."""
        return self._new_run(program, self._run_options(plan, program, this))

    def _new_run(self, program: _core.Program, options: dict[str, Any]) -> Any:
        with connections.guarded():  # the one to the store
            return _runtime.Run(program, self._machines, options)

    def _watched_run(self) -> Any:
        """Returns the run that tells other processes what this one calls."""
        return self._run

    def _wanted(
        self, runs: Mapping[str, Any], path: str, manifest: Any, parameters_only: bool = False
    ) -> list[Wanted]:
        """Returns what runs, None without a device of the plan, find in a checkpoint."""
        if not parameters_only:
            checkpoint.require_kind(path, manifest, self.optimizer.description()["kind"])
        return [(run, manifest, "") for run in runs.values() if run is not None]

    def _seeds(self, manifest: Any) -> list[int]:
        return [int(manifest.seed)]

    # --- training ---

    def step(self, batch: Any) -> Metrics:
        """Trains on one batch: what a `Loader` yields, the global batch, or only this device's rows
        (`BatchSampler`).

        Accepts what the model is called with: a dict by argument name, a tuple or list, a tensor.
        A batch of fewer rows than the plan is for, such as the last one of an epoch, is a step too;
        of such a one a process needs all rows, or a `Loader`'s batch, as in an elastic run.
        `Metrics.outputs` has the scalars that the model returns beside the loss, and the rows that
        `capture(..., outputs=...)` names.
        """
        self._first_step.check(batch, self.is_first)
        if self._recovery is not None:
            metrics = self._recovery.step(self, batch)
        else:
            done = self._run.steps
            try:
                metrics = self._step(self._tensors(batch))
            finally:  # Ctrl-C may be raised behind a step
                self.steps += self._run.steps - done
        if self._saver is not None:
            self._saver.poll()
        return metrics

    def evaluate(self, data: Any) -> dict[str, float]:
        """Returns the mean loss, and of every scalar beside it in what the model returns (a dict
        with "loss" and "accuracy") the mean, over one batch or over all that a loader yields.

        The model is in eval mode, without dropout, and nothing of it changes. It is computed where
        the plan has its weights and rows. Batches have any number of rows: one of more than the
        plan's is computed as more micro-batches. A mean over several counts each by its rows. In a
        job all processes call this, in an elastic run with batches of all rows or those of a
        `Loader`.
        """
        batches = [data] if is_batch(data, self._inputs.names) else data
        if self._recovery is not None:
            return self._recovery.evaluations.evaluate(self, batches)
        return self._evaluation.means(self._run, batches, self.steps, self._together)

    def fit(
        self,
        loader: Any,
        epochs: int = 1,
        *,
        steps: int | None = None,
        evaluate: Any = None,
        evaluate_every: int = 0,
        save_every: int = 0,
        output: str | os.PathLike[str] | None = None,
        keep: int = 3,
        resume: bool = True,
        callbacks: Sequence[Callback] = (),
    ) -> Fitted:
        """Trains on all batches of a loader, `epochs` times; with `steps` so many steps in all.
        Those that were made before count.

        `evaluate` is a batch or a loader for `evaluate`, or what all processes call for values by
        name, every `evaluate_every` steps and in the end. `output` is a folder for checkpoints,
        every `save_every` steps and in the end, of which the newest `keep` stay, and for
        metrics.jsonl. If there is a checkpoint in it, training goes on from there; `resume=False`
        refuses that. Ctrl-C, SIGTERM and SIGHUP end it after the step at hand, in all processes,
        with a checkpoint; a second one at once. In a job all processes call this, and one tells the
        callbacks.
        """
        from medley.fit import Settings, fit

        return fit(
            self,
            loader,
            Settings(
                epochs=epochs,
                steps=steps,
                evaluate=evaluate,
                evaluate_every=evaluate_every,
                save_every=save_every,
                output=None if output is None else Path(output),
                keep=keep,
                resume=resume,
                callbacks=callbacks,
            ),
        )

    def predict(self, batch: Any) -> dict[str, Any]:
        """Returns what the model gives for one batch in eval mode: "loss", the scalars beside it,
        and the rows that `capture(..., outputs=...)` names, in all processes.

        Takes the batches of `evaluate`. In an elastic run a process that joins later is given what
        was predicted before, but of rows only the newest 64 MiB.
        """
        if self._recovery is not None:
            return self._recovery.evaluations.predict(self, batch)
        return self._evaluation.outputs(self._run, batch, self.steps, self._together)

    def _step(self, batch: StepBatch) -> Metrics:
        self._reset()
        size = self._sizes_now().number(batch)
        scalars = self.optimizer.scalars(self.steps)
        with self._took.running():
            result = self._run.step(batch.tensors, scalars, self.steps, size)
        if size == 0:  # as the plan expects
            if self._drift is not None:
                self._drift.add(self._run)
            self._took.add(result.nanoseconds[0] - result.waiting[0])
        return self._metrics(Given.of(result, self._rows), result, batch.size)

    def _metrics(self, given: Given, result: Any, size: Size | None = None) -> Metrics:
        """Returns those of the step that is made now; `result`: of this process, if it has one."""
        seconds, shares = seconds_of(result), waiting_of(result)
        tokens = self._inputs.tokens(size or self._inputs.planned(self.plan.global_batch))
        return Metrics(
            step=self.steps,
            loss=given.loss,
            grad_norm=given.grad_norm,
            learning_rate=self.optimizer.learning_rate(self.steps),
            step_seconds=seconds,
            tokens_per_second=tokens / max(seconds, 1e-12),
            waiting=sum(shares.values()) / max(1, len(shares)),
            devices=shares,
            outputs=Outputs(given.outputs, self._rows) if result is None else given.outputs,
        )

    def _tensors(self, batch: Any) -> StepBatch:
        whole = self._recovery is not None
        own = self._job is not None and not whole
        carried.require_without(batch, self._graph.carry)
        return self._inputs.read(batch, self.plan.global_batch, self._sizes_now(), own, whole)

    def _sizes_now(self) -> Sizes:
        if self._sizes is None or self._sizes.run is not self._run:  # of an earlier epoch
            rank = None if self._job is None else self._job.rank
            planned = self._inputs.planned(self.plan.global_batch)
            # A trainer ends, with what it saves, when its user lets go of it: nothing of it has it.
            itself = weakref.proxy(self)
            self._sizes = Sizes(
                self._run,
                self._program,
                planned,
                rank,
                lambda length, example: itself._at_length(length, example),
            )
        return self._sizes

    def _at_length(self, length: int, example: Any) -> _core.Program:
        """Returns the program for sequences of this length, as a model that is captured with them
        has it."""
        example = carried.with_zeros(example, self._graph, self._inputs)
        graph = capture_alike(self._model, example, self._graph, length)
        rule = self.optimizer.core(graph.core, self._recovery is not None)
        try:
            return self._program.alike(
                self._graph.core,
                graph.core,
                self.plan.core,
                self._machines,
                rule,
                self._options["keep_gradients"],
                self._recovery is not None,
            )
        except ValueError as error:
            raise ValueError(f"batch of length {length}: {error}") from None

    # --- other processes ---

    def fail(self, cause: str) -> str:
        """Ends the run on all devices; returns its first cause, which may be another's."""
        self._took.failed = True
        return str(self._run.fail(cause)) if self._run is not None else cause

    def finish(self) -> None:
        """Tells the other devices that this one has nothing more to do; the first one says which
        of them were slower than the plan expects. What is being saved is completed first."""
        if self._recovery is not None:
            self._recovery.finish()
        else:
            if self._saver is not None:
                self._saver.wait()
            if self._job is not None:
                self._end()
        self._evaluation.finish()
        if self._run is not None:
            self._run.finish()

    @contextlib.contextmanager
    def _together(self, call: str) -> Iterator[None]:
        """Around what all processes of a job have to call: each hears from the others what they
        are in, and a call that only some make ends the run."""
        with exchange.reordered(self._order), exchange.together(self._watched_run(), call):
            yield

    def together(self, make: Callable[[], Made]) -> Made:
        """Does what all processes of a job do at the same place; in an elastic run again, if one
        of them is lost meanwhile."""
        return make() if self._recovery is None else self._recovery.together(make)

    def _once(self, make: Callable[[], Made]) -> Made:
        """The same once in a run: who takes the place of a lost process is told what it gave."""
        return make() if self._recovery is None else self._recovery.acts.once(Kind.SAVE, make)

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
        """Writes a checkpoint `folder`/step-<steps>: parameters, buffers, the optimizer's state and
        where training is, which `load` reads under any plan.

        The newest `keep` stay, and those whose step is a multiple of `keep_every`. `data` says
        where the rows of the next step are. Without `wait` it is written while training goes on,
        over `spread` seconds if these are more than it needs: a full disk is then said on stderr,
        and ends nothing. In a job all processes call this, and each writes what its device holds.
        """
        saving = Saving(keep, keep_every, spread)
        error = self._once(lambda: self._save(os.fspath(folder), saving, wait, data))
        if wait and error:
            raise OSError(error)

    def _save(
        self,
        folder: str,
        saving: Saving,
        wait: bool,
        data: Cursor | tuple[int, int, int] | None,
    ) -> str:
        """Returns why there is no checkpoint, "" if there is or will be one."""
        if self._run is None:  # the plan does not use this device
            return ""
        state = {
            "step": self.steps,
            "global_batch": self.plan.global_batch,
            "seed": self._run.seed,
            "data": data,
            "optimizer": self.optimizer.description(),
            "schedule": schedule_text(self.optimizer.lr),
            "graph": self._graph.hash(),
            "plan": checkpoint.text_hash(self.plan.text),
            "cluster": self.plan.core.cluster_hash,
            "versions": checkpoint.versions(),
        }
        self._reset()
        with self._together("save()"):
            error: str = self._saver.begin(folder, state, saving, not wait)
            return error or (self._saver.wait() if wait else "")

    def load(
        self,
        folder: str | os.PathLike[str],
        *,
        exact: bool = False,
        parameters_only: bool = False,
    ) -> Checkpoint:
        """Takes everything from what `save` wrote under any plan: the newest checkpoint in a folder
        that is whole, or the folder itself if it is one. Training goes on from there.

        `exact` refuses a newest one that is damaged rather than take an older one;
        `parameters_only` leaves the optimizer and the steps out, which start anew. In a job all
        processes call this, and each reads what its device needs.
        """
        found = self._load(os.fspath(folder), exact, parameters_only)
        if found is None:
            raise ValueError(f"{folder}: found no checkpoint, expected one")
        return found

    def resume(self, folder: str | os.PathLike[str]) -> Checkpoint | None:
        """Goes on from the newest checkpoint in a folder; None, and nothing, if there is none."""
        return self._load(os.fspath(folder), False, False)

    def catch_up(self) -> Metrics | None:
        """Goes on where the others are, in a process that takes the place of a lost one: `step`
        then returns the metrics of the last step that was made, behind which they may be still, and
        this those of the one before. Elsewhere nothing."""
        return None if self._recovery is None else self._recovery.catch_up(before=1)

    def _load(self, folder: str, exact: bool, parameters_only: bool) -> Checkpoint | None:
        def read() -> list[Any] | None:
            with self._together("load()"):
                self._saver.wait()
                only = {"exact": exact, "parameters_only": parameters_only}
                runs = {"": self._run}
                result = checkpoint.load(
                    lambda path, manifest: self._wanted(runs, path, manifest, parameters_only),
                    self._job,
                    folder,
                    self.steps,
                    **only,
                )
            if result is None:
                return None
            found, manifest = result
            if not parameters_only:
                self._run.seed = manifest.seed
            return [found.path, found.step, found.global_batch, found.data]

        told = read() if self._recovery is None else self._recovery.acts.once(Kind.LOAD, read)
        if told is None:
            return None
        path, step, rows, data = told
        found = Checkpoint(path, step, rows, None if data is None else Cursor(*data))
        self.steps = 0 if parameters_only else found.step
        self._resets.clear()
        if self._recovery is not None:
            self._recovery.begin_at([self.steps], found.path)
        return found

    # --- files ---

    def save_model(self, folder: str | os.PathLike[str]) -> None:
        """Writes parameters and buffers as safetensors, tied ones once.

        `safetensors.torch.load_model(model, "<folder>/model.safetensors")` reads them into a model
        of the same class, without Medley; for a model of the transformers package so does
        `from_pretrained`. The file is complete or not there. In a job all processes call this and
        the first one writes.
        """
        self._write_whole(
            "save_model()",
            "writes the model",
            None,
            lambda tensors: write_model(
                Path(folder), whole_tensors.persistent(tensors, self._model), self._model
            ),
        )

    def save_adapter(self, folder: str | os.PathLike[str]) -> None:
        """Writes the active adapter of a model of the package peft, as `adapter_model.safetensors`
        and `adapter_config.json`, which `peft.PeftModel.from_pretrained(base, folder)` reads. In a
        job all processes call this and the first one writes."""
        check_adapted(self._model)
        self._write_whole(
            "save_adapter()",
            "writes the adapter",
            trained_names(self._model),
            lambda tensors: write_adapter(Path(folder), self._model, tensors),
        )

    def _write_whole(
        self,
        what: str,
        doing: str,
        among: Collection[str] | None,
        write: Callable[[dict[str, Tensor]], None],
    ) -> None:
        """Lets the first process write parameters, all or those `among` the names, and buffers."""

        def save() -> None:
            if self._run is None:  # the plan does not use this device
                return
            with self._together(what):
                tensors = self._read_kind("parameter", among) | self._read_kind("buffer")
                own = {n: t for n, t in tensors.items() if not n.startswith((CONSTANT, CARRIED))}

                def first() -> bytes:
                    write(own)
                    return b""

                first() if self._job is None else exchange.from_first(first, doing)

        self._once(save)

    def load_model(self, folder: str | os.PathLike[str]) -> None:
        """Takes parameters and buffers from what `save_model` or transformers' `save_pretrained`
        wrote, in one file or in several with an index; the optimizer and the steps start anew. They
        have the names of the model's state dict, tied ones at least once, and no other. In a job
        all processes call this and the first one reads."""

        def load() -> int:
            self._load_model(folder)
            return 0

        self._go_on_after(load)

    def _load_model(self, folder: str | os.PathLike[str]) -> None:
        with self._together("load_model()"):
            self._start(lambda: tensors_of(self._model) | read_model(Path(folder), self._model))
        self._resets.clear()

    def _go_on_after(self, read: Callable[[], int]) -> None:
        """Takes what no checkpoint of this run has; `read` does, and returns after how many steps
        training goes on."""
        if self._recovery is None:
            self.steps = read()
        else:
            self.steps = sum(self._recovery.go_on_after(lambda: [read()]))
