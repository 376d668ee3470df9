"""TCP connections that notice within seconds when their link is dead.

TCP by itself waits for a quarter of an hour for an answer, and for ever if it has nothing to send.
A connection whose other end is busy, however long, stays as it is: its kernel answers."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

# Of silence: the kernel asks after IDLE, then every INTERVAL, and gives up after DEAD.
IDLE_SECONDS = 4
INTERVAL_SECONDS = 3
DEAD_SECONDS = 12


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """The connections that this process makes inside the block break when their link is dead.

    Nothing happens where the system has no /proc.
    """
    before = _sockets()
    try:
        yield
    finally:
        for inode, descriptor in _sockets().items():
            if inode not in before:
                with contextlib.suppress(OSError):  # closed meanwhile
                    _guard(descriptor)


def _guard(descriptor: int) -> None:
    blocks = os.get_blocking(descriptor)
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        os.set_blocking(descriptor, blocks)  # as it was, whatever socket.setdefaulttimeout() says
        if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
            return
        copy.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, IDLE_SECONDS),
            (socket.TCP_KEEPINTVL, INTERVAL_SECONDS),
            (socket.TCP_KEEPCNT, (DEAD_SECONDS - IDLE_SECONDS) // INTERVAL_SECONDS),
            (socket.TCP_USER_TIMEOUT, 1000 * DEAD_SECONDS),
        ):
            copy.setsockopt(socket.IPPROTO_TCP, option, value)


def _sockets() -> dict[str, int]:
    """Returns the sockets of this process: what identifies each -> its descriptor."""
    found: dict[str, int] = {}
    try:
        names = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for name in names:
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if target.startswith("socket:"):
                found[target] = int(name)
    return found
