"""Learning rates as functions of the step, which starts at 0. Any other function will do, too."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def warmup(lr: float, steps: int) -> Schedule:
    """Returns a schedule that grows linearly to `lr` within `steps` steps and stays there."""

    def rate(step: int) -> float:
        return lr * min(1.0, (step + 1) / max(1, steps))

    return _described(rate, f"warmup({lr!r}, {steps})")


def cosine(lr: float, steps: int, warmup_steps: int = 0, floor: float = 0.0) -> Schedule:
    """Returns a schedule that warms up linearly and falls to `floor` as a cosine until `steps`."""

    return _described(
        _falling(
            lr, steps, warmup_steps, floor, lambda done: 0.5 * (1.0 + math.cos(math.pi * done))
        ),
        f"cosine({lr!r}, {steps}, {warmup_steps}, {floor!r})",
    )


def linear(lr: float, steps: int, warmup_steps: int = 0, floor: float = 0.0) -> Schedule:
    """Returns a schedule that warms up linearly and falls to `floor` linearly until `steps`."""
    return _described(
        _falling(lr, steps, warmup_steps, floor, lambda done: 1.0 - done),
        f"linear({lr!r}, {steps}, {warmup_steps}, {floor!r})",
    )


def polynomial(
    lr: float, steps: int, warmup_steps: int = 0, floor: float = 0.0, power: float = 2.0
) -> Schedule:
    """Returns a schedule that warms up linearly and falls to `floor` as a power of what is left."""
    return _described(
        _falling(lr, steps, warmup_steps, floor, lambda done: (1.0 - done) ** power),
        f"polynomial({lr!r}, {steps}, {warmup_steps}, {floor!r}, {power!r})",
    )


def inverse_sqrt(lr: float, warmup_steps: int) -> Schedule:
    """Returns a schedule that warms up linearly and falls as one over the root of the step."""

    def rate(step: int) -> float:
        return lr * min((step + 1) / warmup_steps, math.sqrt(warmup_steps / (step + 1)))

    if warmup_steps < 1:
        raise ValueError(f"inverse_sqrt: warmup_steps: found {warmup_steps}, expected at least 1")
    return _described(rate, f"inverse_sqrt({lr!r}, {warmup_steps})")


def warmup_stable_decay(
    lr: float, steps: int, warmup_steps: int, decay_steps: int, floor: float = 0.0
) -> Schedule:
    """Returns a schedule that warms up linearly, stays, and falls to `floor` linearly in the last
    `decay_steps` of `steps`."""

    def rate(step: int) -> float:
        up = (step + 1) / max(1, warmup_steps)
        down = (steps - step) / max(1, decay_steps)
        return max(floor, lr * max(0.0, min(1.0, up, down)))

    return _described(
        rate, f"warmup_stable_decay({lr!r}, {steps}, {warmup_steps}, {decay_steps}, {floor!r})"
    )


def _falling(
    lr: float, steps: int, warmup_steps: int, floor: float, shape: Callable[[float], float]
) -> Schedule:
    """`shape`: from the share of the steps that is done to that of the rate."""

    def rate(step: int) -> float:
        if step < warmup_steps:
            return lr * (step + 1) / warmup_steps
        done = min(1.0, (step - warmup_steps) / max(1, steps - warmup_steps))
        return floor + (lr - floor) * shape(done)

    return rate


def _described(schedule: Schedule, text: str) -> Schedule:
    schedule.__doc__ = text
    return schedule


def schedule_text(lr: float | Schedule) -> str:
    """Returns how a learning rate is written down, "" for a function that is not one of ours."""
    if not callable(lr):
        return repr(float(lr))
    ours = getattr(lr, "__module__", "") == __name__
    return (lr.__doc__ or "") if ours else ""
