"""Files: read or refused by name, written whole or not at all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def read_text(path: str | os.PathLike[str]) -> str:
    """Returns what is in a file. Raises ValueError naming the one that cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not a text"
        raise ValueError(f"{path}: cannot be read: {reason}") from None


@contextlib.contextmanager
def whole_file(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a temporary name to write to; what is there at the end becomes durable, then `path`.

    Raises OSError naming `path` if it cannot be written.
    """
    target = Path(path)
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        try:
            yield part
            _sync(part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
        _sync(target.resolve().parent)
    except OSError as error:
        raise OSError(f"{path}: cannot be written: {error.strerror}") from None


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Writes a text as `whole_file` does."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8")


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
