"""The figures of a report as data and layout for plotly.js. All numbers come from the content,
except sums and units."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from medley_extras.report.collect import Content, DeviceSlot
from medley_extras.report.draw import (
    COMMUNICATION,
    DEVICE_HEIGHT,
    EDGE,
    INK,
    INSIDE,
    MOST_BARS,
    MOST_LINES,
    MUTED,
    ONCE,
    OTHERS,
    PARTS,
    SIZES,
    STACK,
    STAGES,
    STROKE,
    TIMES,
    TRAFFIC,
    WAITS,
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
from medley_extras.report.trace import WAITING, Event, merged

# --- timeline -------------------------------------------------------------------------------------


def timeline(content: Content) -> Figure:
    """Returns one row per device: computation above, communication below. The rows of a measured
    trace are below those of the predicted one."""
    sides = [("", content.predicted)]
    if content.measured is not None:
        sides = [("predicted", content.predicted), ("measured", content.measured)]
    step = max(trace.span for _, trace in sides)
    unit = unit_for(step, TIMES)
    groups: dict[str, list[tuple[float, Event]]] = {}
    slots = [(side, trace, slot) for side, trace in sides for slot in content.slots]
    for row, (_, trace, slot) in enumerate(slots):
        events = trace.of(slot.device)
        for event in merged(e for e in events if e.computes):
            name = slot.name if content.num_stages > 1 else ""
            groups.setdefault(_group(event, name), []).append((row, event))
        for event in (e for e in events if not e.computes and e.end > e.start):
            groups.setdefault(event.category, []).append((row + 0.36, event))
    least = step / 4000 if sum(map(len, groups.values())) > MOST_BARS else 0
    data = []
    for name in sorted(groups, key=lambda name: _order(groups[name][0][1], name)):
        bars = [(y, event) for y, event in groups[name] if event.end - event.start >= least]
        if bars:
            data.append(_bars(name, bars, unit, _bar_color(content, bars[0][1])))
    lines = _between([(side, slot.pipeline) for side, _, slot in slots])
    return draw_figure(
        data,
        height=94 + DEVICE_HEIGHT * len(slots),
        barmode="overlay",
        uniformtext={"mode": "hide", "minsize": 8},
        shapes=lines + _first_difference(content, unit),
        xaxis={
            "title": {"text": f"time in the step [{unit.name}]"},
            "range": [0, step / unit.size],
        },
        yaxis={
            "tickvals": list(range(len(slots))),
            "ticktext": [_device_label(content, slot, side) for side, _, slot in slots],
            "range": [len(slots) - 0.4, -0.5],
            "zeroline": False,
            "showgrid": False,
        },
    )


def _group(event: Event, stage: str) -> str:
    if event.category in ("forward", "backward") and stage:
        return f"stage {stage} {event.category}"
    return "waits" if event.category == WAITING else event.category


def _between(rows: list[tuple[str, int]]) -> list[Figure]:
    """Returns lines between adjacent rows of different pipelines or traces."""
    line = {"color": STROKE, "width": 1}
    pairs = zip(rows, rows[1:], strict=False)
    return [
        {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": y, "y1": y, "line": line}
        for y, (above, below) in ((row + 0.55, pair) for row, pair in enumerate(pairs))
        if above != below
    ]


def _first_difference(content: Content, unit: Unit) -> list[Figure]:
    """Returns frames around the first difference, in the predicted and in the measured row."""
    if content.difference is None or content.difference.first is None:
        return []
    first = content.difference.first
    row = [slot.device for slot in content.slots].index(first.key.device)
    rows = [(row, first.predicted), (row + len(content.slots), first.measured)]
    return [
        {
            "type": "rect",
            "x0": piece.start / unit.size,
            "x1": piece.end / unit.size,
            "y0": y - 0.32,
            "y1": y + 0.32,
            "line": {"color": INK, "width": 2},
        }
        for y, piece in rows
        if piece.end > piece.start
    ]


def _order(event: Event, name: str) -> tuple[int, str]:
    if not event.computes:
        return 4, name
    place = {"forward": 0, "backward": 0, WAITING: 3}.get(event.category, 1)
    return place, name.replace("forward", "a")  # sorts before backward


def _bar_color(content: Content, event: Event) -> str:
    if not event.computes:
        return COMMUNICATION.get(event.category, TRAFFIC)
    if event.category in ("forward", "backward"):
        stage = next(slot.stage for slot in content.slots if slot.device == event.device)
        return color(stage, event.category == "backward")
    return WAITS if event.category == WAITING else ONCE.get(event.category, "#9a9a9a")


def _bars(name: str, bars: list[tuple[float, Event]], unit: Unit, fill: str) -> Figure:
    computes = bars[0][1].computes
    return draw_bars(
        [(event.end - event.start) / unit.size for _, event in bars],
        [y for y, _ in bars],
        {"color": fill, "line": EDGE},
        [event.microbatch for _, event in bars],
        name=name,
        base=[event.start / unit.size for _, event in bars],
        width=0.5 if computes else 0.18,
        hovertext=[hover_text(event) for _, event in bars],
        customdata=[event.device for _, event in bars],
        **INSIDE,
    )


# --- over time ------------------------------------------------------------------------------------


def memory_over_time(content: Content) -> Figure:
    """Returns the live bytes, with a line per device, or per peak if there are many devices."""
    time = unit_for(content.predicted.span, TIMES)
    size = unit_for(max(slot.memory["peak_bytes"] for slot in content.slots), SIZES)
    data = []
    lines = _memory_lines(content)
    for number, slots in enumerate(lines):
        slot = slots[0]
        points = list(content.predicted.memory[slot.device])
        points.append((content.predicted.span, points[-1][1]))
        more = f" and {len(slots) - 1} with its peak" if len(slots) > 1 else ""
        line = draw_line(
            slot.device + more,
            points,
            time,
            size,
            color(slot.stage if content.num_stages > 1 else number),
            f"{safe(slot.device)}: %{{y:.4g}} {size.name} from %{{x:.4g}} {time.name}"
            "<extra></extra>",
        )
        # Lines of one color differ in their dashes.
        place = number // len(STAGES)
        if content.num_stages > 1:
            place = sum(before[0].stage == slot.stage for before in lines[:number])
        line["line"]["dash"] = ["solid", "dash", "dot", "dashdot"][place % 4]
        data.append(line)
    return draw_figure(
        data,
        height=320,
        xaxis={"title": {"text": f"time in the step [{time.name}]"}},
        yaxis={"title": {"text": f"memory [{size.name}]"}, "rangemode": "tozero"},
    )


def _memory_lines(content: Content) -> list[list[DeviceSlot]]:
    """Returns the devices of each line."""
    if len(content.slots) <= MOST_LINES:
        return [[slot] for slot in content.slots]
    found: dict[tuple[int, str, int], list[DeviceSlot]] = {}
    for slot in content.slots:
        found.setdefault((slot.stage, slot.kind, slot.memory["peak_bytes"]), []).append(slot)
    return list(found.values())


# --- by device ------------------------------------------------------------------------------------


def memory_at_peak(content: Content) -> Figure:
    """Draws the memory of each device at its peak, by use."""
    size = unit_for(max(slot.memory["peak_bytes"] for slot in content.slots), SIZES)
    suffix = "_bytes"
    parts = [
        key.removesuffix(suffix)
        for key in content.memory[0]
        if key.endswith(suffix)
        and key not in ("peak_bytes", "available_bytes")
        and "per_microbatch" not in key
    ]
    data = []
    for number, part in enumerate(parts):
        values = [slot.memory[part + suffix] for slot in content.slots]
        if any(values):
            fill = PARTS[number % len(PARTS)]
            data.append(_stacked(content, part, values, size, fill, SIZES))
    return draw_rows(data, len(content.slots), f"memory at the peak [{size.name}]", **STACK)


def shares(content: Content) -> Figure:
    """Returns the rows that each device computes, by micro-batch."""
    data = []
    for number in range(max(len(slot.microbatches) for slot in content.slots)):
        bar = _stacked(
            content,
            f"micro-batch {number}",
            [sum(slot.microbatches[number : number + 1]) for slot in content.slots],
            Unit("rows", 1),
            "",
            [Unit("rows", 1)],
        )
        bar["marker"]["color"] = [color(slot.stage, number % 2 == 0) for slot in content.slots]
        data.append(bar)
    return draw_rows(data, len(content.slots), "rows of a step", showlegend=False, **STACK)


def times(content: Content) -> Figure:
    """Draws how each device spends a step, predicted and measured."""
    sides = [("predicted", content.predicted)]
    if content.measured is not None:
        sides.append(("measured", content.measured))
    unit = unit_for(max(trace.span for _, trace in sides), TIMES)
    slots = content.slots
    devices = [slot.device for slot in slots for _ in sides]
    labels: Any = [slot.device for slot in slots]
    if len(sides) > 1:
        labels = [devices, [name for _ in slots for name, _ in sides]]
    parts: list[tuple[str, str, Callable[[Event], bool]]] = [
        ("forward", STAGES[0][0], lambda event: event.category == "forward"),
        ("backward", STAGES[0][1], lambda event: event.category == "backward"),
        (
            "update and prologue",
            ONCE["update"],
            lambda event: event.category not in ("forward", "backward"),
        ),
    ]
    busy = [[e for e in trace.of(s.device) if e.works] for s in slots for _, trace in sides]
    sums = {
        name: [sum(e.end - e.start for e in events if wanted(e)) for events in busy]
        for name, _, wanted in parts
    }
    spans = [trace.span for _ in slots for _, trace in sides]
    if content.num_pipelines > 1:
        sums["waits for other pipelines"] = [
            slot.simulated["waits_for_pipelines_nanoseconds"] if name == "predicted" else 0
            for slot in slots
            for name, _ in sides
        ]
        parts.append(("waits for other pipelines", OTHERS, lambda event: False))
    sums["waits"] = [
        span - sum(values[row] for values in sums.values()) for row, span in enumerate(spans)
    ]
    data = [
        draw_bars(
            [value / unit.size for value in sums[name]],
            labels,
            {"color": fill},
            [percent(value / span, 0) for value, span in zip(sums[name], spans, strict=True)],
            name=name,
            hovertext=[
                f"{safe(device)}: {name} {said(value, TIMES)}, {percent(value / span)} of the step"
                for device, value, span in zip(devices, sums[name], spans, strict=True)
            ],
            customdata=devices,
            **INSIDE,
        )
        for name, fill in [*((name, fill) for name, fill, _ in parts), ("waits", WAITS)]
        if any(sums[name])
    ]
    return draw_rows(data, len(devices), f"time in a step [{unit.name}]", **STACK)


def _stacked(
    content: Content, name: str, values: list[int], unit: Unit, fill: str, units: list[Unit]
) -> Figure:
    devices = [slot.device for slot in content.slots]
    return draw_bars(
        [value / unit.size for value in values],
        devices,
        {"color": fill, "line": EDGE},
        [said(value, units) if value else "" for value in values],
        name=name,
        hovertext=[
            f"{safe(device)}: {name} {said(value, units)}"
            for device, value in zip(devices, values, strict=True)
        ],
        **INSIDE,
    )


# --- links and strategies -------------------------------------------------------------------------


def traffic(content: Content) -> Figure:
    """Returns the bytes per step on each link."""
    links = content.simulated["links"]
    step = content.simulated["step_nanoseconds"] * 1e-9
    unit = unit_for(max((link["bytes"] for link in links), default=0), SIZES)
    bar = draw_bars(
        [link["bytes"] / unit.size for link in links],
        [link["link"] for link in links],
        {"color": TRAFFIC},
        [f"{percent(link['busy_seconds'] / step)} busy" for link in links],
        textposition="auto",
        hovertext=[
            f"{safe(link['link'])}: {said(link['bytes'], SIZES)}, busy "
            f"{said(link['busy_seconds'] * 1e9, TIMES)} of the step"
            for link in links
        ],
    )
    return draw_rows([bar], len(links), f"traffic in a step [{unit.name}]", row_height=26)


def strategies(content: Content) -> Figure:
    """Returns the steps of this plan and of each strategy's plan."""
    assert content.compared is not None
    rows = [row for row in content.compared["strategies"] if "infeasible" not in row]
    names = ["this plan", *(row["strategy"] for row in rows)]
    steps = [content.simulated["step_nanoseconds"], *(row["step_ns"] for row in rows)]
    best, unit = min(steps), unit_for(max(steps), TIMES)
    bar = draw_bars(
        [step / unit.size for step in steps],
        names,
        {"color": ["#1d74b5", *("#b8c4ce" for _ in rows)]},
        [said(step, TIMES) for step in steps],
        textposition="inside",
        insidetextanchor="start",
        hovertext=[f"{said(step, TIMES)}, {step / best:.2f}x the best" for step in steps],
    )
    figure = draw_rows([bar], len(names), f"predicted step [{unit.name}]")
    bound = content.compared["lower_bound_ns"] / unit.size
    if bound > 0:
        figure["layout"] |= mark(bound, "lower bound")
    return figure


# --- all ------------------------------------------------------------------------------------------


def _device_label(content: Content, slot: DeviceSlot, side: str) -> str:
    text = f"stage {slot.name}, " if content.num_stages > 1 else ""
    text += side or safe(slot.kind)
    return f"{safe(slot.device)}<br><span style='color:{MUTED}'>{text}</span>"
