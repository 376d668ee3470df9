"""Callbacks of `Trainer.fit`: a progress bar, or your own. Trackers are in `medley_extras`."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from medley.metrics import Metrics

if TYPE_CHECKING:
    from medley.trainer import Trainer

WAITS = 0.1  # share of the step; below it no device is reported as the slowest


class Callback:
    """Receives training events in the first process. Override only the methods you need.

    Each step is reported once, even if a node loss repeats it.

    Example:
        class Best(medley.Callback):
            def evaluated(self, steps, found):
                print(steps, found["loss"])
    """

    def begin(self, trainer: Trainer, steps: int | None) -> None:
        """Called when training begins or resumes in this process, for `steps` in all, if known."""

    def step(self, metrics: Metrics) -> None:
        """Called after each step."""

    def waits(self, devices: Mapping[str, float]) -> None:
        """Reports the share of this step or the one before in which each device was idle. Called at
        some steps, before `step`."""

    def evaluated(self, steps: int, found: Mapping[str, float]) -> None:
        """Called after an evaluation. `found` has the values by name after this many steps."""

    def end(self) -> None:
        """Called when training has ended or was stopped."""


class Progress(Callback):
    """Shows a bar, or a line every `every` steps: loss, tokens/s per device type, and the slowest
    device.

    Example:
        trainer.fit(loader, epochs=3, callbacks=[medley.Progress(every=50)])
    """

    def __init__(self, every: int = 10) -> None:
        self.every = every
        self._kinds: Mapping[str, float] = {}
        self._steps: int | None = None
        self._held_up = ""
        self._bar: Any = None
        self._task: Any = None

    def begin(self, trainer: Trainer, steps: int | None) -> None:
        """Draws the bar if stderr is a terminal."""
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
        """Shows the values of a step."""
        done = metrics.step + 1
        text = self._text(metrics)
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=text)
        elif done % self.every == 0 or done in (1, self._steps):
            self._say(f"step {done}{f'/{self._steps}' if self._steps else ''}: {text}")

    def waits(self, devices: Mapping[str, float]) -> None:
        """Stores the device that the others wait for."""
        self._held_up = holds_up(devices)

    def evaluated(self, steps: int, found: Mapping[str, float]) -> None:
        """Shows the values of an evaluation."""
        self._say(f"after {steps}: " + ", ".join(f"{n} {value:.4g}" for n, value in found.items()))

    def end(self) -> None:
        """Leaves the bar on the screen."""
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
    """Returns a text naming the device that the others wait for, or "" if they are hardly idle."""
    if len(devices) < 2:
        return ""
    last = min(devices, key=lambda name: devices[name])
    others = statistics.mean(share for name, share in devices.items() if name != last)
    if others - devices[last] < WAITS:
        return ""
    return f"straggler: {last}, the others wait {100 * others:.0f} % of the step"
