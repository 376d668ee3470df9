"""What `Trainer.fit` tells: a bar, TensorBoard, Weights & Biases, or your own."""

from __future__ import annotations

import os
import statistics
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from medley.metrics import Metrics, scalars_of

if TYPE_CHECKING:
    from medley.trainer import Trainer

WAITS = 0.1  # of the step: below, nobody holds the others up


class Callback:
    """Is told what happens, in the process that speaks for all; what a subclass leaves out is not
    asked for. Each step is told once, also where steps are made again after a loss."""

    def begin(self, trainer: Trainer, steps: int | None) -> None:
        """Training begins, or goes on in this process; it is to have so many steps, if known."""

    def step(self, metrics: Metrics) -> None:
        """A step is done."""

    def waits(self, devices: Mapping[str, float]) -> None:
        """The share of this step or the one before in which each device waited for others; now and
        then, before `step`."""

    def evaluated(self, steps: int, found: Mapping[str, float]) -> None:
        """`Trainer.evaluate` has found this after so many steps."""

    def end(self) -> None:
        """Training has ended, or was stopped."""


class TensorBoard(Callback):
    """Writes scalars for TensorBoard, which has to be installed."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise ValueError("TensorBoard: needs a package: pip install tensorboard") from None
        make: Any = SummaryWriter
        self._make: Callable[[], Any] = lambda: make(os.fspath(folder))
        self._writer: Any = None

    def begin(self, trainer: Trainer, steps: int | None) -> None:
        """Opens a file."""
        self._writer = self._make()

    def step(self, metrics: Metrics) -> None:
        """Writes what a step gives."""
        for name, value in scalars(metrics).items():
            self._writer.add_scalar(f"train/{name}", value, metrics.step)

    def evaluated(self, steps: int, found: Mapping[str, float]) -> None:
        """Writes what was found."""
        for name, value in found.items():
            self._writer.add_scalar(f"eval/{name}", value, steps)

    def end(self) -> None:
        """Closes the file."""
        if self._writer is not None:
            self._writer.close()


class WandB(Callback):
    """Logs to Weights & Biases, which has to be installed; takes what `wandb.init` takes."""

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
        """Logs what a step gives."""
        found = {f"train/{name}": value for name, value in scalars(metrics).items()}
        self._run.log(found, step=metrics.step)

    def evaluated(self, steps: int, found: Mapping[str, float]) -> None:
        """Logs what was found, with the step before."""
        self._run.log({f"eval/{name}": value for name, value in found.items()}, step=steps - 1)

    def end(self) -> None:
        """Ends the run."""
        if self._run is not None:
            self._run.finish()


class Progress(Callback):
    """A bar, or every `every` steps a line: loss, tokens/s of each kind of device, and which device
    the others wait for."""

    def __init__(self, every: int = 10) -> None:
        self.every = every
        self._kinds: Mapping[str, float] = {}
        self._steps: int | None = None
        self._held_up = ""
        self._bar: Any = None
        self._task: Any = None

    def begin(self, trainer: Trainer, steps: int | None) -> None:
        """Draws the bar where a terminal is."""
        self._kinds, self._steps = trainer.shares_of_kinds(), steps
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            self._bar = Bar(
                BarColumn(),
                TextColumn("{task.completed}/{task.total} steps, {task.description}"),
                TimeRemainingColumn(),
                console=Console(stderr=True, highlight=False),
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=steps)

    def step(self, metrics: Metrics) -> None:
        """Shows what a step gives."""
        done = metrics.step + 1
        text = self._text(metrics)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=text)
        elif done % self.every == 0 or done in (1, self._steps):
            self._say(f"step {done}{f'/{self._steps}' if self._steps else ''}: {text}")

    def waits(self, devices: Mapping[str, float]) -> None:
        """Notes who holds the others up."""
        self._held_up = holds_up(devices)

    def evaluated(self, steps: int, found: Mapping[str, float]) -> None:
        """Shows what was found."""
        self._say(f"after {steps}: " + ", ".join(f"{n} {value:.4g}" for n, value in found.items()))

    def end(self) -> None:
        """Leaves the bar as it is."""
        if self._bar is not None:
            self._bar.stop()

    def _text(self, metrics: Metrics) -> str:
        rates = ", ".join(
            f"{kind} {share * metrics.tokens_per_second:,.0f}"
            for kind, share in self._kinds.items()
        )
        held_up = f"; {self._held_up}" if self._held_up else ""
        return f"loss {metrics.loss:.4f}, norm {metrics.grad_norm:.3g}, tokens/s: {rates}{held_up}"

    def _say(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line)
        else:
            print(line, flush=True)


def holds_up(devices: Mapping[str, float]) -> str:
    """Returns which device the others wait for, in words; "" if they hardly wait."""
    if len(devices) < 2:
        return ""
    last = min(devices, key=lambda name: devices[name])
    others = statistics.mean(share for name, share in devices.items() if name != last)
    if others - devices[last] < WAITS:
        return ""
    return f"the others wait for {last}, {others:.0%} of the step"


def scalars(metrics: Metrics) -> dict[str, float]:
    """Returns the numbers of a step, by name."""
    names = ("loss", "grad_norm", "learning_rate", "step_seconds", "tokens_per_second", "waiting")
    return {name: getattr(metrics, name) for name in names} | scalars_of(metrics.outputs)
