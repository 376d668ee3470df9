"""The figures of a report, as what plotly.js draws: data and layout. Numbers come from the content;
nothing is computed here but sums and units."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from medley.report.collect import Content
from medley.report.trace import WAITING, Event, Trace, in_flight, merged

Figure = dict[str, Any]

# Of a stage: its forward calls, its backward calls.
STAGES = [
    ("#8ecae6", "#1d74b5"),
    ("#ffc98b", "#d97706"),
    ("#a8ddb5", "#2c8a4b"),
    ("#f4a6a6", "#c23b3b"),
    ("#cbb7e8", "#6b46b0"),
    ("#e3c2a1", "#8a5a2b"),
    ("#f5b5dc", "#b83289"),
    ("#c9d17a", "#7c8517"),
]
ONCE = {"prologue": "#c4c4c4", "update": "#7d7d7d"}  # what is done once a step
WAITS = "#eeeeee"
KINDS = ["#14b8a6", "#a855f7", "#eab308", "#ef4444", "#0ea5e9", "#84cc16"]  # of communication
PARTS = ["#1d74b5", "#8ecae6", "#2c8a4b", "#a8ddb5", "#d97706"]  # of memory
PARTS += ["#ffc98b", "#6b46b0", "#14b8a6", "#b0b0b0"]
MOST_BARS = 20_000
DEVICE_HEIGHT = 46
EDGE = {"color": "white", "width": 0.5}  # of bars beside each other
INSIDE: Figure = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
STACK: Figure = {"barmode": "stack", "uniformtext": {"mode": "hide", "minsize": 8}}


class Unit(NamedTuple):
    """What figures are given in: so many of the exact ones (nanoseconds, bytes) are one."""

    name: str
    size: float


TIMES = [Unit("s", 1e9), Unit("ms", 1e6), Unit("us", 1e3), Unit("ns", 1)]
SIZES = [Unit("GiB", 2.0**30), Unit("MiB", 2.0**20), Unit("KiB", 2.0**10), Unit("B", 1)]


def unit_for(largest: float, units: list[Unit]) -> Unit:
    """Returns the unit in which the largest value is at least 1."""
    return next((unit for unit in units if largest >= unit.size), units[-1])


def said(value: float, units: list[Unit]) -> str:
    """Returns a value with its unit: 1.35 ms."""
    unit = unit_for(abs(value), units)
    return f"{value / unit.size:.3g} {unit.name}"


def color(stage: int, backward: bool = True) -> str:
    """Returns the color of a stage."""
    return STAGES[stage % len(STAGES)][backward]


# --- timeline -------------------------------------------------------------------------------------


def timeline(content: Content, trace: Trace) -> Figure:
    """One row per device: above what it computes, below what it sends and receives."""
    step = max(trace.span, content.predicted.span)
    unit = unit_for(step, TIMES)
    groups: dict[str, list[tuple[float, Event]]] = {}
    for row, seat in enumerate(content.seats):
        events = trace.of(seat.device)
        for event in merged(e for e in events if e.computes):
            groups.setdefault(_group(event, seat.stage, content.num_stages), []).append(
                (row, event)
            )
        for event in (e for e in events if not e.computes and e.end > e.start):
            groups.setdefault(event.category, []).append((row + 0.36, event))
    least = step / 4000 if sum(map(len, groups.values())) > MOST_BARS else 0
    kinds = sorted({e.category for bars in groups.values() for _, e in bars if not e.computes})
    data = []
    for name in sorted(groups, key=lambda name: _order(groups[name][0][1], name)):
        bars = [(y, event) for y, event in groups[name] if event.end - event.start >= least]
        if bars:
            data.append(_bars(name, bars, unit, _bar_color(content, bars[0][1], kinds)))
    devices = [seat.device for seat in content.seats]
    return _figure(
        data,
        height=110 + DEVICE_HEIGHT * len(devices),
        barmode="overlay",
        uniformtext={"mode": "hide", "minsize": 8},
        xaxis={
            "title": {"text": f"time in the step [{unit.name}]"},
            "range": [0, step / unit.size],
        },
        yaxis={
            "tickvals": list(range(len(devices))),
            "ticktext": _device_labels(content),
            "range": [len(devices) - 0.4, -0.5],
            "zeroline": False,
            "showgrid": False,
        },
    )


def _group(event: Event, stage: int, num_stages: int) -> str:
    if event.category in ("forward", "backward") and num_stages > 1:
        return f"stage {stage} {event.category}"
    return "waits" if event.category == WAITING else event.category


def _order(event: Event, name: str) -> tuple[int, str]:
    if not event.computes:
        return 4, name
    place = {"forward": 0, "backward": 0, WAITING: 3}.get(event.category, 1)
    return place, name.replace("forward", "a")  # before backward


def _bar_color(content: Content, event: Event, kinds: list[str]) -> str:
    if not event.computes:
        return KINDS[kinds.index(event.category) % len(KINDS)]
    if event.category in ("forward", "backward"):
        stage = next(seat.stage for seat in content.seats if seat.device == event.device)
        return color(stage, event.category == "backward")
    return WAITS if event.category == WAITING else ONCE.get(event.category, "#9a9a9a")


def _bars(name: str, bars: list[tuple[float, Event]], unit: Unit, fill: str) -> Figure:
    computes = bars[0][1].computes
    return _bar(
        [(event.end - event.start) / unit.size for _, event in bars],
        [y for y, _ in bars],
        {"color": fill, "line": EDGE},
        [event.microbatch for _, event in bars],
        name=name,
        base=[event.start / unit.size for _, event in bars],
        width=0.5 if computes else 0.18,
        hovertext=[_hover(event) for _, event in bars],
        customdata=[event.device for _, event in bars],
        **INSIDE,
    )


def _hover(event: Event) -> str:
    lines = [f"<b>{_safe(event.name)}</b>", _safe(event.device)]
    if event.category == WAITING:
        lines[0] = f"waits for <b>{_safe(event.name)}</b>"
    elif event.microbatch:
        lines[0] = f"<b>{event.category}</b> of micro-batch {event.microbatch}"
    elif not event.computes:
        lines.insert(1, f"{event.category}, {said(event.bytes, SIZES)} of this device")
    lines.append(
        f"from {said(event.start, TIMES)} to {said(event.end, TIMES)}: "
        f"{said(event.end - event.start, TIMES)}"
    )
    return "<br>".join(lines)


# --- over time ------------------------------------------------------------------------------------


def in_flight_over_time(content: Content) -> Figure:
    """Micro-batches in flight, a line per stage."""
    unit = unit_for(content.predicted.span, TIMES)
    data = []
    for stage in range(content.num_stages):
        first = next(seat for seat in content.seats if seat.stage == stage)
        points = in_flight(content.predicted.of(first.device))
        points.append((content.predicted.span, points[-1][1]))
        most = max(count for _, count in points)
        data.append(
            _line(
                f"stage {stage}: at most {most}",
                points,
                unit,
                Unit("", 1),
                color(stage),
                f"stage {stage}: %{{y}} in flight from %{{x:.4g}} {unit.name}<extra></extra>",
            )
        )
    return _figure(
        data,
        height=240,
        xaxis={"title": {"text": f"time in the step [{unit.name}]"}},
        yaxis={"title": {"text": "micro-batches"}, "rangemode": "tozero", "dtick": 1},
    )


def memory_over_time(content: Content) -> Figure:
    """Bytes alive, a line per device."""
    time = unit_for(content.predicted.span, TIMES)
    size = unit_for(max(seat.memory["peak_bytes"] for seat in content.seats), SIZES)
    data = []
    for number, seat in enumerate(content.seats):
        points = list(content.predicted.memory[seat.device])
        points.append((content.predicted.span, points[-1][1]))
        line = _line(
            seat.device,
            points,
            time,
            size,
            color(seat.stage if content.num_stages > 1 else number),
            f"{_safe(seat.device)}: %{{y:.4g}} {size.name} from %{{x:.4g}} {time.name}"
            "<extra></extra>",
        )
        line["line"]["dash"] = ["solid", "dash", "dot", "dashdot"][_place(content, number) % 4]
        data.append(line)
    return _figure(
        data,
        height=320,
        xaxis={"title": {"text": f"time in the step [{time.name}]"}},
        yaxis={"title": {"text": f"memory [{size.name}]"}, "rangemode": "tozero"},
    )


def _place(content: Content, number: int) -> int:
    """Of a device in its stage, so that lines of one color differ."""
    if content.num_stages == 1:
        return number // len(STAGES)
    stage = content.seats[number].stage
    return sum(seat.stage == stage for seat in content.seats[:number])


def _line(
    name: str,
    points: Iterable[tuple[int, int]],
    x: Unit,
    y: Unit,
    stroke: str,
    hover: str,
) -> Figure:
    pairs = list(points)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": [at / x.size for at, _ in pairs],
        "y": [value / y.size for _, value in pairs],
        "line": {"shape": "hv", "color": stroke, "width": 2},
        "hovertemplate": hover,
    }


# --- by device ------------------------------------------------------------------------------------


def memory_at_peak(content: Content) -> Figure:
    """What the memory of each device is full of when most is alive."""
    size = unit_for(max(seat.memory["peak_bytes"] for seat in content.seats), SIZES)
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
        values = [seat.memory[part + suffix] for seat in content.seats]
        if any(values):
            fill = PARTS[number % len(PARTS)]
            data.append(_stacked(content, part, values, size, fill, SIZES))
    return _rows(data, len(content.seats), f"memory at the peak [{size.name}]", **STACK)


def shares(content: Content) -> Figure:
    """Rows that each device computes, by micro-batch."""
    data = []
    for number in range(len(content.seats[0].microbatches)):
        bar = _stacked(
            content,
            f"micro-batch {number}",
            [seat.microbatches[number] for seat in content.seats],
            Unit("rows", 1),
            "",
            [Unit("rows", 1)],
        )
        bar["marker"]["color"] = [color(seat.stage, number % 2 == 0) for seat in content.seats]
        data.append(bar)
    return _rows(data, len(content.seats), "rows of a step", showlegend=False, **STACK)


def times(content: Content) -> Figure:
    """What each device does with the time of a step, predicted and measured."""
    sides = [("predicted", content.predicted)]
    if content.measured is not None:
        sides.append(("measured", content.measured))
    unit = unit_for(max(trace.span for _, trace in sides), TIMES)
    seats = content.seats
    devices = [seat.device for seat in seats for _ in sides]
    labels: Any = [seat.device for seat in seats]
    if len(sides) > 1:
        labels = [devices, [name for _ in seats for name, _ in sides]]
    parts: list[tuple[str, str, Callable[[Event], bool]]] = [
        ("forward", STAGES[0][0], lambda event: event.category == "forward"),
        ("backward", STAGES[0][1], lambda event: event.category == "backward"),
        (
            "update and prologue",
            ONCE["update"],
            lambda event: event.category not in ("forward", "backward"),
        ),
    ]
    busy = [[e for e in trace.of(s.device) if e.works] for s in seats for _, trace in sides]
    sums = {
        name: [sum(e.end - e.start for e in events if wanted(e)) for events in busy]
        for name, _, wanted in parts
    }
    spans = [trace.span for _ in seats for _, trace in sides]
    sums["waits (bubble)"] = [
        span - sum(values[row] for values in sums.values()) for row, span in enumerate(spans)
    ]
    data = [
        _bar(
            [value / unit.size for value in sums[name]],
            labels,
            {"color": fill},
            [f"{value / span:.0%}" for value, span in zip(sums[name], spans, strict=True)],
            name=name,
            hovertext=[
                f"{_safe(device)}: {name} {said(value, TIMES)}, {value / span:.1%} of the step"
                for device, value, span in zip(devices, sums[name], spans, strict=True)
            ],
            customdata=devices,
            **INSIDE,
        )
        for name, fill in [*((name, fill) for name, fill, _ in parts), ("waits (bubble)", WAITS)]
        if any(sums[name])
    ]
    return _rows(data, len(devices), f"time in a step [{unit.name}]", **STACK)


def _stacked(
    content: Content, name: str, values: list[int], unit: Unit, fill: str, units: list[Unit]
) -> Figure:
    devices = [seat.device for seat in content.seats]
    return _bar(
        [value / unit.size for value in values],
        devices,
        {"color": fill, "line": EDGE},
        [said(value, units) if value else "" for value in values],
        name=name,
        hovertext=[
            f"{_safe(device)}: {name} {said(value, units)}"
            for device, value in zip(devices, values, strict=True)
        ],
        **INSIDE,
    )


# --- links and strategies -------------------------------------------------------------------------


def traffic(content: Content) -> Figure:
    """Bytes of a step on each link."""
    links = content.simulated["links"]
    step = content.simulated["step_nanoseconds"] * 1e-9
    unit = unit_for(max((link["bytes"] for link in links), default=0), SIZES)
    bar = _bar(
        [link["bytes"] / unit.size for link in links],
        [link["link"] for link in links],
        {"color": KINDS[0]},
        [f"{link['busy_seconds'] / step:.1%} busy" for link in links],
        textposition="auto",
        hovertext=[
            f"{_safe(link['link'])}: {said(link['bytes'], SIZES)}, busy "
            f"{said(link['busy_seconds'] * 1e9, TIMES)} of the step"
            for link in links
        ],
    )
    return _rows([bar], len(links), f"traffic in a step [{unit.name}]", row_height=26)


def strategies(content: Content) -> Figure:
    """Steps of this plan and of what each strategy finds."""
    assert content.compared is not None
    rows = [row for row in content.compared["strategies"] if "infeasible" not in row]
    names = ["this plan", *(row["strategy"] for row in rows)]
    steps = [content.simulated["step_nanoseconds"], *(row["step_ns"] for row in rows)]
    best, unit = min(steps), unit_for(max(steps), TIMES)
    bar = _bar(
        [step / unit.size for step in steps],
        names,
        {"color": ["#1d74b5", *("#b8c4ce" for _ in rows)]},
        [f"{said(step, TIMES)}, {step / best:.2f}x the best" for step in steps],
        textposition="auto",
    )
    figure = _rows([bar], len(names), f"predicted step [{unit.name}]")
    figure["layout"]["xaxis"]["rangemode"] = "tozero"
    bound = content.compared["lower_bound_ns"] / unit.size
    if bound > 0:
        figure["layout"]["shapes"] = [
            {
                "type": "line",
                "x0": bound,
                "x1": bound,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"dash": "dash", "color": "#555"},
            }
        ]
        figure["layout"]["annotations"] = [
            {
                "x": bound,
                "yref": "paper",
                "y": 1,
                "yanchor": "bottom",
                "showarrow": False,
                "text": "lower bound of the search",
            }
        ]
    return figure


# --- all ------------------------------------------------------------------------------------------


def _device_labels(content: Content) -> list[str]:
    return [
        f"{_safe(seat.device)}<br><span style='color:#777'>"
        + (f"stage {seat.stage}, " if content.num_stages > 1 else "")
        + f"{_safe(seat.kind)}</span>"
        for seat in content.seats
    ]


def _bar(x: list[float], y: list[Any], marker: Figure, text: list[str], **more: Any) -> Figure:
    """Bars from the left."""
    shape = {"type": "bar", "orientation": "h", "hoverinfo": "text"}
    return {**shape, "x": x, "y": y, "marker": marker, "text": text, **more}


def _rows(
    data: list[Figure], count: int, title: str, row_height: int = 34, **layout: Any
) -> Figure:
    """A figure of so many rows of bars, the first one above."""
    return _figure(
        data,
        height=110 + row_height * count,
        xaxis={"title": {"text": title}},
        yaxis={"autorange": "reversed"},
        **layout,
    )


def _figure(data: list[Figure], height: int, **layout: Any) -> Figure:
    axes = {
        name: {"automargin": True, "gridcolor": "#e5e5e5", **layout.pop(name, {})}
        for name in ("xaxis", "yaxis")
    }
    return {
        "data": data,
        "layout": {
            "height": height,
            "margin": {"l": 20, "r": 20, "t": 40, "b": 50},
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222"},
            "plot_bgcolor": "white",
            "paper_bgcolor": "white",
            "hovermode": "closest",
            "legend": {
                "orientation": "h",
                "y": 1,
                "yanchor": "bottom",
                "x": 0,
                "traceorder": "normal",
            },
            "showlegend": len(data) > 1,
            **axes,
            **layout,
        },
    }


def _safe(text: str) -> str:
    """Plotly reads some HTML in texts."""
    return text.replace("&", "&amp;").replace("<", "&lt;")
