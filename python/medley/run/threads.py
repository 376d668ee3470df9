"""How threads that wait for messages are scheduled beside those that compute, and until when there
are new ones."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator


def can_start() -> bool:
    """Whether there may be new threads: not when the script has ended, and with it the main one."""
    return threading.main_thread().is_alive()


@contextlib.contextmanager
def patient() -> Iterator[None]:
    """Threads that this one starts inside the block do not interrupt another when they wake: they
    wait for a processor that is free, or for the other's time slice to end.

    For the threads of Gloo. One that is woken while the sender still holds the lock of the
    connection asks for the lock again and again. If it has interrupted the sender, on the only
    processor that there is for both, it asks until its slice or the process's quota is used up.

    Nothing happens where the system does not know this, or the caller has another policy already.
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
    """From now on this thread, and those that it starts, compute only where no other wants to."""
    if hasattr(os, "SCHED_IDLE"):
        _set(os.SCHED_IDLE)


def _set(policy: int) -> bool:
    """Sets the policy of the calling thread; returns whether that is permitted here."""
    try:
        os.sched_setscheduler(0, policy, os.sched_param(0))
    except OSError:
        return False
    return True
