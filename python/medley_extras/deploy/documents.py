"""Writes YAML documents of mappings, lists, strings, numbers and booleans."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Words that YAML reads as something else than a string, and strings that need no quotes.
_OTHER = re.compile(r"(?i)(y|n|yes|no|on|off|true|false|null|~|[-+.\d].*)")
_PLAIN = re.compile(r"[\w/$.][\w/$.+@=:-]*")


def dump(documents: Sequence[Mapping[str, Any]]) -> str:
    """Returns the documents, each after a line `---` but the first."""
    return "---\n".join("".join(f"{line}\n" for line in _lines(each)) for each in documents)


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _entry(f"{_scalar(key)}:", inner, "  ")
    else:
        for inner in value:
            yield from _item(inner)


def _item(value: Any) -> Iterator[str]:
    if isinstance(value, (Mapping, list)) and value:
        for number, line in enumerate(_lines(value)):
            yield ("  " if number else "- ") + line
    else:
        yield from _entry("-", value, "  ")


def _entry(head: str, value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, (Mapping, list)) and value:
        yield head
        for line in _lines(value):
            yield indent + line
    elif isinstance(value, str) and "\n" in value:
        yield f"{head} |" + ("" if value.endswith("\n") else "-")
        for line in value.splitlines():
            yield (indent + line).rstrip()
    else:
        yield f"{head} {_scalar(value)}"


def _scalar(value: Any) -> str:
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value) and not _OTHER.fullmatch(value)
    if is_plain and not value.endswith(":"):
        return str(value)
    return json.dumps(value, ensure_ascii=False)
