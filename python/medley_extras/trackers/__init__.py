"""Callbacks of `Trainer.fit` that write to trackers: TensorBoard, Weights & Biases."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from medley import Callback, Metrics
from medley.metrics import scalars_of

if TYPE_CHECKING:
    from medley import Trainer


class TensorBoard(Callback):
    """Writes scalars for TensorBoard, which must be installed.

    Example:
        trainer.fit(loader, epochs=3, callbacks=[trackers.TensorBoard("runs/1")])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("TensorBoard: needs a package: pip install tensorboard") from None
        make: Any = SummaryWriter
        self._make: Callable[[], Any] = lambda: make(os.fspath(folder))
        self._writer: Any = None

    def begin(self, trainer: Trainer, steps: int | None) -> None:
        """Opens the event file."""
        self._writer = self._make()

    def step(self, metrics: Metrics) -> None:
        """Writes the scalars of a step."""
        for name, value in scalars(metrics).items():
            self._writer.add_scalar(f"train/{name}", value, metrics.step)

    def evaluated(self, steps: int, found: Mapping[str, float]) -> None:
        """Writes the values of an evaluation."""
        for name, value in found.items():
            self._writer.add_scalar(f"eval/{name}", value, steps)

    def end(self) -> None:
        """Closes the event file."""
        if self._writer is not None:
            self._writer.close()


class WandB(Callback):
    """Logs to Weights & Biases, which must be installed. Takes the arguments of `wandb.init`.

    Example:
        trainer.fit(loader, epochs=3, callbacks=[trackers.WandB(project="medley")])
    """

    def __init__(self, **options: Any) -> None:
        try:
            import wandb
        except ImportError:
            raise ValueError("WandB: needs a package: pip install wandb") from None
        self._wandb: Any = wandb
        self._options = options
        self._run: Any = None

    def begin(self, trainer: Trainer, steps: int | None) -> None:
        """Begins a run."""
        self._run = self._wandb.init(**self._options)

    def step(self, metrics: Metrics) -> None:
        """Logs the scalars of a step."""
        found = {f"train/{name}": value for name, value in scalars(metrics).items()}
        self._run.log(found, step=metrics.step)

    def evaluated(self, steps: int, found: Mapping[str, float]) -> None:
        """Logs the values of an evaluation, with the step before."""
        self._run.log({f"eval/{name}": value for name, value in found.items()}, step=steps - 1)

    def end(self) -> None:
        """Ends the run."""
        if self._run is not None:
            self._run.finish()


def scalars(metrics: Metrics) -> dict[str, float]:
    """Returns the scalars of a step by name."""
    names = ("loss", "grad_norm", "learning_rate", "step_seconds", "tokens_per_second", "waiting")
    return {name: getattr(metrics, name) for name in names} | scalars_of(metrics.outputs)
