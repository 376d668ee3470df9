"""Files: read or refused by name, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_MOST_BYTES = 1 << 28  # more than any reader of ours takes
_MOST_LINKS = 40


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns what is in a file, or what a pipe like /dev/stdin still has.

    Raises ValueError naming the one that cannot be read: also devices and other pipes, which may
    not end, and what is larger than any reader takes.
    """
    try:
        own = _is_descriptor(Path(path))
        # Waits for nobody who writes to a pipe.
        with open(os.open(path, os.O_RDONLY | (0 if own else os.O_NONBLOCK)), "rb") as file:
            status = os.fstat(file.fileno())
            if not own and not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                kind = "pipe" if stat.S_ISFIFO(status.st_mode) else "device"
                raise ValueError(f"{path}: found a {kind}, expected a file")
            data = b"" if status.st_size > _MOST_BYTES else file.read(_MOST_BYTES + 1)
        size = max(status.st_size, len(data))
        if size > _MOST_BYTES:
            raise ValueError(f"{path}: found {size} bytes or more, expected at most {_MOST_BYTES}")
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise ValueError(f"{path}: cannot be read: {reason}") from None


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Gives a file to write to; what is in it at the end becomes durable, then `path`.

    Until then it has a random name beside `path`, and is locked: what others, since killed, have
    left there without a lock is removed. A symbolic link stays, and the file that it leads to is
    replaced. What is no file (/dev/stdout, a pipe) is written to. Raises OSError naming `path`.
    """
    try:
        if _is_stream(Path(path)):
            with open(os.open(path, os.O_WRONLY | os.O_APPEND), "wb") as stream:
                yield stream
            return
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        *_, target = _followed(Path(path))
        _remove_leftovers(target)
        part = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}.part")
        with open(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), "wb") as file:
            try:
                with contextlib.suppress(OSError):  # a file system without locks
                    fcntl.flock(file, fcntl.LOCK_EX)
                with contextlib.suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), stat.S_IMODE(os.stat(target).st_mode))
                yield file
                file.flush()
                os.fsync(file.fileno())
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
        _sync(target.parent)
    except OSError as error:
        raise unwritable(path, error) from None


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text as `whole_file` does."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Makes a folder and its parents where they are not there. Raises OSError naming it."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None


def require_writable(folder: str | os.PathLike[str], size: int = 0) -> None:
    """Raises OSError naming a folder in which no file of `size` bytes can be made.

    The folder need not be there yet, and is not made.
    """
    at = Path(folder)
    while not at.exists() and at != at.parent:
        at = at.parent
    try:
        if not at.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        probe = at / f".{secrets.token_hex(8)}.part"
        try:
            probe.write_bytes(b"\0")
        finally:
            probe.unlink(missing_ok=True)
        free = shutil.disk_usage(at).free
    except OSError as error:
        raise unwritable(folder, error) from None
    if free < size:
        raise OSError(f"{folder}: found {free} free bytes, expected at least {size}")


def unwritable(path: str | os.PathLike[str], error: OSError) -> OSError:
    """Returns the error that says which file it was."""
    return OSError(f"{path}: cannot be written: {error.strerror or error}")


def _followed(path: Path) -> Iterator[Path]:
    """Yields a path, and each that a symbolic link leads to from there."""
    for _ in range(_MOST_LINKS):
        yield path
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _is_descriptor(path: Path) -> bool:
    """Links of /proc/self/fd lead to what a process has open, which may have no name."""
    parents = (str(each.parent.resolve()) for each in _followed(path))
    return any(re.fullmatch(r"/proc/.+/fd", each) for each in parents)


def _is_stream(path: Path) -> bool:
    # The core's LocalFiles::kind() says the same.
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if stat.S_ISDIR(status.st_mode):
        return False
    return not stat.S_ISREG(status.st_mode) or _is_descriptor(path)


def _remove_leftovers(target: Path) -> None:
    ours = re.compile(re.escape(f".{target.name[:200]}.") + r"[0-9a-f]{16}\.part")
    for entry in os.scandir(target.parent):
        if ours.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
            with contextlib.suppress(OSError), open(entry.path, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.fstat(file.fileno()).st_size > 0:  # an empty one is about to be locked
                    os.unlink(entry.path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
