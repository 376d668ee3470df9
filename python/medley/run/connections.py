"""TCP connections that detect a dead link within seconds. By default TCP waits fifteen minutes for
an answer, and forever without data to send. A connection whose other end is busy stays open: its
kernel answers."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

# Seconds of silence: the kernel probes after IDLE, then every INTERVAL, and gives up after DEAD.
IDLE_SECONDS = 4
INTERVAL_SECONDS = 3
DEAD_SECONDS = 12
_CONNECTED, _LISTENS = "01", "0A"  # in /proc/net/tcp


def guarded() -> AbstractContextManager[None]:
    """Lets connections made by this process inside the block break when their link is dead. Has no
    effect without /proc."""
    return _each_made(_guard)


def copied(copies: list[int]) -> AbstractContextManager[None]:
    """Adds a descriptor of each connection that this process makes inside the block to `copies`.
    Shutting down a copy ends the connection for all its users. Listening sockets are left out: Gloo
    ends the process when one is shut down."""

    def keep(made: socket.socket) -> None:
        if made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN) == 0:
            copies.append(made.detach())

    return _each_made(keep)


@contextlib.contextmanager
def _each_made(use: Callable[[socket.socket], None]) -> Iterator[None]:
    """Calls `use` with a copy of each TCP socket that this process makes inside the block."""
    before = _sockets()
    try:
        yield
    finally:
        for inode, descriptor in _sockets().items():
            if inode not in before:
                with contextlib.suppress(OSError):  # closed meanwhile
                    _with_copy(descriptor, use)


def _with_copy(descriptor: int, use: Callable[[socket.socket], None]) -> None:
    blocks = os.get_blocking(descriptor)
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        os.set_blocking(descriptor, blocks)  # as before, despite setdefaulttimeout()
        if copy.family in (socket.AF_INET, socket.AF_INET6) and copy.type == socket.SOCK_STREAM:
            use(copy)


def _guard(made: socket.socket) -> None:
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, IDLE_SECONDS),
        (socket.TCP_KEEPINTVL, INTERVAL_SECONDS),
        (socket.TCP_KEEPCNT, (DEAD_SECONDS - IDLE_SECONDS) // INTERVAL_SECONDS),
        (socket.TCP_USER_TIMEOUT, 1000 * DEAD_SECONDS),
    ):
        made.setsockopt(socket.IPPROTO_TCP, option, value)


def addresses() -> list[str]:
    """Returns the addresses of this process, "[10.0.0.2]:45209", as Gloo writes them: with the
    bytes of the port in either order. It listens at some, and has connected from the others.
    Returns none without /proc."""
    own = {each.removeprefix("socket:[").removesuffix("]") for each in _sockets()}
    found = []
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with (
            contextlib.suppress(OSError),
            open(f"/proc/self/net/{table}", encoding="ascii") as file,
        ):
            for line in file.readlines()[1:]:
                fields = line.split()
                if fields[3] in (_CONNECTED, _LISTENS) and fields[9] in own:
                    address, _, port = fields[1].partition(":")
                    host = f"[{_address(address, family)}]"
                    found += [f"{host}:{int(each, 16)}" for each in (port, port[2:] + port[:2])]
    return sorted(set(found))


def _address(text: str, family: socket.AddressFamily) -> str:
    # 32-bit words, each in the byte order of this machine.
    data = bytes.fromhex(text)
    words = [data[i : i + 4] for i in range(0, len(data), 4)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return socket.inet_ntop(family, b"".join(words))


def _sockets() -> dict[str, int]:
    """Returns the descriptors of this process's sockets by inode."""
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
