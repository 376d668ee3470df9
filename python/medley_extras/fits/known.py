"""Traces of models in the user's cache: other GPUs or lengths need no trace and no PyTorch."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import medley
from medley.cli.core import simplified_graph
from medley.files import make_folder, read_text, write_atomically
from medley_extras.fits.facts import Facts, Traces

if TYPE_CHECKING:
    from medley_extras.fits.deep import Deep

_PACKAGES = ("torch", "transformers", "peft", "bitsandbytes")
_MOST = 64  # models


class Known:
    """The model of a config.json, as in Deep. It is traced if `folder` lacks it. Without a folder
    there is no cache."""

    def __init__(self, path: str, lora: str, has_4_bits: bool, folder: Path | None) -> None:
        self._asked = (path, lora, has_4_bits)
        self._file = folder and folder / f"{_key(path, lora, has_4_bits)}.json"
        self._traces: Traces | None = None
        self._captured: dict[str, str] = {}  # with all layers, by length
        self._deep: Deep | None = None
        facts = self._read()
        self._is_new = facts is None
        self.facts = facts or self._traced().facts

    def graph(self, length: int | None) -> str:
        """Returns the text of the training graph at a length of tokens; None for a model without
        tokens."""
        return simplified_graph(self._text(length), f"<{self.facts.kind}>")

    def close(self) -> None:
        """Stores new results, and ends unused work."""
        if self._deep is not None:
            self._deep.close()
        if self._file is not None and self._is_new:
            with contextlib.suppress(OSError):  # the cache is optional
                make_folder(self._file.parent)
                write_atomically(self._file, json.dumps(self._entry()))
                _retire(self._file.parent)
            self._is_new = False

    def _text(self, length: int | None) -> str:
        if str(length) in self._captured:
            return self._captured[str(length)]
        if self._traces is not None and (length is None or length <= self.facts.longest):
            layers = self._traces.layers // self._traces.unit
            return self._traces.stretched.text(layers, length or 0)
        deep = self._traced()
        text = deep.text(length)
        self._is_new = True
        if deep.traces is not None:
            self._traces = deep.traces
        else:
            self._captured[str(length)] = text
        return text

    def _traced(self) -> Deep:
        if self._deep is None:
            from medley_extras.fits.deep import Deep

            self._deep = Deep(*self._asked)
        return self._deep

    def _read(self) -> Facts | None:
        if self._file is None:
            return None
        try:
            entry = json.loads(read_text(self._file))
            traces = entry["traces"]
            if traces is not None:
                traces["lengths"] = tuple(traces["lengths"])
                self._traces = Traces(**traces)
            self._captured = dict(entry["captured"])
            return Facts(**entry["facts"])
        except (ValueError, TypeError, KeyError):  # missing, or changed by another program
            self._traces, self._captured = None, {}
            return None

    def _entry(self) -> dict[str, Any]:
        traces = self._traces and dataclasses.asdict(self._traces)
        facts = dataclasses.asdict(self.facts)
        return {"facts": facts, "traces": traces, "captured": self._captured}


def _key(path: str, lora: str, has_4_bits: bool) -> str:
    """Returns a key of all inputs of a graph: the config, the options, the packages, and the files
    of Medley and of this package."""
    parts: list[object] = [read_text(path), lora, has_4_bits]
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            parts.append((name, importlib.metadata.version(name)))
    core, own = Path(medley.__file__).parent, Path(__file__).parents[1]
    for file in sorted([*core.rglob("*.py"), *core.glob("*.so"), *own.rglob("*.py")]):
        status = file.stat()
        parts.append((str(file), status.st_size, status.st_mtime_ns))
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def _retire(where: Path) -> None:
    files = sorted(where.glob("*.json"), key=lambda each: each.stat().st_mtime)
    for old in files[:-_MOST]:
        old.unlink(missing_ok=True)
