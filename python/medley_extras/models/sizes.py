"""Named sizes of a model, with overrides."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

Config = TypeVar("Config")


def make_config(
    kind: type[Config], sizes: dict[str, dict[str, Any]], size: str, overrides: dict[str, Any]
) -> Config:
    """Returns kind(**sizes[size], **overrides). Raises ValueError for unknown sizes and fields, and
    for values that a field cannot have."""
    size = str(size)  # "19" is a number on a command line
    if size not in sizes:
        raise ValueError(
            f"{kind.__name__}: unknown size {size!r}; expected one of {', '.join(sizes)}"
        )
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise ValueError(f"{kind.__name__}: unknown {unknown}; expected some of {sorted(known)}")
    for name, value in overrides.items():
        _check(kind.__name__, name, value, getattr(kind, name))
    return kind(**{**sizes[size], **overrides})


def _check(kind: str, name: str, value: Any, default: Any) -> None:
    """Raises ValueError if a value is not of the type of the default, or negative."""
    if default is None:
        return
    wanted = (int, float) if isinstance(default, float) else type(default)
    if not isinstance(value, wanted) or (isinstance(value, (int, float)) and value < 0):
        words = {bool: "true or false", int: "a whole number >= 0", float: "a number >= 0"}
        expected = words.get(type(default), f"a {type(default).__name__}")
        raise ValueError(f"{kind}: {name}: found {value!r}, expected {expected}")
