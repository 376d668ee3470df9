"""Scheduling of threads that wait for messages, and the limit after which no thread can start."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


def can_start() -> bool:
    """Returns whether a thread can start: not after the end of the script and the main thread."""
    return threading.main_thread().is_alive()


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Lets threads started inside the block wake without interrupting another: they wait for a free
    CPU or the end of a time slice.

    It is for the threads of Gloo. A thread woken while the sender holds the lock of the connection
    spins on that lock. If it has interrupted the sender on the only CPU, it spins until its slice
    or the quota of the process is used up.

    It has no effect if the system lacks this policy, or if the caller has set another one.
    """
    known = hasattr(os, "SCHED_BATCH") and os.sched_getscheduler(0) == os.SCHED_OTHER
    if known:
        known = _set(os.SCHED_BATCH)
    try:
        yield
    finally:
        if known:
            _set(os.SCHED_OTHER)


def behind_all_others() -> None:
    """Lets this thread, and those that it starts, use only idle CPU time from now on."""
    if hasattr(os, "SCHED_IDLE"):
        _set(os.SCHED_IDLE)


def _set(policy: int) -> bool:
    """Sets the policy of the calling thread. Returns whether that is permitted here."""
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except OSError:
        return False
    return True
