"""The figures of a report on pipelines: layers, micro-batches in flight, gradient sums."""

from __future__ import annotations

from typing import Any

from medley_extras.report.collect import Content
from medley_extras.report.draw import (
    COMMUNICATION,
    EDGE,
    INSIDE,
    MUTED,
    SIZES,
    TIMES,
    Figure,
    Unit,
    color,
    draw_bars,
    draw_figure,
    draw_line,
    draw_rows,
    hover_text,
    mark,
    percent,
    safe,
    said,
    unit_for,
)
from medley_extras.report.trace import in_flight, merged


def pipelines(content: Content) -> Figure:
    """Returns the layers of each stage, with a row per pipeline."""
    data = []
    for stage, name in enumerate(content.stage_names):
        first, _, last = content.explained["stages"][stage]["layers"].partition("-")
        begin, end = int(first), int(last or first) + 1
        slots = [slot for slot in content.slots if slot.stage == stage]
        kinds = ", ".join(
            f"{sum(slot.kind == kind for slot in slots)} {kind}"
            for kind in sorted({slot.kind for slot in slots})
        )
        bar = draw_bars(
            [end - begin],
            [_pipeline_label(content, slots[0].pipeline)],
            {"color": color(stage, backward=False), "line": {"color": color(stage), "width": 1}},
            [f"{name}: {safe(kinds)}"],
            name=f"stage {name}",
            base=[begin],
            hovertext=[
                f"stage {name}, layers {begin}-{end - 1}<br>"
                + "<br>".join(safe(slot.device) for slot in slots)
            ],
            **INSIDE,
        )
        data.append(bar)
    figure = draw_rows(data, content.num_pipelines, "layers", row_height=56, barmode="overlay")
    figure["layout"]["showlegend"] = False
    return figure


def _pipeline_label(content: Content, pipeline: int) -> str:
    row = content.explained["pipelines"][pipeline]
    last = row["first_row"] + row["rows"] - 1
    return (
        f"pipeline {pipeline}<br><span style='color:{MUTED}'>rows {row['first_row']}-{last}</span>"
    )


def syncs(content: Content) -> Figure:
    """Returns the end of the step: the last backward of each stage, and the gradient syncs
    (gradient sync between pipelines) overlapped with it."""
    found = content.simulated["gradient_syncs"]
    span = content.predicted.span
    unit = unit_for(span, TIMES)
    backward = []
    for stage in range(content.num_stages):
        first = next(slot for slot in content.slots if slot.stage == stage)
        events = merged(e for e in content.predicted.of(first.device) if e.category == "backward")
        backward.append(events)
    done = max((event.end for events in backward for event in events), default=0)
    begin = min((sync["begins_nanoseconds"] for sync in found), default=0)
    begin = max(0, begin - (span - begin) // 3)
    data = [
        draw_bars(
            [(event.end - event.start) / unit.size for event in events],
            [f"stage {content.stage_names[stage]} backward"] * len(events),
            {"color": color(stage), "line": EDGE},
            [event.microbatch for event in events],
            name=f"stage {content.stage_names[stage]} backward",
            base=[event.start / unit.size for event in events],
            hovertext=[hover_text(event) for event in events],
            **INSIDE,
        )
        for stage, events in enumerate(backward)
    ]
    data.append(_gradient_sync_bars(found, unit))
    lines = list(dict.fromkeys(y for bars in data for y in bars["y"]))
    figure = draw_rows(data, len(lines), f"time in the step [{unit.name}]", barmode="overlay")
    figure["layout"]["showlegend"] = False
    figure["layout"]["xaxis"]["range"] = [begin / unit.size, span / unit.size]
    figure["layout"] |= mark(done / unit.size, "last backward ends")
    return figure


def _gradient_sync_bars(found: list[dict[str, Any]], unit: Unit) -> Figure:
    """Returns the gradient syncs, with those of the same stages in one row."""
    return draw_bars(
        [(r["ends_nanoseconds"] - r["begins_nanoseconds"]) / unit.size for r in found],
        ["gradient sync " + " + ".join(sync["stages"]) for sync in found],
        {"color": COMMUNICATION["gradient_sync"], "line": EDGE},
        ["" for _ in found],
        name="gradient_syncs",
        base=[sync["begins_nanoseconds"] / unit.size for sync in found],
        hovertext=[_gradient_sync_hover(sync) for sync in found],
    )


def _gradient_sync_hover(sync: dict[str, Any]) -> str:
    takes = sync["ends_nanoseconds"] - sync["begins_nanoseconds"]
    overlapped = sync["overlapped_nanoseconds"] / takes if takes else 1
    overlaps = ", ".join(sync["overlaps"])
    return (
        f"<b>{safe(sync['gradient_sync'])}</b><br>{sync['parameters']} parameters, "
        f"{said(sync['bytes'], SIZES)} over {safe(sync['link'])}<br>"
        f"{said(takes, TIMES)}, {percent(overlapped, 0)} of it overlapped"
        + (f" by backward of {overlaps}" if overlaps else "")
    )


def in_flight_over_time(content: Content) -> Figure:
    """Returns the micro-batches in flight, with a line per stage and the pipelines stacked."""
    unit = unit_for(content.predicted.span, TIMES)
    data = []
    for stage, name in enumerate(content.stage_names):
        first = next(slot for slot in content.slots if slot.stage == stage)
        points = in_flight(content.predicted.of(first.device))
        points.append((content.predicted.span, points[-1][1]))
        most = max(count for _, count in points)
        line = draw_line(
            f"stage {name}: at most {most}",
            points,
            unit,
            Unit("", 1),
            color(stage),
            f"stage {name}: %{{y}} in flight from %{{x:.4g}} {unit.name}<extra></extra>",
        )
        data.append({**line, "yaxis": f"y{first.pipeline + 1}"})
    count = content.num_pipelines
    axes = {
        _axis("yaxis", pipeline): {
            "title": {"text": f"pipeline {pipeline}" if count > 1 else "micro-batches"},
            "domain": [1 - (pipeline + 0.85) / count, 1 - pipeline / count],
            "rangemode": "tozero",
            "dtick": _tick(content, pipeline),
        }
        for pipeline in range(count)
    }
    return draw_figure(
        data,
        height=120 + 120 * count,
        xaxis={
            "title": {"text": f"time in the step [{unit.name}]"},
            "anchor": _axis("y", count - 1),  # below the last one
        },
        **axes,
    )


def _axis(name: str, number: int) -> str:
    return name if number == 0 else f"{name}{number + 1}"


def _tick(content: Content, pipeline: int) -> int:
    """Returns the interval of about eight grid lines."""
    most = max(len(s.microbatches) for s in content.slots if s.pipeline == pipeline)
    return max(1, most // 8)
