"""The results of a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from medley import _core
from medley.cluster import Cluster


@dataclasses.dataclass(frozen=True)
class Metrics:
    """The results of one step. Times are from the devices' clocks, which may be emulated.

    Example:
        metrics = trainer.step(batch)
        print(metrics.step, metrics.loss, metrics.step_seconds)
    """

    step: int  # first step is 0
    loss: float  # over the global batch
    grad_norm: float  # norm over all parameters, before clipping
    learning_rate: float  # rate of this step
    step_seconds: float  # time of the slowest device of this process
    tokens_per_second: float  # rows per second if the batch has no token ids
    waiting: float  # mean share of the step in which the devices of this process were idle
    devices: Mapping[str, float]  # idle share by device of this process
    # Outputs of the global batch by name: scalars of the model, and the tensors of rows named by
    # `capture(..., outputs=...)`.
    outputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Outputs(dict[str, Any]):
    """Outputs by name. A process may lack the rows of some."""

    def __init__(self, given: Mapping[str, Any], rows: Collection[str]) -> None:
        """`rows`: names of the tensors of rows."""
        super().__init__(given)
        self._rows = rows

    def __missing__(self, name: str) -> Any:
        if name not in self._rows:
            raise KeyError(name)
        raise KeyError(
            f"outputs[{name!r}]: found no rows in this process, which joined the run later, or has "
            "no device of the plan: expected a script that begins behind Trainer.catch_up()"
        )


class Given(NamedTuple):
    """The results of the graph in one step, identical in all processes."""

    loss: float
    grad_norm: float
    outputs: Mapping[str, Any]

    @staticmethod
    def of(result: Any, rows: Mapping[str, torch.dtype]) -> Given:
        """Returns the results of a step of a run. `rows`: dtypes of the tensors of rows by name."""
        outputs = {
            name: value.to(rows[name]) if name in rows else value.item()
            for name, value in result.metrics.items()
        }
        return Given(result.loss, result.gradient_norm, outputs)


def scalars_of(outputs: Mapping[str, Any]) -> dict[str, float]:
    """Returns the outputs that are scalars."""
    return {name: value for name, value in outputs.items() if not isinstance(value, Tensor)}


def sent_part(metrics: Metrics) -> Given:
    """Returns the part of a step's results that is sent to other processes: scalars only."""
    return Given(metrics.loss, metrics.grad_norm, scalars_of(metrics.outputs))


def seconds_of(result: Any) -> float:
    """Returns the step time of the slowest device, in seconds. `result` is that of this process, if
    any."""
    return 0.0 if result is None else max(result.nanoseconds) * 1e-9


def waiting_of(result: Any) -> dict[str, float]:
    """Returns the idle share of a step by device."""
    if result is None:
        return {}
    return {
        name: waiting / max(1, whole)
        for name, waiting, whole in zip(
            result.devices, result.waiting, result.nanoseconds, strict=True
        )
    }


def rows_by_kind(program: _core.Program, machines: Cluster) -> dict[str, float]:
    """Returns the share of all rows that each device type computes, over all stages."""
    rows: dict[str, float] = {}
    for device, count in zip(program.devices, program.computed_rows(), strict=True):
        kind = machines.kind(device).name
        rows[kind] = rows.get(kind, 0.0) + count
    total = sum(rows.values())
    return {kind: count / total for kind, count in rows.items()}
