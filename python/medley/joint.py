"""Several losses of one model, each with its own graph, plan and optimizer, over one state."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from medley.cluster import Cluster
from medley.graph import Graph
from medley.lengths import Lengths
from medley.metrics import Metrics
from medley.optimizer import Optimizer
from medley.plan import Plan
from medley.shared_state import SharedState
from medley.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Objective:
    """A loss of a model: its graph, from `medley.capture(model, batch, method=..., train=...)`, the
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
    have the seed `seed` + n, counted from 0.
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
        if not objectives:
            raise ValueError("JointTrainer: found no objectives, expected at least one")
        self._model = model
        self._trainers = {
            name: Trainer(
                model,
                objective.graph,
                objective.plan,
                objective.optimizer,
                seed=seed + number,
                local=local,
                cluster=cluster,
                keep_gradients=keep_gradients,
                lengths=objective.lengths,
            )
            for number, (name, objective) in enumerate(objectives.items())
        }
        self._state = SharedState(self._trainers)

    # --- training ---

    @property
    def steps(self) -> dict[str, int]:
        """The steps done, by objective."""
        return {name: trainer.steps for name, trainer in self._trainers.items()}

    def step(self, objective: str, batch: Any) -> Metrics:
        """Trains one objective on one batch, as `Trainer.step` does. In a job all processes call it
        for the same objectives in the same order."""
        trainer = self._trainer(objective)
        self._state.prepare_step(objective)
        return trainer.step(batch)

    def evaluate(self, objective: str, data: Any) -> dict[str, float]:
        """Returns the mean loss of an objective and its metrics, as `Trainer.evaluate` does."""
        trainer = self._trainer(objective)
        self._state.bring(objective)
        return trainer.evaluate(data)

    def finish(self) -> None:
        """Tells the other devices that this one has nothing more to do."""
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
        return self._trainer(objective).gradients()

    def averages(self, objective: str) -> dict[str, Tensor]:
        """Returns the averages of parameters that the optimizer of an objective keeps."""
        return self._trainer(objective).averages()

    def _read(self, kind: str) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, trainer in self._trainers.items():
            own = [each for k, each in self._state.owned(name) if k == kind]
            found |= trainer._read_kind(kind, own)
        return found

    def _trainer(self, objective: str) -> Trainer:
        if objective not in self._trainers:
            raise ValueError(
                f"objective: found {objective!r}, expected one of {', '.join(self._trainers)}"
            )
        return self._trainers[objective]
