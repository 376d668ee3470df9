"""A folder as shared storage after one link: reads and writes wait for their turn at the link's
rate."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

PIECE = 256 << 10  # bytes; several readers alternate after each


class SharedStorage:
    """Files in a folder, each written atomically. All objects of one folder, in any process, share
    the link and its rate in both directions."""

    def __init__(
        self,
        folder: Path,
        bytes_per_second: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`clock` is one for all processes."""
        if bytes_per_second <= 0:
            raise ValueError(f"storage: found {bytes_per_second:g} bytes/s, expected more than 0")
        self._folder = folder
        self._rate = bytes_per_second
        self._clock = clock
        self._sleep = sleep
        self.moved = 0  # bytes over the link, of this object
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, data: bytes) -> None:
        """Writes a file, durably, in place of an older one."""
        path = self._folder / name
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        with part.open("wb") as file:
            for first in range(0, len(data), PIECE):
                piece = data[first : first + PIECE]
                self._wait(len(piece))
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)

    def read(self, name: str) -> bytes:
        """Returns a file. Raises FileNotFoundError."""
        with (self._folder / name).open("rb") as file:
            return b"".join(self._pieces(iter(lambda: file.read(PIECE), b"")))

    def has(self, name: str) -> bool:
        """Returns whether a file exists. The query is free."""
        return (self._folder / name).exists()

    def _pieces(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._wait(len(piece))
            yield piece

    def _wait(self, count: int) -> None:
        """Waits until the link, in turn, has carried this many bytes."""
        with (self._folder / ".link").open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            free = float(file.read() or "0")
            end = max(free, self._clock()) + count / self._rate
            file.truncate(0)
            file.write(repr(end))
        self.moved += count
        left = end - self._clock()
        if left > 0:
            self._sleep(left)
