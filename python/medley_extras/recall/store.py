"""Files of measured plans: one JSON file per entry, named by the hash of its key. Needs no PyTorch.

The key lists everything on which a measurement depends. A file of another format or version, of
another key, or with a wrong checksum is not an entry.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from medley.files import make_folder, read_text, write_atomically
from medley.run.patience import say

FORMAT, VERSION = "medley-measured", 1
ENTRIES = 256
BYTES = 64 << 20  # in all entries
_OWN = re.compile(r"\.?[0-9a-f]{64}\.json(\.[0-9a-f]{16}\.part)?")

Key = dict[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Entry:
    """The fastest plan that a race has found."""

    plan: str  # JSON
    name: str  # its strategy
    corrections: list[Any]  # those of device types, those of networks
    measured: float  # seconds per step
    predicted: float
    steps: int  # measured ones
    untried: int  # plans that did not run, and searches that ended early: they were over budget
    allowed: float  # cost of the race in steps of this plan
    when: float  # seconds since 1970
    host: str  # the machine of the first process

    @property
    def sentence(self) -> str:
        """The plan with date and figures."""
        when = datetime.datetime.fromtimestamp(self.when)
        return (
            f"plan of {when:%Y-%m-%d %H:%M} on {self.host}: {self.name}, measured "
            f"{1000 * self.measured:.1f} ms over {self.steps} steps (predicted "
            f"{1000 * self.predicted:.1f} ms)"
        )


def folder(name: str) -> Path | None:
    """Returns a cache folder of the user: $MEDLEY_CACHE/NAME, $XDG_CACHE_HOME/medley/NAME or
    ~/.cache/medley/NAME. Returns None without a home folder."""
    if own := os.environ.get("MEDLEY_CACHE"):
        return Path(own, name)
    with contextlib.suppress(RuntimeError):
        base = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        return Path(base, "medley", name)
    return None


def measured() -> Path | None:
    """Returns the folder of measured plans. Returns None without a home folder, and under `medley
    launch --no-memory`."""
    return None if os.environ.get("MEDLEY_NO_MEMORY") else folder("measured")


def read(where: Path, key: Key) -> Entry | None:
    """Returns the entry of a key, and marks it as used. Returns None without one."""
    path = _path(where, key)
    if not os.path.exists(path):
        return None
    try:
        found, entry = _parsed(read_text(path))
        if found != key:
            raise ValueError("key: found another one")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        say(f"measured plan ignored: {path}: {error}")
        return None
    with contextlib.suppress(OSError):
        os.utime(path)
    return entry


def write(where: Path, key: Key, entry: Entry) -> None:
    """Writes an entry, and removes the least recently used ones over the limits. A folder that
    cannot be written costs only a warning."""
    body = {"format": FORMAT, "version": VERSION, "key": key, "entry": dataclasses.asdict(entry)}
    text = _canonical({**body, "sha256": _hash(_canonical(body))})
    try:
        make_folder(where)
        write_atomically(_path(where, key), text)
        _retire(where)
    except OSError as error:
        say(f"measured plan not kept: {error}")


def entries(where: Path) -> Iterator[tuple[Key, Entry]]:
    """Yields all valid entries with their keys, the most recently used one first."""
    for path, _ in sorted(_files(where), key=lambda each: -each[1].st_mtime):
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            yield _parsed(read_text(path))


def _parsed(text: str) -> tuple[Key, Entry]:
    """Returns key and entry of a file. Raises ValueError, TypeError or KeyError for another one."""
    body = json.loads(text)
    if (kind := [body["format"], body["version"]]) != [FORMAT, VERSION]:
        raise ValueError(f"format, version: found {kind}, expected {[FORMAT, VERSION]}")
    if body.pop("sha256") != _hash(_canonical(body)):
        raise ValueError("sha256: found that of another text")
    return body["key"], Entry(**body["entry"])


def _path(where: Path, key: Key) -> Path:
    return where / f"{_hash(_canonical(key))}.json"


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _files(where: Path) -> list[tuple[Path, os.stat_result]]:
    """Returns our files, also those of writers that were killed. Others may remove some."""
    found = []
    with contextlib.suppress(OSError):
        for each in os.scandir(where):
            if _OWN.fullmatch(each.name):
                with contextlib.suppress(OSError):
                    found.append((Path(each.path), each.stat(follow_symlinks=False)))
    return found


def _retire(where: Path) -> None:
    total = 0
    files = sorted(_files(where), key=lambda each: -each[1].st_mtime)
    for number, (path, status) in enumerate(files):
        total += status.st_size
        if number >= ENTRIES or (total > BYTES and number > 0):
            with contextlib.suppress(OSError):
                path.unlink()
