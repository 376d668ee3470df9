"""What a run keeps besides an optimizer's state: averages of weights, the scale of the loss."""

from __future__ import annotations

from typing import Any

AVERAGE = "average:"  # before the name of a parameter
_SCALE = ("state", "loss_scale")  # ops/update_ops.h


def loss_scale_of(run: Any, first: float, of_last_step: bool = False) -> float:
    """Returns the scale of the loss in the next step of a run, or in the last one; 1 without."""
    if run is None or _SCALE not in run.values:
        return 1.0
    state = run.shard(*_SCALE, 0)
    return 1.0 if state is None else first * (1 + float(state[3 if of_last_step else 0]))


def averages_of(run: Any) -> list[str]:
    """Returns the names of the averages that a run keeps."""
    if run is None:
        return []
    return [name for kind, name in run.values if kind == "state" and name.startswith(AVERAGE)]
