"""Several losses of one model, each with its own graph, plan and optimizer, over one state."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from medley import _core, checkpoint, whole_tensors
from medley.checkpoint import Checkpoint, Part, Saving, Wanted
from medley.cluster import Cluster
from medley.cursor import Cursor
from medley.graph import Graph
from medley.joint_job import JointJob
from medley.lengths import Lengths
from medley.metrics import Metrics
from medley.model_files import write_model
from medley.optimizer import Optimizer
from medley.plan import Plan
from medley.run import exchange
from medley.schedules import schedule_text
from medley.shared_state import SharedState
from medley.trainer import Trainer

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
        self._model = model
        plans = {
            name: each.plan if isinstance(each.plan, Plan) else Plan.load(each.plan)
            for name, each in objectives.items()
        }
        self._job = JointJob(None if local else exchange.join(), plans)
        self._trainers: dict[str, Trainer] = {}
        for number, (name, objective) in enumerate(objectives.items()):
            with self._job.of(name):
                self._trainers[name] = Trainer(
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
        first = self._first = next(iter(self._trainers.values()))
        self._state = SharedState(self._trainers, self._job.peers(first._machines))
        self._saver = checkpoint.Saver(first._run, first._program, self._job.this)
        weakref.finalize(self, self._saver.leave)

    # --- training ---

    @property
    def steps(self) -> dict[str, int]:
        """The steps done, by objective."""
        return {name: trainer.steps for name, trainer in self._trainers.items()}

    def step(self, objective: str, batch: Any) -> Metrics:
        """Trains one objective on one batch, as `Trainer.step` does. In a job all processes call it
        for the same objectives in the same order."""
        with self._of(objective) as trainer:
            self._state.prepare_step(objective)
            metrics = trainer.step(batch)
        self._saver.poll()
        return metrics

    def evaluate(self, objective: str, data: Any) -> dict[str, float]:
        """Returns the mean loss of an objective and its metrics, as `Trainer.evaluate` does."""
        with self._of(objective) as trainer:
            self._state.bring(objective)
            trainer._evaluation.fill = functools.partial(self._fill, objective)
            return trainer.evaluate(data)

    def finish(self) -> None:
        """Tells the other devices that this one has nothing more to do; completes what is being
        saved first."""
        self._saver.wait()
        for trainer in self._trainers.values():
            trainer.finish()

    # --- whole tensors ---

    def parameters(self) -> dict[str, Tensor]:
        """Returns copies of all parameters that an objective has, tied ones once. In a job all
        processes call it."""
        return self._read("parameter")

    def buffers(self) -> dict[str, Tensor]:
        """Returns copies of the buffers that an objective uses. In a job all processes call it."""
        return self._read("buffer")

    def gradients(self, objective: str) -> dict[str, Tensor]:
        """Returns the gradients of the last step of an objective by name, before clipping."""
        with self._of(objective) as trainer:
            return trainer.gradients()

    def averages(self, objective: str) -> dict[str, Tensor]:
        """Returns the averages of parameters that the optimizer of an objective keeps."""
        with self._of(objective) as trainer:
            return trainer.averages()

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
        state, parts = self._description(data), self._parts()
        with self._first._together("save()"):
            error = self._saver.begin(
                os.fspath(folder), state, Saving(keep, keep_every, spread), not wait, parts
            )
            error = error or (self._saver.wait() if wait else "")
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
        tensors = whole_tensors.persistent(self.parameters() | self.buffers(), self._model)

        def first() -> bytes:
            write_model(Path(folder), tensors, self._model)
            return b""

        first() if self._job.this is None else exchange.from_first(first, "writes the model")

    def load_model(self, folder: str | os.PathLike[str]) -> None:
        """Takes parameters and buffers from a file as `Trainer.load_model` does; the optimizers and
        the steps start anew."""
        for name in self._trainers:
            with self._of(name) as trainer:
                trainer.load_model(folder)
        self._state.begin()

    # --- how it does that ---

    @contextlib.contextmanager
    def _of(self, objective: str) -> Iterator[Trainer]:
        """Around what the trainer of an objective does."""
        if objective not in self._trainers:
            raise ValueError(
                f"objective: found {objective!r}, expected one of {', '.join(self._trainers)}"
            )
        with self._job.of(objective):
            yield self._trainers[objective]

    def _fill(self, objective: str, run: Any) -> None:
        """Gives an evaluation the values that only other objectives train."""
        for kind, value in self._trainers[objective]._evaluation.lacking:
            if (giver := self._state.giver(kind, value)) is None:
                continue
            with self._of(giver) as trainer:
                whole = whole_tensors.read_one(
                    trainer._run, trainer._job, trainer._types, kind, value
                )
            run.load(kind, value, whole)

    def _read(self, kind: str) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name in self._trainers:
            own = [each for k, each in self._state.owned(name) if k == kind]
            with self._of(name) as trainer:
                found |= trainer._read_kind(kind, own)
        return found

    def _description(self, data: Cursor | tuple[int, int, int] | None) -> dict[str, Any]:
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
            "cluster": self._first.plan.to_dict().get("cluster_hash", ""),
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
        def wanted(path: str, manifest: _core.Manifest) -> list[Wanted]:
            if not parameters_only:
                self._check(path, manifest)
            return [
                (trainer._run, manifest.part(self._state.shared(name), f"{name}/"), f"{name}/")
                for name, trainer in self._trainers.items()
            ]

        with self._first._together("load()"):
            self._saver.wait()
            result = checkpoint.read_newest(
                wanted,
                self._job.this,
                checkpoint.candidates(self._job.this, folder),
                exact=exact,
                parameters_only=parameters_only,
            )
        if result is None:
            return None
        found, manifest = result
        facts = manifest.optimizer
        for name, trainer in self._trainers.items():
            trainer.steps = 0 if parameters_only else int(facts[f"{name}/step"])
            if not parameters_only:
                trainer._run.seed = int(facts[f"{name}/seed"])
        self._state.begin()
        return found

    def _check(self, path: str, manifest: _core.Manifest) -> None:
        """Raises ValueError for a checkpoint of other objectives, or of more parameters."""
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
        known = {value for name in self._trainers for value in self._state.shared(name)}
        for kind, name, *_ in manifest.values:
            if kind == "parameter" and (kind, name) not in known:
                raise ValueError(f"{path}: {kind} {name!r}: no objective has it")


def _check_names(objectives: Mapping[str, Objective]) -> None:
    if not objectives:
        raise ValueError("JointTrainer: found no objectives, expected at least one")
    for name in objectives:
        if not (isinstance(name, str) and name.replace("_", "a").replace("-", "a").isalnum()):
            raise ValueError(
                f"JointTrainer: found the objective {name!r}, expected a name of letters, digits, "
                "_ and -"
            )


def _hash_of_all(texts: Iterable[str]) -> str:
    return checkpoint.text_hash("\n".join(texts))
