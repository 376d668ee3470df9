"""A thread that aborts the current operation when other processes end the generation. It runs from
the beginning: the last recovery may follow the end of the script, when no thread can start."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from medley.run import ends

_LOOK_SECONDS = 0.05
_END_SECONDS = 5.0  # for an answer of the store


class Watch:
    """The watch of one process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = threading.Event()
        self._watched: tuple[ends.Store, str, Callable[[], None]] | None = None
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name="medley watch", daemon=True)
        self._thread.start()
        ends.leave_to_the_last(self._end)  # otherwise it would block the exit of the interpreter

    @contextlib.contextmanager
    def over(self, store: ends.Store, key: str, abort: Callable[[], None]) -> Iterator[None]:
        """Calls `abort` if the key is set meanwhile, or if the store is gone."""
        with self._lock:
            self._watched = store, key, abort
        self._begun.set()
        try:
            yield
        finally:
            self._begun.clear()
            with self._lock:
                self._watched = None

    def _end(self) -> None:
        self._has_ended = True
        self._begun.set()
        self._thread.join(_END_SECONDS)

    def _run(self) -> None:
        while self._begun.wait() and not self._has_ended:
            with self._lock:
                self._look()
            time.sleep(_LOOK_SECONDS)

    def _look(self) -> None:
        if self._watched is None:
            return
        store, key, abort = self._watched
        try:
            is_over = store.get(key) is not None
        except OSError:
            is_over = True
        if is_over:
            self._watched = None
            abort()
