"""The cost of a change of the devices under a rule: figures, each with its source, in JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

SOURCES = ("measured: ", "published: ", "assumed: ")
EVERYTHING = "everything"  # instead of a share: every device loads all its state
MOVED = "moved"  # instead of a share: the moves between the plans before and after
A_STEP = "a step"  # instead of seconds: the step of the plan before
_WORDS = {
    "read_after_loss_share": (EVERYTHING, MOVED),
    "read_after_join_share": (EVERYTHING, MOVED),
    "repeated_seconds": (A_STEP,),
}


@dataclasses.dataclass(frozen=True)
class Figure:
    """A number, or a word for one, with its source."""

    value: float | str
    source: str

    @property
    def number(self) -> float:
        """Returns the value, which is a number."""
        assert not isinstance(self.value, str)
        return self.value


@dataclasses.dataclass(frozen=True)
class Costs:
    """The figures of a rule. Shares are relative to the state: parameters and all optimizer state,
    once. Rates are bytes/s, infinite for null in the file."""

    name: str
    notice_seconds: Figure  # training stops so long before a node leaves
    wait_seconds: Figure  # before anything is started after a loss
    start_after_loss_seconds: Figure  # all that is done before state is read but planning
    start_after_join_seconds: Figure
    written_share: Figure  # share of the state at every change, first of all
    planning_share: Figure  # share of the planning time here, at every change
    read_after_loss_share: Figure  # or EVERYTHING, or MOVED
    read_after_join_share: Figure
    repeated_seconds: Figure  # training undone by a loss; or A_STEP
    node_rate: Figure  # reads and writes of one node
    storage_rate: Figure  # all nodes together

    @staticmethod
    def load(path: Path) -> Costs:
        """Reads a file. Raises ValueError with file and place."""
        raw = json.loads(path.read_text())
        if (raw.get("format"), raw.get("version")) != ("medley-recovery-costs", 1):
            raise ValueError(f"{path}: format, version: expected medley-recovery-costs 1")
        names = [field.name for field in dataclasses.fields(Costs) if field.name != "name"]
        figures = raw.get("figures", {})
        if sorted(figures) != sorted(names):
            raise ValueError(f"{path}: figures: found {sorted(figures)}, expected {sorted(names)}")
        found = {name: _figure(f"{path}: {name}", name, figures[name]) for name in names}
        return Costs(str(raw["name"]), **found)

    def table(self) -> str:
        """Returns the figures as Markdown."""
        lines = [f"| {self.name} | | source |", "|---|---|---|"]
        for field in dataclasses.fields(self):
            figure = getattr(self, field.name)
            if isinstance(figure, Figure):
                shown = figure.value if isinstance(figure.value, str) else f"{figure.value:g}"
                lines.append(f"| {field.name} | {shown} | {figure.source} |")
        return "\n".join(lines)


def _figure(place: str, name: str, raw: dict[str, Any]) -> Figure:
    value, source = raw.get("value"), raw.get("source", "")
    if set(raw) != {"value", "source"} or not source.startswith(SOURCES):
        raise ValueError(f"{place}: found {raw}, expected value and source, {' or '.join(SOURCES)}")
    if name.endswith("_rate") and value is None:
        value = math.inf
    is_word = value in _WORDS.get(name, ())
    least = 1.0 if name.endswith("_rate") else 0.0
    if not is_word and not (isinstance(value, (int, float)) and value >= least):
        raise ValueError(f"{place}: found {value}, expected a number of at least {least:g}")
    return Figure(value, source)
