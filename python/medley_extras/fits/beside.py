"""Work in a forked process, which has imported the required packages."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection

import torch

_LONGEST = 600.0  # seconds


class Beside:
    """Runs `work`, which returns a text, in a process of its own, starting now."""

    def __init__(self, work: Callable[[], str]) -> None:
        context = multiprocessing.get_context("fork")
        self._answer, there = context.Pipe(duplex=False)
        # A daemon ends with this process.
        self._process = context.Process(target=_run, args=(work, there), daemon=True)
        self._process.start()
        there.close()

    def text(self) -> str | None:
        """Returns the text, or None if the work failed or did not end. The same work in this
        process then raises the reason."""
        try:
            return str(self._answer.recv()) if self._answer.poll(_LONGEST) else None
        except EOFError:
            return None
        finally:
            self.end()

    def end(self) -> None:
        """Ends the process in any state."""
        self._process.kill()
        self._process.join()
        self._answer.close()


def _run(work: Callable[[], str], answer: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the parent prints the same
    torch.set_num_threads(1)  # the threads of the pool do not exist here
    try:
        answer.send(work())
    except Exception:  # the model cannot be captured: no text is sent
        answer.close()
