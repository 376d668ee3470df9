"""Connection of the processes of a job at a store, served by one of them or by their launcher."""

from __future__ import annotations

import dataclasses
import datetime
import errno
import os
import socket

from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from medley.run.patience import Patience, say

_MOST_NAMES = 8


@dataclasses.dataclass(frozen=True)
class Meeting:
    """The address of the store, and the processes to connect."""

    host: str
    port: int
    interface: str  # "" for no choice
    prefix: str  # prefix of keys in the store
    rank: int
    size: int
    seconds: float  # that each process waits for the others

    @property
    def where(self) -> str:
        """The address for messages."""
        return f"{self.host}:{self.port}" + (f" through {self.interface}" if self.interface else "")


def meet(meeting: Meeting, serves: bool) -> TCPStore:
    """Returns the store once all processes are connected. Raises OSError naming the missing ones,
    and ValueError if two have the same rank."""
    patience = Patience(meeting.seconds)
    store = _serve(meeting) if serves else _connect(meeting, patience)
    _arrive(meeting, PrefixStore(f"{meeting.prefix}meeting", store), patience)
    return store


def _serve(meeting: Meeting) -> TCPStore:
    with _listen(meeting) as listener:
        port = listener.getsockname()[1]
        return TCPStore(
            meeting.host,
            port,
            None,
            True,
            timeout=datetime.timedelta(seconds=meeting.seconds),
            wait_for_workers=False,
            multi_tenant=True,
            master_listen_fd=listener.detach(),
        )


def _listen(meeting: Meeting) -> socket.socket:
    """Listens at this address only, or at all addresses if it is not of this machine, such as that
    of a router."""
    host, port = meeting.host, meeting.port
    family = _resolve(host, port)
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            return socket.create_server(("", port), family=family)
        raise OSError(
            f"rank {meeting.rank}: cannot serve {host}:{port}: {error.strerror}"
        ) from None


def _resolve(host: str, port: int) -> socket.AddressFamily:
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
    except socket.gaierror as error:
        raise OSError(f"environment: MASTER_ADDR: found {host!r}: {error.strerror}") from None


def _connect(meeting: Meeting, patience: Patience) -> TCPStore:
    _resolve(meeting.host, meeting.port)
    while not _is_served(meeting):
        if patience.is_over:
            raise _late(meeting, f"nobody has listened there within {meeting.seconds:g} s")
        if patience.should_say():
            say(
                f"rank {meeting.rank} waits for rank 0 to listen at {meeting.where}, up to "
                f"{meeting.seconds:g} s"
            )
        patience.pause()
    timeout = datetime.timedelta(seconds=meeting.seconds)
    return TCPStore(meeting.host, meeting.port, None, False, timeout, wait_for_workers=False)


def _is_served(meeting: Meeting) -> bool:
    try:
        socket.create_connection((meeting.host, meeting.port), timeout=5).close()
    except OSError:
        return False
    return True


def _arrive(meeting: Meeting, store: Store, patience: Patience) -> None:
    own = f"{socket.gethostname()}:{os.getpid()}"
    first = store.compare_set(str(meeting.rank), "", own).decode()
    if first != own:
        raise ValueError(
            f"environment: RANK: found {meeting.rank}, which another process of the job has, too "
            f"({first})"
        )
    if store.add("count", 1) == meeting.size:
        store.set("all", "here")
    while not store.check(["all"]):
        if patience.is_over:
            missing = _missing(meeting, store)
            raise _late(meeting, f"{_ranks(missing)} had not come after {meeting.seconds:g} s")
        if patience.should_say():
            missing = _missing(meeting, store)
            # The lowest connected rank prints.
            if all(rank in missing for rank in range(meeting.rank)):
                say(
                    f"{meeting.size - len(missing)} of {meeting.size} processes are at "
                    f"{meeting.where}; waiting for {_ranks(missing)}, up to {meeting.seconds:g} s"
                )
        patience.pause()


def _missing(meeting: Meeting, store: Store) -> list[int]:
    return [rank for rank in range(meeting.size) if not store.check([str(rank)])]


def _ranks(ranks: list[int]) -> str:
    some = ", ".join(str(rank) for rank in ranks[:_MOST_NAMES])
    more = len(ranks) - _MOST_NAMES
    return f"rank{'s' if len(ranks) > 1 else ''} {some}" + (f" and {more} more" if more > 0 else "")


def _late(meeting: Meeting, why: str) -> OSError:
    return OSError(
        f"rank {meeting.rank}: the {meeting.size} processes of the job did not meet at "
        f"{meeting.where}: {why}"
    )
