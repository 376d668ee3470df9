"""Named sizes of a model, with overrides."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

Config = TypeVar("Config")


def make_config(
    kind: type[Config], sizes: dict[str, dict[str, Any]], size: str, overrides: dict[str, Any]
) -> Config:
    """Returns kind(**sizes[size], **overrides). Raises ValueError for unknown sizes and fields."""
    size = str(size)  # "19" is a number on a command line
    if size not in sizes:
        raise ValueError(
            f"{kind.__name__}: unknown size {size!r}; expected one of {', '.join(sizes)}"
        )
    known = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    unknown = sorted(set(overrides) - known)
    if unknown:
        raise ValueError(f"{kind.__name__}: unknown {unknown}; expected some of {sorted(known)}")
    return kind(**{**sizes[size], **overrides})
