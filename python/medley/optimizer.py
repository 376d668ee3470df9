"""Optimizers as descriptions: the program's update op computes them, each device its shards."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

Schedule = Callable[[int], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Optimizer:
    """What all optimizers have. `lr` is a number or a function of the step, which starts at 0.

    `max_norm` scales the gradient so that its norm over all parameters is at most that. Without
    `report_norm` (and `max_norm`) the norm is not computed and `Metrics.grad_norm` is 0.
    """

    lr: float | Schedule = 1e-3  # learning rate, or a function of the step, which starts at 0
    max_norm: float | None = None  # of the gradient over all parameters; None: no limit
    report_norm: bool = True  # False: `Metrics.grad_norm` is 0 unless there is a limit

    def learning_rate(self, step: int) -> float:
        """Returns the learning rate of a step; the first one is 0."""
        found: Any = self.lr(step) if callable(self.lr) else self.lr
        try:
            rate = float(found)
        except (TypeError, ValueError):
            rate = math.nan
        if not (math.isfinite(rate) and rate >= 0):
            kind = type(self).__name__
            raise ValueError(f"{kind}: lr: found {found} in step {step}, expected a number >= 0")
        return rate

    def description(self) -> dict[str, Any]:
        """Returns the fields of medley::Optimizer."""
        raise NotImplementedError

    def _norm(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"max_norm": float(self.max_norm or 0)}
        return fields if self.report_norm else {**fields, "gradient_norm": False}

    def _check(self, **at_least_zero: float) -> None:
        for name, value in at_least_zero.items():
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(
                    f"{type(self).__name__}: {name}: found {value}, expected a number >= 0"
                )
        if not callable(self.lr):
            rate = float(self.lr)
            if not (math.isfinite(rate) and rate >= 0):
                raise ValueError(
                    f"{type(self).__name__}: lr: found {self.lr}, expected a number >= 0 or a "
                    "function of the step"
                )
        if self.max_norm is not None and not self.max_norm > 0:
            raise ValueError(
                f"{type(self).__name__}: max_norm: found {self.max_norm}, expected a number > 0"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AdamW(Optimizer):
    """As torch.optim.AdamW, with an fp32 master copy of 16-bit parameters."""

    betas: tuple[float, float] = (0.9, 0.999)  # each in [0, 1)
    eps: float = 1e-8  # added to the root of the second moment
    weight_decay: float = 0.01  # decoupled, times the learning rate

    def __post_init__(self) -> None:
        self._check(eps=self.eps, weight_decay=self.weight_decay)
        for beta in self.betas:
            if not 0 <= beta < 1:
                raise ValueError(f"AdamW: betas: found {beta}, expected a number in [0, 1)")

    def description(self) -> dict[str, Any]:
        """Returns the fields of medley::Optimizer."""
        return {
            "kind": "adamw",
            "beta1": float(self.betas[0]),
            "beta2": float(self.betas[1]),
            "epsilon": float(self.eps),
            "weight_decay": float(self.weight_decay),
            **self._norm(),
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class SGD(Optimizer):
    """As torch.optim.SGD without dampening."""

    momentum: float = 0.0  # 0: nothing is kept
    weight_decay: float = 0.0  # added to the gradient
    nesterov: bool = False  # needs a momentum

    def __post_init__(self) -> None:
        self._check(momentum=self.momentum, weight_decay=self.weight_decay)
        if self.nesterov and self.momentum == 0:
            raise ValueError("SGD: nesterov: found momentum 0, expected a momentum > 0")

    def description(self) -> dict[str, Any]:
        """Returns the fields of medley::Optimizer."""
        return {
            "kind": "sgd",
            "momentum": float(self.momentum),
            "weight_decay": float(self.weight_decay),
            "nesterov": self.nesterov,
            **self._norm(),
        }


def warmup(lr: float, steps: int) -> Schedule:
    """Returns a schedule that grows linearly to `lr` within `steps` steps and stays there."""

    def rate(step: int) -> float:
        return lr * min(1.0, (step + 1) / max(1, steps))

    return _described(rate, f"warmup({lr!r}, {steps})")


def cosine(lr: float, steps: int, warmup_steps: int = 0, floor: float = 0.0) -> Schedule:
    """Returns a schedule that warms up linearly and falls to `floor` as a cosine until `steps`."""

    def rate(step: int) -> float:
        if step < warmup_steps:
            return lr * (step + 1) / warmup_steps
        done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        return floor + (lr - floor) * 0.5 * (1.0 + math.cos(math.pi * done))

    return _described(rate, f"cosine({lr!r}, {steps}, {warmup_steps}, {floor!r})")


def _described(schedule: Schedule, text: str) -> Schedule:
    schedule.__doc__ = text
    return schedule


def schedule_text(lr: float | Schedule) -> str:
    """Returns how a learning rate is written down, "" for a function that is not one of ours."""
    if not callable(lr):
        return repr(float(lr))
    ours = getattr(lr, "__module__", "") == __name__
    return (lr.__doc__ or "") if ours else ""


def as_optimizer(optimizer: Optimizer | None) -> Optimizer:
    """Returns AdamW if there is none. Raises ValueError for what is no optimizer of Medley."""
    if optimizer is None:
        return AdamW()
    if isinstance(optimizer, Optimizer):
        return optimizer
    found = optimizer if isinstance(optimizer, type) else type(optimizer)
    raise ValueError(
        f"optimizer: found {found.__module__}.{found.__qualname__}, expected medley.AdamW(...) or "
        "medley.SGD(...): each device updates its own shards"
    )
