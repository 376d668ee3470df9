"""Notice that a process is to end: with SIGTERM it finishes its step, gives others what it has, and
leaves. Until then they wait for it, so nothing but the step that they have begun is made again."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from medley.run.elastic import EpochError, Member
from medley.run.epochs import PREFIX


class Notice:
    """Of one process. Does nothing where the script handles the signal itself."""

    def __init__(self) -> None:
        self._has_come = False
        self._is_told = False
        self.has_left = False
        is_free = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if is_free and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._has_come:  # whoever asks again does not want to wait
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        self._has_come = True

    def check(self, member: Member) -> None:
        """Between two steps: ends the epoch if notice has come, so that the next one does without
        this process."""
        if self._has_come and not self._is_told:
            self._is_told = True
            member.store.set(f"{PREFIX}leaves/{member.name}", "yes")
            raise EpochError("has got notice, and leaves")

    def leave(self) -> None:
        """Ends the script: the others have what this process had."""
        self.has_left = True
        raise SystemExit(0)
