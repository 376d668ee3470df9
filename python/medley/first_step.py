"""Comparison of a trainer's first step with the model in plain PyTorch, on a few rows."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from medley import carried
from medley.capture.batch import map_named
from medley.cluster import Cluster
from medley.data.loader import UnreadBatch
from medley.engine import Engine
from medley.graph import Graph, compare, rows_of
from medley.methods import training
from medley.optimizer import SGD
from medley.plan import Plan

if TYPE_CHECKING:
    from medley.trainer import Trainer

_BY_ITSELF = {"loss_over": "microbatches"}


class FirstStep:
    """Checks the graph if capture could not, and the micro-batches if the plan makes each of them a
    batch of its own."""

    def __init__(self, engine: Engine, trainer: type[Trainer]) -> None:
        """`trainer`: class that runs the step of two micro-batches."""
        self._trainer = trainer
        self._model, self._graph = engine.model, engine.graph
        self._machines, self._inputs = engine.machines, engine.inputs
        self._rows = engine.plan.global_batch
        self._by_itself = engine.plan.loss_over == _BY_ITSELF["loss_over"]
        self._is_left = bool(engine.graph.unchecked) or self._by_itself

    def check(self, batch: Any, is_first: bool) -> None:
        """Checks once, in the first process. Warns if it cannot check. Raises CaptureError naming
        the first module whose output differs from the model's."""
        if not self._is_left:
            return
        self._is_left = False
        if is_first and (why := self._compared(batch)):
            warnings.warn(f"the graph is not checked beside the model: {why}", stacklevel=3)

    def leave_out(self) -> None:
        self._is_left = False

    def _compared(self, batch: Any) -> str:
        example = batch
        if isinstance(batch, UnreadBatch):
            example = batch.rows(range(min(4, batch.size or self._rows)))
        example = self._inputs.longest(example)
        example = carried.with_zeros(example, self._graph, self._inputs)
        graph, why = dataclasses.replace(self._graph, pictures=self._inputs.pictures), ""
        trained = {name for kind, name, *_ in graph.core.outputs if kind == "gradient"}
        if graph.unchecked:
            with training(self._model, trained.__contains__):
                why = compare(graph, self._model, example, in_any_mode=True)
        if why or not self._by_itself:
            return why
        from medley.capture import proof

        def train(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
            batch = map_named(example, lambda name, value: tensors.get(name, value))
            rows = self._inputs.rows(batch)
            return _trained(self._trainer, graph, self._model, self._machines, batch, rows)

        return proof.prove(
            self._model,
            example,
            graph.text(),
            graph.constants,
            graph.autocast,
            True,
            rows_of(graph, example),
            graph.pictures,
            train=train,
        )


def _trained(
    make: type[Trainer], graph: Graph, model: nn.Module, machines: Cluster, batch: Any, rows: int
) -> dict[str, Tensor]:
    """Returns loss, gradients and buffers of a step on one device, in two micro-batches."""
    device = machines.devices[0]
    plan = Plan.from_dict(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": rows,
            **_BY_ITSELF,
            "pipelines": [
                {
                    "microbatches": [{"rows": rows // 2}] * 2,
                    "stages": [{"mesh": {"devices": [device]}}],
                }
            ],
        }
    )
    trainer = make(model, graph, plan, SGD(lr=0.0), local=True, cluster=machines)
    trainer.first_step.leave_out()
    loss = torch.tensor(trainer.step(batch).loss)
    found = {f"gradient:{name}": each for name, each in trainer.gradients().items()}
    found |= {f"buffer:{name}": each for name, each in trainer.buffers().items()}
    trainer.finish()
    return {"loss": loss} | found
