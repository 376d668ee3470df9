"""The trainer: runs a model as its plan specifies."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from medley import _core, extras, whole_tensors
from medley.adapters import check_adapted, trained_names, write_adapter
from medley.cluster import Cluster
from medley.engine import Engine, OfEngine
from medley.evaluation import is_batch
from medley.first_step import FirstStep
from medley.graph import Graph
from medley.lengths import Lengths
from medley.metrics import Metrics
from medley.model_files import write_model
from medley.optimizer import Optimizer
from medley.plan import Plan
from medley.run import exchange, job
from medley.run.change import PlanError
from medley.run.journal import Kind
from medley.run.sessions import session_of
from medley.trainer_records import Records
from medley.trainer_session import OfSession
from medley.trainer_tensors import WholeTensors
from medley.whole import Whole
from medley.whole_tensors import CARRIED, CONSTANT

if TYPE_CHECKING:
    from medley.callbacks import Callback
    from medley.fit import Fitted

Made = TypeVar("Made")


class Trainer(OfSession, WholeTensors, Records):
    """Trains `model` as `plan` specifies, on threads of this process or as one process of a job.

    Initial parameters are copies of those of `model`; in a job, of the first process. `model`
    itself does not change. `local=True` runs all devices as threads of this process, also within a
    job. `profile` is the file that the plan was made with; at the end the drift of op times from it
    is printed. Batches may have shorter sequences than planned: see `lengths`. At `metrics_port`
    the first process serves metrics as OpenMetrics text, at the address `metrics_host`. `tune` is
    the number of steps that trying other plans may cost, "auto" or "off"; by default that of
    `medley launch --tune`, else "auto". With `remember` the result is kept for later runs. In a job
    all processes call a *collective* method.

    Example:
        trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=3e-4))
        for batch in loader:
            print(trainer.step(batch).loss)
    """

    plan = OfEngine[Plan]()
    optimizer = OfEngine[Optimizer]()
    steps = OfEngine[int]()

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
        metrics_port: int | None = None,
        metrics_host: str = "127.0.0.1",
        tune: int | str | None = None,
        remember: bool = True,
    ) -> None:
        this = None if local else exchange.join()
        most = job.tune_steps(tune)
        where = job.metrics_address() if metrics_port is None else (metrics_host, metrics_port)
        self.engine = Engine(
            model,
            graph,
            plan,
            optimizer,
            this,
            seed=seed,
            cluster=cluster,
            keep_gradients=keep_gradients,
            trace=trace or where is not None or most != 0,
            profile=profile,
            lengths=lengths,
        )
        self.first_step = FirstStep(self.engine, Trainer)
        self.session = session_of(Whole({"": self.engine}), this)
        self.expected_steps: int | None = None  # set by fit
        self.observers = [] if where is None else [extras.exporter(self, *where)]
        self._tuner = extras.tuner(self, most, remember) if most != 0 else None
        if self._tuner is not None:
            self.observers.append(self._tuner)

    # --- training ---

    def step(self, batch: Any) -> Metrics:
        """Trains on one batch: from a `Loader`, the global batch, or only this device's rows
        (`BatchSampler`).

        `batch` is a dict by argument name, a tuple, a list or a tensor, as the model takes it. It
        may have fewer rows than planned, such as the last batch of an epoch. Each process then
        needs all rows or a `Loader`'s batch, as in an elastic run. `Metrics.outputs` has the other
        scalars of the model and the rows named by `capture(..., outputs=...)`.
        """
        self.first_step.check(batch, self.engine.is_first)
        if self._tuner is not None:
            self._tuner.prepare(self, batch)
        try:
            metrics = self.session.step(self.engine, batch)
        except PlanError as error:
            if self._tuner is None or not self._tuner.takes(error):
                raise
            metrics = self.session.step(self.engine, batch)  # under the plan before
        for observer in self.observers:
            observer.step(self, metrics)
        return metrics

    def evaluate(self, data: Any) -> dict[str, float]:
        """Returns the mean loss and the mean of every other scalar of the model, such as
        "accuracy". `data` is one batch or a loader; means are weighted by rows. The model is in
        eval mode and does not change. It runs on the devices of the plan. Batches may have any
        number of rows: larger ones run as more micro-batches. Collective; in an elastic run
        with all rows or with the batches of a `Loader`."""
        batches = [data] if is_batch(data, self.engine.inputs.names) else data
        return self.session.evaluate(self.engine, batches)

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
        """Trains on all batches of a loader for `epochs` epochs, or for `steps` steps in all. Steps
        before a resume count.

        Every `evaluate_every` steps and at the end, `evaluate` is evaluated: a batch, a loader, or
        a function that returns values by name and is called in all processes. The folder `output`
        receives metrics.jsonl, and a checkpoint every `save_every` steps and at the end. The newest
        `keep` remain. If it has a checkpoint, training resumes from it; with `resume=False` that is
        an error.

        Ctrl-C, SIGTERM and SIGHUP end training in all processes after the current step, with a
        checkpoint. A second signal ends it immediately. Collective: the first process runs the
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
        """Returns the outputs of the model for one batch in eval mode, in all processes: "loss",
        the other scalars, and the rows named by `capture(..., outputs=...)`. Takes the batches of
        `evaluate`. In an elastic run a process that joins later receives the earlier predictions,
        but only the newest 64 MiB of rows."""
        return self.session.predict(self.engine, batch)

    def change_plan(self, plan: Plan | str | os.PathLike[str]) -> int:
        """Continues under another plan of the same rows and devices, with the same state and curve.
        Returns the received bytes of state. If a device lacks memory, all processes keep the plan
        and raise OSError. Collective. An elastic run changes within a few steps, and returns 0."""
        chosen = plan if isinstance(plan, Plan) else Plan.load(plan)
        rows = self.engine.plan.global_batch
        if chosen.global_batch != rows:
            raise ValueError(
                f"change_plan: global_batch: found {chosen.global_batch}, expected {rows}"
            )
        return self.session.change_plan(chosen)

    # --- other processes ---

    def together(self, make: Callable[[], Made]) -> Made:
        """Runs `make` in all processes of a job at the same place. In an elastic run it is repeated
        if a process is lost meanwhile."""
        return self.session.together(make)

    # --- files ---

    def save_model(self, folder: str | os.PathLike[str]) -> None:
        """Writes parameters and buffers as safetensors, tied ones once.
        `safetensors.torch.load_model(model, "<folder>/model.safetensors")` reads them into a model
        of the same class without Medley, as does `from_pretrained` for a model of transformers. The
        file is written atomically. Collective: the first process writes."""
        self._write_whole(
            "save_model()",
            "writes the model",
            None,
            lambda tensors: write_model(
                Path(folder),
                whole_tensors.persistent(tensors, self.engine.model),
                self.engine.model,
            ),
        )

    def save_adapter(self, folder: str | os.PathLike[str]) -> None:
        """Writes the active peft adapter as `adapter_model.safetensors` and `adapter_config.json`.
        `peft.PeftModel.from_pretrained(base, folder)` reads them. Collective: the
        first process writes."""
        check_adapted(self.engine.model)
        self._write_whole(
            "save_adapter()",
            "writes the adapter",
            trained_names(self.engine.model),
            lambda tensors: write_adapter(Path(folder), self.engine.model, tensors),
        )

    def _write_whole(
        self,
        what: str,
        doing: str,
        among: Collection[str] | None,
        write: Callable[[dict[str, Tensor]], None],
    ) -> None:
        """Writes buffers and parameters, all or those in `among`, in the first process."""

        engine = self.engine

        def save() -> None:
            if engine.run is None:  # the plan does not use this device
                return
            with engine.together(what):
                tensors = engine.read_kind("parameter", among) | engine.read_kind("buffer")
                own = {n: t for n, t in tensors.items() if not n.startswith((CONSTANT, CARRIED))}
                engine.in_first(lambda: write(own), doing)

        self.session.once(Kind.SAVE, save)
