"""Writes the page of the documentation with the result of each public model."""

from __future__ import annotations

import collections
import re
from typing import Any

from benchmarks.zoo import training

_TOP = """# Public models

This page lists which public models Medley trains like PyTorch. `python -m benchmarks.zoo` trains a
small form of each model and writes the page. The [method](../benchmarks/zoo/README.md) has the
limits of *exact* and the models that were not run.

| answer | meaning |
|---|---|
| yes | two training steps give the results of PyTorch, exact to float64 or to float32 |
| no | Medley refuses the model; the reason is in the table of reasons |
| no: wrong, no: crashed | a defect of Medley |
| untested | PyTorch does not build or train the small form; the full model may train |

"""
_AGAIN = """
## Reproduce

`--packages timm` runs one package, `--only llama` one model. The full error of each model is in
[zoo.jsonl](../benchmarks/results/zoo.jsonl).

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
_ANSWERS = {
    training.REFUSED: "no",
    training.WRONG: "no: wrong",
    training.CRASHED: "no: crashed",
    training.NO_PEER: "untested",
}
_REFUSED = "howto/refused.md"
# By class of reason: the errors that belong to it, the first match counts, and the fix.
_REASONS = {
    "branch on values": (
        "a shape or a number depends on the values",
        f"use tensor operations ([fix]({_REFUSED}#shapes-and-branches-that-depend-on-values))",
    ),
    "constant for one batch size": (
        "for one batch size",
        f"compute it from `x.shape[0]` ([fix]({_REFUSED}#rows))",
    ),
    "buffer changes shape": (
        "assigns its buffer",
        f"keep the shape of buffers ([fix]({_REFUSED}#state))",
    ),
    "other inputs": (
        "expected a model of tokens or of images|input_ids|Input language",
        "write a function that returns the model and an example batch",
    ),
    "missing package": ("requires the .* library", "install the package"),
    "no loss": ("returned no loss", f"return a loss ([fix]({_REFUSED}#losses))"),
    "float64": (
        "dtype|without overflow",
        "none for the test, which computes in float64; train the model in float32",
    ),
    "small config": (
        "hf:|Config|_config|rope_parameters|KeyError|Class validation",
        "none for the test: a config of this size is not valid; try the full config",
    ),
    "small sizes": (
        "RuntimeError|batch_size|image size|scaled_dot_product",
        "none for the test: tensor sizes of the small form do not match; try the full config",
    ),
    "other": ("", "read the error in [zoo.jsonl](../benchmarks/results/zoo.jsonl)"),
}


def counts(found: list[dict[str, Any]]) -> str:
    """Returns the number of models of each family by result, as a Markdown table."""
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


def reason(sentence: str) -> str:
    """Returns the class of reason of an error."""
    return next(name for name, (error, _) in _REASONS.items() if re.search(error, sentence))


def _answers(found: list[dict[str, Any]]) -> tuple[str, list[str]]:
    """Returns the models of each family by answer and reason, as a Markdown table, and the reasons
    in it."""
    groups: dict[tuple[str, str, str], list[str]] = collections.defaultdict(list)
    trained = collections.Counter(
        each["family"] for each in found if each["result"] not in _ANSWERS
    )
    for each in found:
        if answer := _ANSWERS.get(each["result"]):
            is_defect = each["result"] in (training.WRONG, training.CRASHED)
            why = "other" if is_defect else reason(each.get("sentence", ""))
            groups[each["family"], answer, why].append(_name(each))
    lines = ["| family | trains | reason | models |", "|---|---|---|---|"]
    for family in sorted({each["family"] for each in found}):
        if trained[family]:
            lines.append(f"| {family} | yes | | {trained[family]} models |")
        lines += [
            f"| {family} | {answer} | {why} | {', '.join(map(_code, sorted(set(names))))} |"
            for (of, answer, why), names in sorted(groups.items())
            if of == family
        ]
    return "\n".join(lines) + "\n", [name for name in _REASONS if name in {k[2] for k in groups}]


def _name(model: dict[str, Any]) -> str:
    """Returns the name of a model; in transformers, the name of its class says enough."""
    names = [model["class"]] if model["family"].startswith("transformers") else []
    return " ".join(filter(None, names or [model["name"], model["class"]]))


def _code(name: str) -> str:
    return f"`{name}`"


def text(found: list[dict[str, Any]]) -> str:
    """Returns the whole page."""
    answers, reasons = _answers(found)
    fixes = [f"| {name} | {_REASONS[name][1]} |\n" for name in reasons]
    return "".join(
        [
            _TOP,
            counts(found),
            "\n## By family\n\nA tested model trains unless this table lists it by name.\n\n",
            answers,
            "\n## Reasons\n\n| reason | fix |\n|---|---|\n",
            *fixes,
            _AGAIN,
        ]
    )
