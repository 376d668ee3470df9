"""The content of a report: results of the core's commands, each run once."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medley.cli.core import ask
from medley.files import read_text
from medley_extras.report import raced, trace
from medley_extras.report.difference import Difference, compare
from medley_extras.report.trace import Trace


@dataclasses.dataclass(frozen=True)
class DeviceSlot:
    """A device of the plan, in a stage."""

    device: str
    stage: int  # counted over all pipelines
    name: str  # stage name: "1", or with several pipelines "0/1"
    pipeline: int
    kind: str
    rows: int
    microbatches: list[int]  # rows of each
    simulated: dict[str, Any]  # from `medley simulate --json`
    memory: dict[str, Any]  # from `medley memory --json`


@dataclasses.dataclass(frozen=True)
class Content:
    """The content of a report."""

    files: dict[str, str]  # path by content
    plan: dict[str, Any]
    explained: dict[str, Any]
    simulated: dict[str, Any]
    memory: list[dict[str, Any]]
    predicted: Trace
    compared: dict[str, Any] | None = None
    measured: Trace | None = None
    model: str = "a model"
    race: dict[str, Any] | None = None

    @functools.cached_property
    def difference(self) -> Difference | None:
        """The difference of the measured step from the predicted one."""
        return compare(self.predicted, self.measured) if self.measured is not None else None

    @functools.cached_property
    def slots(self) -> list[DeviceSlot]:
        """The devices by stage, in the order of the plan."""
        simulated = {row["device"]: row for row in self.simulated["devices"]}
        memory = {row["device"]: row for row in self.memory}
        return [
            DeviceSlot(
                row["device"],
                number,
                self.stage_names[number],
                self._places[number][0],
                simulated[row["device"]]["device_type"],
                row["rows"],
                row["microbatches"],
                simulated[row["device"]],
                memory[row["device"]],
            )
            for number, stage in enumerate(self.explained["stages"])
            for row in stage["devices"]
        ]

    @property
    def num_stages(self) -> int:
        """The number of stages of all pipelines."""
        return len(self.explained["stages"])

    @property
    def num_pipelines(self) -> int:
        """The number of pipelines of the plan."""
        return self._places[-1][0] + 1

    @functools.cached_property
    def stage_names(self) -> list[str]:
        """The name of each stage, as in the core's tables."""
        several = self.num_pipelines > 1
        return [f"{p}/{s}" if several else str(s) for p, s in self._places]

    def stages_of(self, pipeline: int) -> list[int]:
        """Returns the stages of a pipeline, counted over all."""
        return [number for number, (p, _) in enumerate(self._places) if p == pipeline]

    @functools.cached_property
    def _places(self) -> list[tuple[int, int]]:
        """The pipeline of each stage, and its number there."""
        if "pipelines" not in self.explained:
            return [(0, number) for number in range(self.num_stages)]
        return [
            (pipeline["pipeline"], number)
            for pipeline in self.explained["pipelines"]
            for number in range(pipeline["stages"])
        ]


def model_of(graph: str) -> str:
    """Returns the name of the model in the text of a graph."""
    found = re.search(r'^graph "((?:[^"\\]|\\.)+)"$', graph[:10_000], re.MULTILINE)
    return found[1] if found else "a model"


def parse_json(text: str, path: str) -> Any:
    """Returns the value of a JSON text. Raises ValueError naming the file."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def collect(
    plan: str,
    graph: str,
    cluster: str,
    profile: str = "",
    compare: bool = False,
    traces: Sequence[str | os.PathLike[str]] = (),
    race: str = "",
) -> Content:
    """Queries the core about a plan. `traces` and `race` are files of a run."""
    results = raced.check(parse_json(read_text(race), race), race) if race else None
    measured = trace.read(traces) if traces else None  # before slower work
    costs = ["--profile", profile] if profile else []
    with tempfile.TemporaryDirectory(prefix="medley_report_") as folder:
        path = Path(folder) / "trace.json"
        simulated = ask(["simulate", graph, cluster, plan, *costs, "--trace", str(path)])
        predicted = trace.parse(read_text(path), str(path))
    entries = parse_json(read_text(plan), plan)
    rows = str(entries["global_batch"])
    files = {"plan": plan, "graph": graph, "cluster": cluster}
    content = Content(
        files | ({"profile": profile} if profile else {}),
        entries,
        ask(["explain", plan, "--graph", graph, "--cluster", cluster, *costs]),
        simulated,
        ask(["memory", graph, cluster, plan]),
        predicted,
        ask(["compare", graph, cluster, "--global-batch", rows, *costs]) if compare else None,
        measured,
        model_of(read_text(graph)),
        results,
    )
    if measured is not None:
        _check_devices(content, measured, ", ".join(str(path) for path in traces))
    return content


def _check_devices(content: Content, measured: Trace, file: str) -> None:
    expected = [slot.device for slot in content.slots]
    found = sorted({event.device for event in measured.events})
    missing = [device for device in expected if device not in found]
    others = [device for device in found if device not in expected]
    if missing or others:
        raise ValueError(
            f"{file}: found events of {', '.join(found) or 'no device'}, expected "
            f"{', '.join(expected)}: a run of this plan with trace=True; each process of a "
            "run writes its own trace, give all of them"
        )
    for device in expected:
        calls, planned = (
            {event.name for event in each.of(device) if event.microbatch}
            for each in (measured, content.predicted)
        )
        if calls != planned:
            raise ValueError(
                f"{file}: found {len(calls)} forward and backward calls of {device}, expected "
                f"the {len(planned)} of this plan: a trace of another plan"
            )
