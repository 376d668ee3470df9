"""metrics.jsonl: one line per step and one per evaluation. Each step occurs once."""

from __future__ import annotations

import contextlib
import json
import math
from collections import deque
from pathlib import Path
from typing import Any

from medley.files import make_folder, unwritable, write_atomically
from medley.run.patience import say

_LINES_KEPT = 8  # more than the first process may have failed to write


class MetricsFile:
    """Lines written by the first process. The others keep the last lines, and continue the file if
    the first process is lost."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "metrics.jsonl"
        self._last: deque[dict[str, Any]] = deque(maxlen=_LINES_KEPT)
        self._has_begun = False  # True once writing has started
        self._found: set[tuple[int, bool]] = set()  # lines written before that

    def begin(self, steps: int) -> None:
        """Keeps the lines of `steps` steps. Raises OSError if the file is not writable."""
        make_folder(self._path.parent)
        try:
            self._begin(until=steps)
        except OSError as error:
            raise unwritable(self._path, error) from None

    def write(self, fields: dict[str, Any], is_first: bool) -> None:
        """Adds a line with a "step". `is_first`: this process writes now."""
        self._last.append(fields)
        is_new = is_first and not self._has_begun
        self._has_begun = is_first
        try:
            if is_new:  # the first process may not have written it yet
                make_folder(self._path.parent)
                self._begin(until=math.inf)
            elif self._has_begun and _kind(fields) not in self._found:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(fields) + "\n")
        except OSError as error:  # a full disk does not end training
            problem = unwritable(self._path, error) if error.errno else error
            say(f"{problem}; training goes on")

    def _begin(self, until: float) -> None:
        """Keeps the lines written up to a step, and appends the missing ones of the last lines."""
        lines = _lines_until(self._path, until)
        self._found = {_kind(line) for line in lines}
        lines += [line for line in self._last if _kind(line) not in self._found]
        write_atomically(self._path, "".join(json.dumps(line) + "\n" for line in lines))
        self._has_begun = True


def _lines_until(path: Path, done: float) -> list[dict[str, Any]]:
    """Returns the lines of a metrics.jsonl up to a step, or none for step 0."""
    if done == 0 or not path.exists():
        return []
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):  # a partial line of a killed process
            if (fields := json.loads(line))["step"] <= done:
                kept.append(fields)
    return kept


def _kind(line: dict[str, Any]) -> tuple[int, bool]:
    return line["step"], "loss" in line
