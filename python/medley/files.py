"""Files: readers that refuse with an error, writers that are atomic."""

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

_MOST_BYTES = 1 << 28  # more than any of our readers accepts
_MOST_LINKS = 40


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns the content of a file, or the remainder of a pipe such as /dev/stdin. Raises
    ValueError naming a file that cannot be read. Devices, other pipes and files over 256 MiB are
    refused: they may not end."""
    try:
        own = _is_descriptor(Path(path))
        # O_NONBLOCK avoids waiting for a writer of a pipe.
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
    """Yields a file to write to. When the block ends, its content becomes durable and replaces
    `path`. Until then it is a locked file with a random name in the same folder. Unlocked ones,
    left by killed processes, are removed. The target of a symbolic link is replaced. A pipe or
    device, such as /dev/stdout, is written directly. Raises OSError naming `path`."""
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
                with contextlib.suppress(OSError):  # this file system has no locks
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
    """Writes a text atomically, as `whole_file` does."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


def make_folder(folder: str | os.PathLike[str]) -> None:
    """Makes a folder and its parents if they are missing. Raises OSError naming it."""
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(folder, error) from None


def require_writable(folder: str | os.PathLike[str], size: int = 0) -> None:
    """Raises OSError naming the folder if no file of `size` bytes can be made in it. The folder may
    be missing, and is not made."""
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
    """Returns an error that names the file."""
    return OSError(f"{path}: cannot be written: {error.strerror or error}")


def _followed(path: Path) -> Iterator[Path]:
    """Yields a path, and each path that a symbolic link leads to from there."""
    for _ in range(_MOST_LINKS):
        yield path
        if not path.is_symlink():
            return
        path = path.parent / path.readlink()
    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))


def _is_descriptor(path: Path) -> bool:
    """Returns whether a path is a descriptor in /proc/self/fd, whose target may have no name."""
    parents = (str(each.parent.resolve()) for each in _followed(path))
    return any(re.fullmatch(r"/proc/.+/fd", each) for each in parents)


def _is_stream(path: Path) -> bool:
    # LocalFiles::kind() of the core returns the same.
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
                if os.fstat(file.fileno()).st_size > 0:  # an empty file is about to be locked
                    os.unlink(entry.path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
