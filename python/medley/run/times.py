"""How long the parts of a recovery take."""

from __future__ import annotations

import time


class Times:
    """Seconds by cause."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def note(self, cause: str) -> None:
        """All since the last note is for this."""
        now = time.monotonic()
        self.seconds[cause] = now - self._last
        self._last = now
