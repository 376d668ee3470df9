"""Ctrl-C and similar signals, in all processes of a job at the same step."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from medley.run import exchange

if TYPE_CHECKING:
    from medley.trainer import Trainer

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupt:
    """Ctrl-C, SIGTERM or SIGHUP in training: all processes stop after the same step. A second
    signal ends the process immediately. Each step sums the flags of all processes. The sum is read
    one step later, without blocking. In an elastic run a signalled process publishes it in the
    store, and the first process chooses a step that no process can have begun."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._asked = False
        self._before: dict[signal.Signals, Any] = {}
        self._sum: tuple[Tensor, Any] | None = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # only it receives signals
            self._before = {each: signal.signal(each, self._ask) for each in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if kind is None and self._sum is not None:
            self._sum[1].wait()
        self._restore()

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked = True
        self._restore()

    def _restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def agreed(self) -> bool:
        """Returns whether to stop now. Every process calls it before each step."""
        if self._trainer.is_alone:
            return self._asked
        if self._trainer.is_elastic:
            return self._is_last()
        last = self._sum
        asked = torch.tensor(int(self._asked))
        self._sum = asked, dist.all_reduce(asked, async_op=True)
        if last is None:
            return False
        last[1].wait()
        return bool(last[0])

    def _is_last(self) -> bool:
        store, steps = exchange.store(), self._trainer.steps
        if self._asked:
            store.set("train/asked", "yes")
        # The others have begun at most the step that this process now begins: its commit waits for
        # all. They can read this before the step after the next.
        if self._trainer.is_first and store.get("train/asked") is not None:
            store.set_first("train/last", str(steps + 2))
        last = store.get("train/last")
        return last is not None and steps >= int(last)
