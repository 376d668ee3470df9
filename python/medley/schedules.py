"""Learning rates as functions of the step, which starts at 0. Any other function works too."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

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
    """Returns a schedule that warms up linearly and falls to `floor` as a power of the remaining
    share."""
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
    """Returns a schedule that warms up linearly, stays constant, and falls linearly to `floor` in
    the last `decay_steps` of `steps`."""

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
    """`shape`: maps the share of steps done to the share of the rate."""

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
    """Returns the text of a learning rate, or "" for a function of another module."""
    if not callable(lr):
        return repr(float(lr))
    ours = getattr(lr, "__module__", "") == __name__
    return (lr.__doc__ or "") if ours else ""


# --- schedulers of PyTorch ---


def is_torch_scheduler(value: Any) -> bool:
    """Returns whether `value` is a scheduler of `torch.optim.lr_scheduler`, or has its
    interface."""
    return hasattr(value, "step") and hasattr(value, "optimizer")


def scheduled(scheduler: Any, field: str = "lr", *, group: int = 0, every: int = 1) -> Schedule:
    """Returns a hyperparameter that a scheduler of PyTorch sets, as a function of the step.
    `scheduler` is bound to a torch optimizer. Only `field` of `group` in that optimizer is read,
    such as "momentum". A copy of the scheduler takes a step after every `every` steps of training,
    such as `len(loader)`. A scheduler that has taken k steps resumes there: it does not define the
    steps before."""
    from torch.optim.lr_scheduler import ReduceLROnPlateau

    kind = type(scheduler).__name__
    if isinstance(scheduler, ReduceLROnPlateau) or not is_torch_scheduler(scheduler):
        found = kind if is_torch_scheduler(scheduler) else repr(scheduler)
        raise ValueError(
            f"lr: found {found}, expected a function of the step, or a scheduler that is one. A "
            "rate that depends on a metric: lr=lambda step: rate[0], and change rate[0] in all "
            "processes after evaluate(), which returns the same in each"
        )
    if field not in scheduler.optimizer.param_groups[group]:
        raise ValueError(
            f"{kind}: {field}: found no such hyperparameter of "
            f"{type(scheduler.optimizer).__name__}, group {group}"
        )
    return _described(_Replay(scheduler, field, group, every), f"{kind}: {field}")


def cycled_fields(scheduler: Any) -> list[str]:
    """Returns the fields that a scheduler changes besides the rate."""
    inner = getattr(scheduler, "_schedulers", [])
    if any(cycled_fields(each) for each in inner) or getattr(scheduler, "cycle_momentum", False):
        known = scheduler.optimizer.defaults
        return [name for name in ("momentum", "betas") if name in known][-1:]
    return []


class _Replay:
    """The values of a copy of a scheduler, step by step."""

    def __init__(self, scheduler: Any, field: str, group: int, every: int) -> None:
        optimizer = scheduler.optimizer
        shared = [optimizer.state, *(p for g in optimizer.param_groups for p in g["params"])]
        # Parameters and their state are shared: the copy does not change them.
        self._scheduler = copy.deepcopy(scheduler, {id(each): each for each in shared})
        self._field, self._group, self._every = field, group, every
        first = scheduler
        while not hasattr(first, "last_epoch"):  # a chain of several schedulers
            first = first._schedulers[0]
        self._first = int(first.last_epoch)
        self._values = [self._value()]

    def _value(self) -> Any:
        value = self._scheduler.optimizer.param_groups[self._group][self._field]
        return tuple(map(float, value)) if isinstance(value, (tuple, list)) else float(value)

    def __call__(self, step: int) -> Any:
        place = step // self._every - self._first
        if place < 0:
            raise ValueError(
                f"{type(self._scheduler).__name__}: found one that has made {self._first} steps, "
                f"in step {step}: give the optimizer a new one, or load the checkpoint it is of"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its optimizer takes no steps
            while len(self._values) <= place:
                self._scheduler.step()
                self._values.append(self._value())
        return self._values[place]
