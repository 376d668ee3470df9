"""The loop around `Trainer.step`: epochs, evaluating, saving, stopping and going on."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medley import _core
from medley.callbacks import Callback, Progress
from medley.checkpoint import say
from medley.cursor import Cursor
from medley.data.sampler import GlobalBatches
from medley.evaluation import NOT_ELASTIC
from medley.metrics import Metrics
from medley.metrics_file import MetricsFile
from medley.run import exchange, job
from medley.run.interrupt import Interrupt

if TYPE_CHECKING:
    from medley.trainer import Trainer


@dataclasses.dataclass(frozen=True)
class Fitted:
    """How training has ended."""

    steps: int  # that are done, those before a resume too
    interrupted: bool  # by Ctrl-C, SIGTERM or SIGHUP
    evaluated: Mapping[str, float]  # the last time


@dataclasses.dataclass(frozen=True)
class Settings:
    """What `Trainer.fit` is asked for."""

    epochs: int
    steps: int | None
    evaluate: Any
    evaluate_every: int
    save_every: int
    output: Path | None
    keep: int
    resume: bool
    callbacks: Sequence[Callback]


def fit(trainer: Trainer, loader: Any, settings: Settings) -> Fitted:
    """Trains to the end, or to Ctrl-C."""
    _check(trainer, loader, settings)
    order = Order(loader)
    steps = settings.steps
    if steps is None and order.per_epoch is not None:
        steps = settings.epochs * order.per_epoch
    if settings.output is not None and not job.joins_later():
        _go_on(trainer, order, settings)
    before = trainer.catch_up()
    told = Told(trainer, settings, steps)
    evaluated: Mapping[str, float] = {}
    with told, Interrupt(trainer) as interrupt:
        if before is not None:
            told.step(before)
        batches = order.batches(trainer.steps, settings.epochs if settings.steps is None else None)
        stopped = False
        while not (stopped := interrupt.agreed()):
            if steps is not None and trainer.steps >= steps:
                break
            if (batch := next(batches, None)) is None:
                break
            metrics = trainer.step(batch)
            if not math.isfinite(metrics.loss):
                raise ValueError(
                    f"step {metrics.step}: found a loss of {metrics.loss}, expected a finite one: "
                    "a smaller learning rate, a warmup or max_norm may help"
                )
            told.step(metrics)
            done = trainer.steps
            if settings.evaluate is not None and _is_due(done, settings.evaluate_every):
                evaluated = told.evaluate()
            if settings.output is not None and _is_due(done, settings.save_every):
                _save(trainer, order, settings, wait=False)
        if settings.evaluate is not None and not stopped and told.evaluated_at != trainer.steps:
            evaluated = told.evaluate()
        if settings.output is not None:
            _save(trainer, order, settings, wait=True)
    return Fitted(trainer.steps, stopped, evaluated)


class Order:
    """Which batches a loader yields in which epoch, and how to go on in the middle of one."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        sampler = getattr(loader, "batch_sampler", None)
        self._ours: GlobalBatches | None = None  # that knows where it is
        for each in (loader, sampler):
            if isinstance(each, GlobalBatches):
                self._ours = each
        self._epochs: Any = self._ours or getattr(loader, "sampler", None)
        self.per_epoch = len(loader) if hasattr(loader, "__len__") else None
        if self.per_epoch == 0:
            raise ValueError("fit: found a loader of no batches, expected one at least")

    def cursor(self, steps: int) -> Cursor | None:
        """Returns where the batch of the next step is; None where nobody knows."""
        return None if self._ours is None else self._ours.cursor(steps)

    def check(self, cursor: Cursor | tuple[int, int, int] | None, steps: int, path: str) -> None:
        """Raises ValueError for a checkpoint of another order of rows."""
        expected = self.cursor(steps)
        if cursor is not None and expected is not None and tuple(cursor) != tuple(expected):
            raise ValueError(
                f"{path}: found its next batch at epoch {cursor[0]}, batch {cursor[1]}, seed "
                f"{cursor[2]} after {steps} steps, expected {tuple(expected)}: the data or their "
                "order have changed"
            )

    def batches(self, steps: int, epochs: int | None) -> Iterator[Any]:
        """Yields the batches behind so many, to the end of the last epoch."""
        epoch, first = divmod(steps, self.per_epoch) if self.per_epoch else (0, steps)
        while epochs is None or epoch < epochs:
            if self._ours is not None:
                self._ours.set_epoch(epoch, first)
                yield from self._loader
            else:
                if hasattr(self._epochs, "set_epoch"):
                    self._epochs.set_epoch(epoch)
                found = 0
                for batch in itertools.islice(self._loader, first, None):
                    found += 1
                    yield batch
                if not found and not first:
                    return
            epoch, first = epoch + 1, 0


class Told:
    """Tells callbacks and metrics.jsonl, in the process that is the first one now."""

    def __init__(self, trainer: Trainer, settings: Settings, steps: int | None) -> None:
        self._trainer = trainer
        self._settings = settings
        self._steps = steps
        self._callbacks = list(settings.callbacks)
        self._file = None if settings.output is None else MetricsFile(settings.output)
        self._has_begun = False
        bars = [each.every for each in self._callbacks if isinstance(each, Progress)]
        self._every = min(bars, default=0)
        self.evaluated_at = -1

    def __enter__(self) -> Told:
        if self._trainer.is_first and not job.joins_later():
            if self._file is not None:
                self._file.begin(self._trainer.steps)
            self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        if self._has_begun:
            for each in self._callbacks:
                each.end()

    def _begin(self) -> None:
        self._has_begun = True
        for each in self._callbacks:
            each.begin(self._trainer, self._steps)

    def step(self, metrics: Metrics) -> None:
        """A step is done, in all processes."""
        waits = None
        if self._every and (metrics.step == 0 or (metrics.step + 1) % self._every == 0):
            waits = self._trainer.together(lambda: _waits(self._trainer, metrics))
        first = self._trainer.is_first
        if self._file is not None:
            line = {**dataclasses.asdict(metrics), "step": metrics.step + 1}
            self._file.write(line, first)
        if not first:
            return
        if not self._has_begun:  # the process that was the first is lost
            self._begin()
        for each in self._callbacks:
            if waits is not None:
                each.waits(waits)
            each.step(metrics)

    def evaluate(self) -> Mapping[str, float]:
        """Evaluates in all processes; returns what is found."""
        found = self._trainer.evaluate(self._settings.evaluate)
        done = self.evaluated_at = self._trainer.steps
        if self._file is not None:
            line = {"step": done, **{f"eval_{name}": value for name, value in found.items()}}
            self._file.write(line, self._trainer.is_first)
        if self._trainer.is_first and self._has_begun:
            for each in self._callbacks:
                each.evaluated(done, found)
        return found


def _waits(trainer: Trainer, metrics: Metrics) -> dict[str, float]:
    """Returns the waiting of all devices; called by all processes."""
    if trainer.is_alone or trainer.ranks is None:
        return dict(metrics.devices)
    told: dict[str, float] = {}
    for text in exchange.texts(json.dumps(dict(metrics.devices))):
        told |= json.loads(text)
    return told


def _check(trainer: Trainer, loader: Any, settings: Settings) -> None:
    for name in ("epochs", "evaluate_every", "save_every"):
        value, least = getattr(settings, name), int(name == "epochs")
        if value < least:
            raise ValueError(f"fit: {name}: found {value}, expected a number of at least {least}")
    if settings.save_every and settings.output is None:
        raise ValueError("fit: save_every: found no output, expected a folder for checkpoints")
    if settings.evaluate_every and settings.evaluate is None:
        raise ValueError("fit: evaluate_every: found nothing to evaluate, expected evaluate=...")
    if settings.evaluate is not None and settings.evaluate is loader:
        raise ValueError("fit: evaluate: found the loader that is trained on, expected another")
    if settings.evaluate is not None and trainer.is_elastic:
        raise ValueError(f"fit: {NOT_ELASTIC}")
    for each in settings.callbacks:
        if not isinstance(each, Callback):
            raise ValueError(f"fit: callbacks: found {each!r}, expected a medley.Callback")


def _is_due(steps: int, every: int) -> bool:
    return every > 0 and steps % every == 0


def _go_on(trainer: Trainer, order: Order, settings: Settings) -> None:
    """Goes on from the newest checkpoint in the folder, if there is one."""
    assert settings.output is not None
    folder = os.fspath(settings.output)
    if not settings.resume:

        def look() -> bytes:
            if _core.find_checkpoints(folder):
                raise ValueError(
                    f"{folder}: found a checkpoint, expected resume=True or an empty folder"
                )
            return b""

        look() if trainer.is_alone else exchange.from_first(look, "looks at the output")
        return
    if trainer.steps:  # the caller has loaded one
        return
    found = trainer.resume(folder)
    if found is None:
        return
    order.check(found.data, found.step, found.path)
    if trainer.is_first:
        say(f"going on from {found.path}")


def _save(trainer: Trainer, order: Order, settings: Settings, wait: bool) -> None:
    assert settings.output is not None
    trainer.save(settings.output, keep=settings.keep, wait=wait, data=order.cursor(trainer.steps))
