"""The page of the documentation that says what became of each public model."""

from __future__ import annotations

import collections
from typing import Any

from benchmarks.zoo import training

_TOP = """# Public models

Written by `python -m benchmarks.zoo` from what it found. What is trained, on what, what the words
mean, and which models were not run yet:
[benchmarks/zoo/README.md](../benchmarks/zoo/README.md). Again (`--packages timm` takes one package,
`--only llama` one model):

```
scripts/setup.sh --nightly
PYTHONPATH=python .venv/bin/python -m benchmarks.zoo \\
  --results benchmarks/results/zoo.jsonl --page docs/models.md
```

"""
_COLUMNS = (
    training.EXACT,
    training.EXACT_SINGLE,
    training.REFUSED,
    training.WRONG,
    training.CRASHED,
)
_LONGEST = 400  # of a sentence


def counts(found: list[dict[str, Any]]) -> str:
    """Returns the table of how many models of each family came to which result, as Markdown."""
    lines = [
        f"| family | models | PyTorch trains | {' | '.join(_COLUMNS)} | exact of those |",
        f"|---|---|---|{'---|' * len(_COLUMNS)}---|",
    ]
    families = sorted({each["family"] for each in found})
    for family in [*families, "all"]:
        of = [each for each in found if family in ("all", each["family"])]
        by = collections.Counter(each["result"] for each in of)
        trained = len(of) - by[training.NO_PEER]
        exact = by[training.EXACT] + by[training.EXACT_SINGLE]
        share = f"{100 * exact / trained:.1f} %" if trained else ""
        cells = [family, len(of), trained, *(by[column] for column in _COLUMNS), share]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _rows(found: list[dict[str, Any]], result: str) -> list[str]:
    of = [each for each in found if each["result"] == result]
    return [
        f"| {each['family']} | {' '.join(filter(None, (each['name'], each['class'])))} "
        f"| {each.get('plan', '')} | {_cell(each.get('sentence', ''))} |"
        for each in sorted(of, key=lambda x: (x["family"], x["name"], x["class"]))
    ]


def _cell(sentence: str) -> str:
    cut = sentence if len(sentence) <= _LONGEST else sentence[:_LONGEST] + " ..."
    for mark in "\\|<>*_`[]":
        cut = cut.replace(mark, "\\" + mark)
    return cut


def text(found: list[dict[str, Any]]) -> str:
    """Returns the whole page."""
    parts = [_TOP, counts(found)]
    for result, title in [
        (training.WRONG, "Wrong"),
        (training.CRASHED, "Crashed"),
        (training.REFUSED, "Refused"),
        (training.NO_PEER, "Not trained by PyTorch in their tiny form"),
    ]:
        if rows := _rows(found, result):
            parts.append(
                f"\n## {title}\n\n| family | model | where | what it says |\n|---|---|---|---|\n"
            )
            parts.append("\n".join(rows) + "\n")
    return "".join(parts)
