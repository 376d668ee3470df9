"""Notice of the end of a process: after SIGTERM it finishes its step, hands over its state, and
exits. The others wait for it, so at most the current step is repeated."""

from __future__ import annotations

import signal
import threading
from types import FrameType

from medley.run.elastic import GenerationError, Member
from medley.run.generations import PREFIX


class Notice:
    """The notice of one process. Has no effect if the script handles the signal itself."""

    def __init__(self) -> None:
        self._has_come = False
        self._is_reported = False
        self.has_left = False
        is_free = signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        if is_free and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._has_come:  # a second signal ends it immediately
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.raise_signal(signal.SIGTERM)
        self._has_come = True

    def check(self, member: Member) -> None:
        """Ends the generation between two steps if notice has come. The next one excludes this
        process."""
        if self._has_come and not self._is_reported:
            self._is_reported = True
            member.store.set(f"{PREFIX}leaves/{member.name}", "yes")
            raise GenerationError("has got notice, and leaves")

    def leave(self) -> None:
        """Ends the script: the others have the state of this process."""
        self.has_left = True
        raise SystemExit(0)
