"""How processes wait for somebody: in silence first, then saying so, and not for ever."""

from __future__ import annotations

import math
import sys
import time

# Whoever waits says so after this time, and again whenever it has waited so many times as long.
SAY_AFTER_SECONDS = 2.0
SAY_AGAIN_TIMES = 5.0


class Patience:
    """Waits with somebody: tells people after some time, and ends at last."""

    def __init__(self, most: float = math.inf, say_after: float = SAY_AFTER_SECONDS) -> None:
        self._start = time.monotonic()
        self._most = most
        self._next = say_after

    @property
    def waited(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._start

    @property
    def is_over(self) -> bool:
        """Whether all of the time is over."""
        return self.waited > self._most

    def pause(self) -> None:
        """Sleeps, the longer the longer it has waited."""
        time.sleep(min(0.2, max(0.01, 0.05 * self.waited)))

    def should_say(self) -> bool:
        """Whether it is time to say who is waited for."""
        if self.waited < self._next:
            return False
        self._next *= SAY_AGAIN_TIMES
        return True


def say(sentence: str) -> None:
    """Tells people at once."""
    print(f"medley: {sentence}", file=sys.stderr, flush=True)
