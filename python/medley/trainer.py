"""The trainer: a model, its graph and a plan at work."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from medley import _core, whole_tensors
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
from medley.run import exchange
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
    """Trains `model` as `plan` says: on threads of this process, or as one process of a job.

    The parameters are taken from `model` when the trainer is made (in a job: from that of the first
    process); `model` itself is not changed. `local=True` runs all devices as threads of this
    process also within a job. `profile` is the file that the plan was made with: how far the times
    of ops have drifted from it is said when the trainer ends. Batches may have shorter sequences
    than the planned ones; `lengths` says more of them.
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
    ) -> None:
        this = None if local else exchange.join()
        self.engine = Engine(
            model,
            graph,
            plan,
            optimizer,
            this,
            seed=seed,
            cluster=cluster,
            keep_gradients=keep_gradients,
            trace=trace,
            profile=profile,
            lengths=lengths,
        )
        self.first_step = FirstStep(self.engine, Trainer)
        self.session = session_of(Whole({"": self.engine}), this)

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
        self.first_step.check(batch, self.engine.is_first)
        return self.session.step(self.engine, batch)

    def evaluate(self, data: Any) -> dict[str, float]:
        """Returns the mean loss, and of every scalar beside it in what the model returns (a dict
        with "loss" and "accuracy") the mean, over one batch or over all that a loader yields.

        The model is in eval mode, without dropout, and nothing of it changes. It is computed where
        the plan has its weights and rows. Batches have any number of rows: one of more than the
        plan's is computed as more micro-batches. A mean over several counts each by its rows. In a
        job all processes call this, in an elastic run with batches of all rows or those of a
        `Loader`.
        """
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
        return self.session.predict(self.engine, batch)

    # --- other processes ---

    def together(self, make: Callable[[], Made]) -> Made:
        """Does what all processes of a job do at the same place; in an elastic run again, if one
        of them is lost meanwhile."""
        return self.session.together(make)

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
                Path(folder),
                whole_tensors.persistent(tensors, self.engine.model),
                self.engine.model,
            ),
        )

    def save_adapter(self, folder: str | os.PathLike[str]) -> None:
        """Writes the active adapter of a model of the package peft, as `adapter_model.safetensors`
        and `adapter_config.json`, which `peft.PeftModel.from_pretrained(base, folder)` reads. In a
        job all processes call this and the first one writes."""
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
        """Lets the first process write parameters, all or those `among` the names, and buffers."""

        engine = self.engine

        def save() -> None:
            if engine.run is None:  # the plan does not use this device
                return
            with engine.together(what):
                tensors = engine.read_kind("parameter", among) | engine.read_kind("buffer")
                own = {n: t for n, t in tensors.items() if not n.startswith((CONSTANT, CARRIED))}
                engine.in_first(lambda: write(own), doing)

        self.session.once(Kind.SAVE, save)
