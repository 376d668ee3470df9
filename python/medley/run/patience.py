"""Waits for other processes: silent at first, then with messages, and limited in time."""

from __future__ import annotations

import contextlib
import math
import sys
import time

# Seconds until the first message. The next one follows after this multiple of the wait.
SAY_AFTER_SECONDS = 2.0
SAY_AGAIN_TIMES = 5.0


class Patience:
    """A wait that prints a message after some time and ends after a limit."""

    def __init__(self, most: float = math.inf, say_after: float = SAY_AFTER_SECONDS) -> None:
        self._start = time.monotonic()
        self._most = most
        self._next = say_after

    @property
    def waited(self) -> float:
        """The seconds waited so far."""
        return time.monotonic() - self._start

    @property
    def is_over(self) -> bool:
        """Whether the time limit has passed."""
        return self.waited > self._most

    def pause(self) -> None:
        """Sleeps. Pauses grow with the time waited."""
        time.sleep(min(0.2, max(0.01, 0.05 * self.waited)))

    def should_say(self) -> bool:
        """Returns whether it is time for a message."""
        if self.waited < self._next:
            return False
        self._next *= SAY_AGAIN_TIMES
        return True


def say(sentence: str) -> None:
    """Prints a message immediately, unless the disk of the output is full."""
    with contextlib.suppress(OSError):
        print(f"medley: {sentence}", file=sys.stderr, flush=True)
