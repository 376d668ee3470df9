"""A report on a plan over measured layers: stages instead of devices, no trace, no training."""

from __future__ import annotations

import dataclasses
from html import escape
from pathlib import Path
from typing import Any

from medley.cli.core import ask
from medley.files import read_text
from medley_extras.report.collect import parse_json
from medley_extras.report.draw import (
    INSIDE,
    ONCE,
    PARTS,
    SIZES,
    STACK,
    STAGES,
    TIMES,
    WAITS,
    Figure,
    Unit,
    draw_bars,
    draw_rows,
    percent,
    said,
    samples,
    unit_for,
)
from medley_extras.report.headline import title
from medley_extras.report.page import Head, Section, document, html_table, html_tiles

STANDS_STILL = "#d8cfe6"


@dataclasses.dataclass(frozen=True)
class LayerContent:
    """The content of such a report: results of the core's commands."""

    files: dict[str, str]
    plan: dict[str, Any]
    simulated: dict[str, Any]
    memory: list[dict[str, Any]]
    compared: dict[str, Any] | None = None

    @property
    def summary(self) -> str:
        """The plan in one sentence."""
        devices = sum(row["devices"] for row in self.memory)
        count = len(self.memory)
        stages = "1 stage" if count == 1 else f"{count} stages"
        return (
            f"{self.plan['global_batch']} rows a step on {devices} devices, in "
            f"{self.plan['microbatches']} micro-batches through {stages}."
        )

    @property
    def names(self) -> list[str]:
        """The names of stages."""
        return [f"{row['stage']} on {row['pool']}" for row in self.memory]


def collect_layers(plan: str, layers: str, cluster: str, compare: bool) -> LayerContent:
    """Queries the core about a plan over measured layers."""
    simulated = ask(["simulate", "--layers", layers, cluster, plan])
    entries = parse_json(read_text(plan), plan)
    rows = str(entries["global_batch"])
    return LayerContent(
        {"plan": plan, "layers": layers, "cluster": cluster},
        ask(["explain", plan]),
        simulated,
        ask(["memory", "--layers", layers, cluster, plan]),
        ask(["compare", "--layers", layers, cluster, "--global-batch", rows]) if compare else None,
    )


def layers_page(content: LayerContent, plotly: str) -> str:
    """Returns the whole file. `plotly`: the text of plotly.js."""
    devices = sum(row["devices"] for row in content.memory)
    step = content.simulated["step_nanoseconds"]
    head = title(Path(content.files["layers"]).stem, devices, step)
    tiles = html_tiles(_tiles(content))
    parts = Head(head, f"{content.summary} {_reason(content)}", tiles)
    return document(parts, content.files, layer_sections(content), plotly)


def _reason(content: LayerContent) -> str:
    """Returns the rank of the plan among those of the planner."""
    if content.compared is None:
        return "Run `medley report` with `--compare` to rank this plan among others."
    step = content.simulated["step_nanoseconds"]
    plans = [row for row in content.compared["plans"] if "infeasible" not in row]
    if not plans:
        return ""
    best = min(plans, key=lambda row: row["simulated"]["step_nanoseconds"])
    shortest = best["simulated"]["step_nanoseconds"]
    if shortest < step:
        return (
            f"The plan `{best['name']}` is {step / shortest:.2f}x faster than this plan, "
            f"{said(shortest, TIMES)} per step."
        )
    return f"No plan of {len(plans)} that fit is faster; the next is `{best['name']}`."


def layer_sections(content: LayerContent) -> list[Section]:
    """Returns the sections of the page in order."""
    found = [
        Section(
            "stages",
            "Stages on devices",
            "Stages of measured layers. Replicas divide the rows of a micro-batch, the devices of "
            "a replica its layers.",
            _stages(content),
        ),
        Section(
            "times",
            "Where the time goes",
            "The time of one step. If transfers block (`blocking` of the table), a stage is idle "
            "while it sends or receives. Otherwise it waits for other stages only.",
            figure=_times(content),
        ),
        Section(
            "memory_at_peak",
            "Memory at the peak",
            "The memory of each device of a stage. `fixed` of the table is what a run takes beyond "
            "its layers.",
            figure=_memory(content),
        ),
    ]
    if content.compared is not None:
        found.append(
            Section(
                "strategies",
                "Plans side by side",
                "Plans for the same table, cluster and rows." + _left_out(content.compared),
                _plans(content.compared),
            )
        )
    return found


def _tiles(content: LayerContent) -> list[tuple[str, str]]:
    simulated = content.simulated
    rate = simulated["rows_per_second"]
    fullest = max(content.memory, key=lambda row: row["peak_bytes"] / row["available_bytes"])
    return [
        (said(simulated["step_nanoseconds"], TIMES), "predicted step"),
        (samples(rate), "samples/s, predicted"),
        (percent(simulated["bubble"]), "of their time stages wait (bubble)"),
        (
            said(fullest["peak_bytes"], SIZES),
            f"most memory, of {said(fullest['available_bytes'], SIZES)} on each device of stage "
            f"{fullest['stage']}",
        ),
    ]


def _stages(content: LayerContent) -> str:
    plan, rows = content.plan, []
    of_microbatch = plan["global_batch"] // plan["microbatches"]
    stages = zip(plan["stages"], content.simulated["stages"], content.memory, strict=True)
    for number, (stage, simulated, memory) in enumerate(stages):
        rows.append(
            [
                str(number),
                escape(stage["pool"]),
                f"{stage['layers'][0]} to {stage['layers'][1] - 1}",
                str(stage["replicas"]),
                str(stage["tensor_parallel"]),
                str(of_microbatch // stage["replicas"]),
                str(stage["in_flight"]),
                said(simulated["forward_nanoseconds"], TIMES),
                said(simulated["backward_nanoseconds"], TIMES),
                said(simulated["update_nanoseconds"], TIMES),
                said(memory["peak_bytes"], SIZES),
                said(memory["available_bytes"], SIZES),
            ]
        )
    header = ["stage", "pool", "layers", "replicas", "devices of each", "rows of a replica"]
    header += ["at most in flight", "forward", "backward", "update", "memory", "available"]
    return html_table(header, rows, 3)


def _stack(
    content: LayerContent,
    parts: list[tuple[str, str, list[int]]],
    unit: Unit,
    units: list[Unit],
    title: str,
) -> Figure:
    bars = [
        draw_bars(
            [value / unit.size for value in values],
            content.names,
            {"color": fill},
            [said(value, units) for value in values],
            name=name,
            hovertext=[
                f"{escape(stage)}: {name} {said(value, units)}"
                for stage, value in zip(content.names, values, strict=True)
            ],
            **INSIDE,
        )
        for name, fill, values in parts
        if any(values)
    ]
    return draw_rows(bars, len(content.names), f"{title} [{unit.name}]", **STACK)


def _times(content: LayerContent) -> Figure:
    stages = content.simulated["stages"]
    count = content.plan["microbatches"]
    forward = [count * stage["forward_nanoseconds"] for stage in stages]
    backward = [count * stage["backward_nanoseconds"] for stage in stages]
    computes = [f + b for f, b in zip(forward, backward, strict=True)]
    parts = [
        ("forward", STAGES[0][0], forward),
        ("backward", STAGES[0][1], backward),
        (
            "blocked by transfers",
            STANDS_STILL,
            [s["busy_nanoseconds"] - c for s, c in zip(stages, computes, strict=True)],
        ),
        ("waits (bubble)", WAITS, [stage["idle_nanoseconds"] for stage in stages]),
        ("update", ONCE["update"], [stage["update_nanoseconds"] for stage in stages]),
    ]
    unit = unit_for(content.simulated["step_nanoseconds"], TIMES)
    return _stack(content, parts, unit, TIMES, "a step")


def _memory(content: LayerContent) -> Figure:
    names = {
        "state_bytes": "parameters, gradients, optimizer",
        "saved_bytes": "saved for backward",
        "transient_bytes": "received and sent",
        "fixed_bytes": "fixed",
    }
    parts = [
        (name, PARTS[number], [row[key] for row in content.memory])
        for number, (key, name) in enumerate(names.items())
    ]
    unit = unit_for(max(row["peak_bytes"] for row in content.memory), SIZES)
    return _stack(content, parts, unit, SIZES, "memory at the peak")


def _left_out(compared: dict[str, Any]) -> str:
    return "".join(
        f" Left out: {row['devices']} of {row['pool']}: {row['why']}."
        for row in compared.get("left_out", [])
    )


def _plans(compared: dict[str, Any]) -> str:
    rows = []
    for row in compared["plans"]:
        if "infeasible" in row:
            rows.append([escape(row["name"]), "does not fit", "", "", escape(row["infeasible"])])
            continue
        stages = row["simulated"]["stages"]
        fullest = max(stages, key=lambda stage: stage["peak_bytes"] / stage["available_bytes"])
        rows.append(
            [
                escape(row["name"]),
                said(row["simulated"]["step_nanoseconds"], TIMES),
                str(len(stages)),
                str(row["plan"]["microbatches"]),
                f"{said(fullest['peak_bytes'], SIZES)} of "
                f"{said(fullest['available_bytes'], SIZES)}",
            ]
        )
    return html_table(["plan", "step", "stages", "micro-batches", "most memory"], rows, 1)
