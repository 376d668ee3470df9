"""The loop around `Trainer.step`: epochs, evaluation, checkpoints, stopping and resuming."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.utils.data

from medley import _core
from medley.callbacks import Callback, Progress
from medley.checkpoint import Checkpoint
from medley.cursor import Cursor
from medley.data.sampler import GlobalBatches
from medley.data.stream import StreamLoader
from medley.metrics import Metrics, scalars_of
from medley.metrics_file import MetricsFile
from medley.run import ends, exchange, job
from medley.run.interrupt import Interrupt
from medley.run.patience import say

if TYPE_CHECKING:
    from medley.trainer import Trainer

# Share of the time until the next checkpoint over which one is written. Slow writing delays steps
# less, and a crash loses little more.
_SPREAD = 0.2


@dataclasses.dataclass(frozen=True)
class Fitted:
    """The state of training at the end of `fit`.

    Example:
        fitted = trainer.fit(loader, epochs=3, evaluate=held_out)
        if not fitted.interrupted:
            print(fitted.steps, fitted.evaluated["loss"])
    """

    steps: int  # steps done, with those before a resume
    interrupted: bool  # ended by Ctrl-C, SIGTERM or SIGHUP
    evaluated: Mapping[str, float]  # values of the last evaluation
    last: Metrics | None  # last step, if this process ran one


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of `fit`. `Trainer.fit` documents most of them.

    Example:
        settings = Settings(epochs=3, output=Path("runs/1"), save_every=100)
        fitted = fit(trainer, loader, settings)
    """

    epochs: int = 1
    steps: int | None = None
    # a batch, a loader, or a function that returns values by name and is called in all processes
    evaluate: Any = None
    evaluate_every: int = 0
    save_every: int = 0
    output: Path | None = None
    keep: int = 3  # 0: saves no checkpoint
    keep_every: int = 0  # also keeps checkpoints of steps that are multiples of it
    must_save: bool = True  # False: a final checkpoint that cannot be written is only reported
    resume: bool = True
    log_every: int = 1  # steps between lines of metrics.jsonl
    callbacks: Sequence[Callback] = ()
    at_end: Callable[[Fitted], None] | None = None  # is not interrupted by a first Ctrl-C


def fit(trainer: Trainer, loader: Any, settings: Settings) -> Fitted:
    """Trains until the end or Ctrl-C. Returns the final state."""
    _check(trainer, loader, settings)
    order = Order(loader)
    steps = settings.steps
    if steps is None and order.per_epoch is not None:
        steps = settings.epochs * order.per_epoch
    if settings.output is not None and (settings.resume or not job.joins_later()):
        _go_on(trainer, order, settings, steps)
    if steps is not None and trainer.steps >= steps and trainer.is_first:
        say(f"found {trainer.steps} steps that are done already, of {steps}: nothing to train")
    trainer.expected_steps = steps
    before = trainer.session.begin_fit(steps)
    begun = trainer.steps
    begun_at = time.monotonic()
    reporter = Reporter(trainer, order, settings, steps)
    metrics = None

    def evaluate_and_save() -> None:
        if reporter.is_evaluating():
            reporter.evaluate()
        done = trainer.steps
        if done != steps and _is_due(done, settings.save_every):
            per_step = (time.monotonic() - begun_at) / max(1, done - begun)
            spread = _SPREAD * settings.save_every * per_step
            _save(trainer, order, settings, wait=False, spread=spread)

    with reporter, Interrupt(trainer) as interrupt:
        if before is not None:
            reporter.step(before)
            evaluate_and_save()
        batches = order.batches(begun, settings.epochs if settings.steps is None else None)
        stopped = False
        while not (stopped := interrupt.agreed()):
            if steps is not None and trainer.steps >= steps:
                break
            if (batch := next(batches, None)) is None:
                break
            if order.per_epoch and trainer.steps % order.per_epoch == 0:
                trainer.reset_carried()
            metrics = trainer.step(batch)
            if not math.isfinite(metrics.loss):
                raise ValueError(
                    f"step {trainer.steps}: found a loss of {metrics.loss}, expected a finite one: "
                    "a smaller learning rate, a warmup or max_norm may help"
                )
            reporter.step(metrics)
            evaluate_and_save()
        trainer.session.end_fit()
        if order.has_ended and trainer.is_first:
            say(f"the loader has no more batches: training ends after {trainer.steps} steps")
        if settings.evaluate is not None and not stopped and reporter.evaluated_at != trainer.steps:
            reporter.evaluate()
        if trainer.steps > begun or before is not None:
            _save(trainer, order, settings, wait=settings.must_save)
        fitted = Fitted(trainer.steps, stopped, reporter.evaluated, metrics)
        try:
            if settings.at_end is not None:
                settings.at_end(fitted)
        except OSError as error:  # a full disk; the checkpoint remains
            if not isinstance(error, ends.OthersError):
                trainer.session.complete()
            raise
        trainer.session.complete()
    return fitted


class Order:
    """The batches of a loader by epoch, and how to resume in the middle of an epoch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        sampler = getattr(loader, "batch_sampler", None)
        self._ours: GlobalBatches | StreamLoader | None = None  # a loader that reports its position
        for each in (loader, sampler):
            if isinstance(each, (GlobalBatches, StreamLoader)):
                self._ours = each
        self._epochs: Any = self._ours or getattr(loader, "sampler", None)
        try:
            self.per_epoch: int | None = len(loader)
        except TypeError:  # a stream of unknown length
            self.per_epoch = None
        if self.per_epoch == 0:
            raise ValueError("fit: found a loader of no batches, expected one at least")
        self.has_ended = False  # and has no batches for another epoch

    @property
    def is_random(self) -> bool:
        """Returns whether the order of the loader's rows is unknown."""
        random = torch.utils.data.RandomSampler
        return self._ours is None and isinstance(self._epochs, random)

    def cursor(self, steps: int) -> Cursor | None:
        """Returns the position of the next step's batch, or None if it is unknown."""
        return None if self._ours is None else self._ours.cursor(steps)

    def check(self, found: Checkpoint, global_batch: int) -> None:
        """Raises ValueError if a checkpoint has another order of rows."""
        now, was = self.cursor(found.step), found.data
        if now is None or was is None:
            return
        for what, before, expected in (
            ("seed", was.seed, now.seed),
            ("a global batch of", found.global_batch, global_batch),
        ):
            if before != expected:
                raise ValueError(f"{found.path}: found {what} {before}, expected {expected}")
        if was != now:
            raise ValueError(
                f"{found.path}: found batch {was.batch} of epoch {was.epoch} after {found.step} "
                f"steps, expected batch {now.batch} of epoch {now.epoch}: the data have changed"
            )

    def batches(self, steps: int, epochs: int | None) -> Iterator[Any]:
        """Yields the batches after the first `steps`, to the end of the last epoch."""
        epoch, first = divmod(steps, self.per_epoch) if self.per_epoch else (0, steps)
        while epochs is None or epoch < epochs:
            found = 0
            if self._ours is not None:
                self._ours.set_epoch(epoch, first)
                found = first
            elif hasattr(self._epochs, "set_epoch"):
                self._epochs.set_epoch(epoch)
            for batch in self._loader:
                found += 1
                if found > first:
                    yield batch
            if not found:
                self.has_ended = True
                return
            # A loader without a length may skip several epochs.
            epoch, first = epoch + 1, max(0, first - found)


class Reporter:
    """Reports to callbacks and metrics.jsonl in the current first process."""

    def __init__(
        self, trainer: Trainer, order: Order, settings: Settings, steps: int | None
    ) -> None:
        self._trainer = trainer
        self._order = order
        self._settings = settings
        self._steps = steps
        self._callbacks = list(settings.callbacks)
        self._file = None if settings.output is None else MetricsFile(settings.output)
        self._has_begun = False
        bars = [each.every for each in self._callbacks if isinstance(each, Progress)]
        self._every = min(bars, default=0)
        self.evaluated_at, self.evaluated = trainer.session.last_evaluation() or (-1, {})

    def __enter__(self) -> Reporter:
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
        """Reports a step, in all processes."""
        done, first = metrics.step + 1, self._trainer.is_first
        waits = self._waits(metrics)
        if self._file is not None and (
            done % self._settings.log_every == 0 or done in (1, self._steps)
        ):
            cursor = self._order.cursor(metrics.step)
            place = {} if cursor is None else {"epoch": cursor.epoch, "batch": cursor.batch}
            shown = dataclasses.replace(metrics, outputs=scalars_of(metrics.outputs))
            self._file.write({**dataclasses.asdict(shown), **place, "step": done}, first)
        if not first:
            return
        if not self._has_begun:  # the former first process is lost
            self._begin()
        for each in self._callbacks:
            if waits:
                each.waits(waits)
            each.step(metrics)

    def is_evaluating(self) -> bool:
        """Returns whether all processes must evaluate after the last step, and have not yet."""
        settings, done = self._settings, self._trainer.steps
        is_due = settings.evaluate is not None and _is_due(done, settings.evaluate_every)
        return is_due and self.evaluated_at != done

    def evaluate(self) -> None:
        """Evaluates in all processes."""
        data = self._settings.evaluate
        if callable(data):
            line = found = self._trainer.session.evaluated(data)
        else:
            found = self._trainer.evaluate(data)
            line = {f"eval_{name}": value for name, value in found.items()}
        done = self._trainer.steps
        self.evaluated_at, self.evaluated = done, found
        if self._file is not None:
            self._file.write({"step": done, **line}, self._trainer.is_first)
        if not self._trainer.is_first:
            return
        if not self._has_begun:  # the former first process is lost
            self._begin()
        for each in self._callbacks:
            each.evaluated(done, found)

    def _waits(self, metrics: Metrics) -> Mapping[str, float]:
        """Returns the idle share of all devices to the first process when a line is due. Others
        publish theirs in the store. An exchange would need all processes, and a process that joins
        an elastic run later cannot detect one in progress."""
        if not self._every or self._trainer.ranks is None:
            return {}
        if self._trainer.is_alone:
            return metrics.devices
        (rank, size), store = self._trainer.ranks, exchange.store()
        found: dict[str, float] = {}
        if rank == 0 and (metrics.step + 1) % self._every == 0:
            # A process that has begun this step has published the share of the one before.
            for text in filter(None, (store.get(f"waits/{each}") for each in range(size))):
                found |= json.loads(text)
        if (metrics.step + 2) % self._every == 0:
            store.set(f"waits/{rank}", json.dumps(dict(metrics.devices)))
        return found


def _check(trainer: Trainer, loader: Any, settings: Settings) -> None:
    for name in ("epochs", "evaluate_every", "save_every"):
        value, least = getattr(settings, name), int(name == "epochs")
        if value < least:
            raise ValueError(f"fit: {name}: found {value}, expected a number of at least {least}")
    if isinstance(loader, StreamLoader) and settings.steps is None:
        raise ValueError("fit: found a StreamLoader, which does not end, expected steps=...")
    if isinstance(settings.evaluate, StreamLoader):
        raise ValueError(
            "fit: evaluate: found a StreamLoader, which does not end, expected a Loader of a list "
            "of rows"
        )
    if settings.save_every and settings.output is None:
        raise ValueError("fit: save_every: found no output, expected a folder for checkpoints")
    if settings.evaluate_every and settings.evaluate is None:
        raise ValueError("fit: evaluate_every: found nothing to evaluate, expected evaluate=...")
    if settings.evaluate is not None and settings.evaluate is loader:
        raise ValueError("fit: evaluate: found the loader that is trained on, expected another")
    if settings.evaluate_every and isinstance(settings.evaluate, Iterator):
        raise ValueError(
            "fit: evaluate: found an iterator, which can be read once, expected a loader or a list"
        )
    if settings.steps is None and settings.epochs > 1 and isinstance(loader, Iterator):
        raise ValueError(
            f"fit: found an iterator, which can be read once, expected a loader for "
            f"{settings.epochs} epochs, or steps=..."
        )
    if not isinstance(settings.callbacks, Sequence):
        raise ValueError(f"fit: callbacks: found {settings.callbacks!r}, expected a list of them")
    for each in settings.callbacks:
        if not isinstance(each, Callback):
            raise ValueError(f"fit: callbacks: found {each!r}, expected a medley.Callback")


def _is_due(steps: int, every: int) -> bool:
    return every > 0 and steps % every == 0


def expect_no_checkpoint(folder: str, otherwise: str) -> bytes:
    """Raises ValueError if the folder has a checkpoint: the newest one of two runs would be
    ambiguous."""
    if found := _core.find_checkpoints(folder):
        raise ValueError(
            f"{folder}: found a checkpoint of step {found[0][1]}, expected {otherwise} or an empty "
            "folder"
        )
    return b""


def _go_on(trainer: Trainer, order: Order, settings: Settings, steps: int | None) -> None:
    """Resumes from the newest checkpoint in the folder, if there is one."""
    folder = os.fspath(settings.output or "")
    if not settings.resume:

        def look() -> bytes:
            return expect_no_checkpoint(folder, "resume=True")

        look() if trainer.is_alone else exchange.from_first(look, "looks at the output")
        return
    if trainer.steps:  # the caller has loaded one
        return
    if (found := trainer.resume(folder)) is None:
        return
    order.check(found, trainer.plan.global_batch)
    if steps is not None and found.step > steps:
        raise ValueError(f"{found.path}: found {found.step} steps, expected at most {steps}")
    if trainer.is_first:
        say(f"going on from {found.path}")
    if trainer.is_first and order.is_random:
        say(
            "found a DataLoader with shuffle=True, whose order nobody knows: rows of this epoch "
            "may come twice, or not at all; medley.Loader(plan, dataset, shuffle=True) goes on"
        )


def _save(
    trainer: Trainer, order: Order, settings: Settings, wait: bool, spread: float = 0.0
) -> None:
    if settings.output is not None and settings.keep:
        trainer.save(
            settings.output,
            keep=settings.keep,
            keep_every=settings.keep_every,
            wait=wait,
            spread=spread,
            data=order.cursor(trainer.steps),
        )
