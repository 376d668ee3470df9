"""What a step gives."""

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
    """What one step gives. Times are those of the devices' clocks, so emulated ones if they are."""

    step: int  # the first one is 0
    loss: float  # over the global batch
    grad_norm: float  # over all parameters, before clipping
    learning_rate: float  # of this step
    step_seconds: float  # of the slowest device of this process
    tokens_per_second: float  # rows per second where the batch has no token ids
    waiting: float  # mean share of the step in which the devices of this process waited for others
    devices: Mapping[str, float]  # this share by device of this process
    # By name, of the global batch: the scalars that the model returned beside the loss, and the
    # tensors of rows that `capture(..., outputs=...)` names.
    outputs: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class Outputs(dict[str, Any]):
    """Outputs by name, of a process that may lack the rows of some."""

    def __init__(self, given: Mapping[str, Any], rows: Collection[str]) -> None:
        """`rows`: the names of tensors of rows."""
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
    """The results of the graph in one step, the same in all processes."""

    loss: float
    grad_norm: float
    outputs: Mapping[str, Any]

    @staticmethod
    def of(result: Any, rows: Mapping[str, torch.dtype]) -> Given:
        """Returns what a step of a run gave; `rows`: the dtypes of tensors of rows by name."""
        outputs = {
            name: value.to(rows[name]) if name in rows else value.item()
            for name, value in result.metrics.items()
        }
        return Given(result.loss, result.gradient_norm, outputs)


def scalars_of(outputs: Mapping[str, Any]) -> dict[str, float]:
    """Returns the outputs that are no tensors."""
    return {name: value for name, value in outputs.items() if not isinstance(value, Tensor)}


def told_by(metrics: Metrics) -> Given:
    """Returns what other processes are told of a step: no tensors."""
    return Given(metrics.loss, metrics.grad_norm, scalars_of(metrics.outputs))


def seconds_of(result: Any) -> float:
    """Returns what a step took on the slowest device; `result`: of this process, if it has one."""
    return 0.0 if result is None else max(result.nanoseconds) * 1e-9


def waiting_of(result: Any) -> dict[str, float]:
    """Returns by device the share of a step in which it waited for others."""
    if result is None:
        return {}
    return {
        name: waiting / max(1, whole)
        for name, waiting, whole in zip(
            result.devices, result.waiting, result.nanoseconds, strict=True
        )
    }


def rows_by_kind(program: _core.Program, machines: Cluster) -> dict[str, float]:
    """Returns by kind of device which part of all rows its devices compute, over all stages."""
    rows: dict[str, float] = {}
    for device, count in zip(program.devices, program.computed_rows(), strict=True):
        kind = machines.kind(device).name
        rows[kind] = rows.get(kind, 0.0) + count
    total = sum(rows.values())
    return {kind: count / total for kind, count in rows.items()}
