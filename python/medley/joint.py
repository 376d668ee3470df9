"""Several losses of one model, each with its own graph, plan and optimizer, over one state."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from medley import whole_tensors
from medley.cluster import Cluster
from medley.engine import Engine
from medley.evaluation import is_batch
from medley.first_step import FirstStep
from medley.graph import Graph, as_graph
from medley.joint_state import JointJob, JointWhole
from medley.lengths import Lengths
from medley.metrics import Metrics
from medley.model_files import write_model
from medley.optimizer import Optimizer
from medley.plan import Plan
from medley.run import exchange
from medley.run.journal import Kind
from medley.run.sessions import Session, session_of
from medley.trainer import Trainer
from medley.trainer_session import OfSession
from medley.trainer_tensors import WholeTensors
from medley.whole_tensors import CARRIED


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss of a model with its graph, its plan, and the optimizer of the parameters that it
    trains.

    Example:
        graph = medley.capture(model, batch, loss="critic_loss", train="critic.*")
        plan = medley.plan(graph, "cluster.yaml", global_batch=64)
        critic = medley.Objective(graph, plan, medley.Adam(lr=1e-4))
    """

    graph: Graph
    plan: Plan | str | os.PathLike[str]
    optimizer: Optimizer | None = None
    lengths: Lengths | None = None


class JointTrainer(OfSession):
    """Trains `model` on several objectives in any order: a generator and a discriminator, or a
    student and a teacher.

    Parameters and buffers are shared. Each objective has its own plan, learning rate, optimizer
    moments and step count. Before a step it receives the values that others have changed, resharded
    as its plan requires. A device copies only changed parts. The other arguments are those of
    `Trainer`. The n-th objective, counted from 0, draws random values from the seed `seed` + n. In
    a job the plans of all objectives use the same devices, in any order, and all processes make the
    same calls.

    Example:
        trainer = medley.JointTrainer(model, {"generator": first, "critic": second})
        trainer.step("critic", batch)
        trainer.step("generator", batch)
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
        plans = {
            name: each.plan if isinstance(each.plan, Plan) else Plan.load(each.plan)
            for name, each in objectives.items()
        }
        devices = JointJob(None if local else exchange.join(), plans)
        self.engines: dict[str, Engine] = {}
        is_elastic = devices.this is not None and devices.this.elastic
        for number, (name, objective) in enumerate(objectives.items()):
            with exchange.reordered(devices.orders.get(name)):
                engine = self.engines[name] = Engine(
                    model,
                    objective.graph,
                    plans[name],
                    objective.optimizer,
                    None if local else exchange.join(),
                    seed=seed + number,
                    cluster=cluster,
                    keep_gradients=keep_gradients,
                    lengths=objective.lengths,
                    lead=self._first if is_elastic and number else None,
                )
            engine.name, engine.order = name, devices.orders.get(name)
        self._whole = JointWhole(self.engines, devices)
        self.session = session_of(self._whole, devices.this)
        self._parts = {name: _Part(each, self.session) for name, each in self.engines.items()}

    # --- training ---

    @property
    def steps(self) -> dict[str, int]:
        """The steps done, by objective."""
        return {name: engine.steps for name, engine in self.engines.items()}

    def step(self, objective: str, batch: Any) -> Metrics:
        """Trains one objective on one batch, as `Trainer.step` does."""
        part = self._of(objective)
        part.first_step.check(batch, part.engine.is_first)
        return self.session.step(part.engine, batch)

    def evaluate(self, objective: str, data: Any) -> dict[str, float]:
        """Returns the mean loss of an objective and its metrics, as `Trainer.evaluate` does."""
        engine = self._of(objective).engine
        batches = [data] if is_batch(data, engine.inputs.names) else data
        return self.session.evaluate(engine, batches)

    def predict(self, objective: str, batch: Any) -> dict[str, Any]:
        """Returns the outputs of the model for one batch of an objective, as `Trainer.predict`
        does."""
        return self.session.predict(self._of(objective).engine, batch)

    def reset_carried(self, objective: str, values: Mapping[str, Tensor] | None = None) -> None:
        """Sets the carried values of the next step of an objective, as `Trainer.reset_carried`
        does."""
        self._of(objective).reset_carried(values)

    # --- whole tensors ---

    def parameters(self) -> dict[str, Tensor]:
        """Returns copies of all parameters used by objectives, tied ones once."""
        return self.session.together(lambda: self._whole.tensors("parameter"))

    def buffers(self) -> dict[str, Tensor]:
        """Returns copies of the buffers used by objectives."""
        found = self.session.together(lambda: self._whole.tensors("buffer"))
        return {name: value for name, value in found.items() if not name.startswith(CARRIED)}

    def gradients(self, objective: str) -> dict[str, Tensor]:
        """Returns the gradients of the last step of an objective by name, before clipping."""
        return self._of(objective).gradients()

    def averages(self, objective: str) -> dict[str, Tensor]:
        """Returns the averages of parameters that the optimizer of an objective maintains."""
        return self._of(objective).averages()

    # --- files ---

    def save_model(self, folder: str | os.PathLike[str]) -> None:
        """Writes parameters and buffers as `Trainer.save_model` does."""

        first = self._first

        def save() -> None:
            tensors = self._whole.tensors("parameter") | self._whole.tensors("buffer")
            found = whole_tensors.persistent(tensors, first.model)
            if first.run is not None:  # the plans use this device
                with first.together("save_model()"):
                    first.in_first(
                        lambda: write_model(Path(folder), found, first.model), "writes the model"
                    )

        self.session.once(Kind.SAVE, save)

    # --- implementation ---

    def _of(self, objective: str) -> _Part:
        if objective not in self._parts:
            raise ValueError(
                f"objective: found {objective!r}, expected one of {', '.join(self._parts)}"
            )
        return self._parts[objective]

    @property
    def _first(self) -> Engine:
        return next(iter(self.engines.values()))


class _Part(WholeTensors):
    """The tensors of one objective of a trainer."""

    def __init__(self, engine: Engine, session: Session) -> None:
        self.engine, self.session = engine, session
        self.first_step = FirstStep(engine, Trainer)


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
