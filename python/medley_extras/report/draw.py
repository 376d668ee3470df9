"""The common parts of the figures of a report, for plotly.js: units, colors, bars and lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from medley_extras.report.trace import WAITING, Event

Figure = dict[str, Any]

# Colors of a stage: forward calls, backward calls.
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
ONCE = {"prologue": "#c4c4c4", "update": "#7d7d7d"}  # ops that run once per step
WAITS = "#eeeeee"
OTHERS = "#d8cfe6"  # ops of other pipelines
# Each kind of communication has one color, in all figures.
COMMUNICATION = {
    "all_reduce": "#a855f7",
    "all_gather": "#14b8a6",
    "reduce_scatter": "#eab308",
    "all_to_all": "#0ea5e9",
    "transfer": "#84cc16",
    "gradient_sync": "#ef4444",
}
TRAFFIC = "#64748b"  # all kinds together
PARTS = ["#1d74b5", "#8ecae6", "#2c8a4b", "#a8ddb5", "#d97706"]  # colors of memory
PARTS += ["#ffc98b", "#6b46b0", "#5f7d95", "#b0b0b0", "#8a5a2b", "#f4a6a6", "#7c8517"]
INK, GRID, MUTED, STROKE = "#222", "#e5e5e5", "#777", "#555"
PAPER = "rgba(0,0,0,0)"  # the page shows through
# Colors on dark screens. All others are legible on both.
DARK = {INK: "#e4e7ea", GRID: "#343a42", MUTED: "#a3adb8", STROKE: "#aab4be", "white": "#16181d"}
DARK |= {WAITS: "#363c45", OTHERS: "#51476a", "#b8c4ce": "#5d6873"}
MOST_BARS = 20_000
MOST_LINES = 8  # one per device
DEVICE_HEIGHT = 46
EDGE = {"color": "white", "width": 0.5}  # between adjacent bars
INSIDE: Figure = {"textposition": "inside", "insidetextanchor": "middle", "textangle": 0}
STACK: Figure = {"barmode": "stack", "uniformtext": {"mode": "hide", "minsize": 8}}


class Unit(NamedTuple):
    """A unit of figures, and its size in exact ones (nanoseconds, bytes)."""

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


def percent(share: float, digits: int = 1, sign: str = "") -> str:
    """Returns a share as text: 9.8 %."""
    return f"{100 * share:{sign}.{digits}f} %"


def samples(per_second: float) -> str:
    """Returns a rate as text: 18,331."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"


def color(stage: int, backward: bool = True) -> str:
    """Returns the color of a stage."""
    return STAGES[stage % len(STAGES)][backward]


def draw_bars(x: list[float], y: list[Any], marker: Figure, text: list[str], **more: Any) -> Figure:
    """Returns bars from the left."""
    shape = {"type": "bar", "orientation": "h", "hoverinfo": "text"}
    return {**shape, "x": x, "y": y, "marker": marker, "text": text, **more}


def draw_line(
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


def draw_rows(
    data: list[Figure], count: int, title: str, row_height: int = 34, **layout: Any
) -> Figure:
    """Returns a figure of `count` rows of bars, the first one at the top."""
    return draw_figure(
        data,
        height=94 + row_height * count,
        xaxis={"title": {"text": title}},
        yaxis={"autorange": "reversed"},
        **layout,
    )


def draw_figure(data: list[Figure], height: int, **layout: Any) -> Figure:
    names = {"xaxis", "yaxis", *(name for name in layout if name.startswith("yaxis"))}
    # Invisible ticks keep the labels of both axes apart.
    axes = {
        name: {
            "automargin": True,
            "gridcolor": GRID,
            "ticks": "outside",
            "ticklen": 6,
            "tickcolor": PAPER,
            **layout.pop(name, {}),
        }
        for name in sorted(names)
    }
    return {
        "data": data,
        "layout": {
            "height": height,
            "margin": {"l": 20, "r": 20, "t": 24, "b": 50},
            "font": {"family": "system-ui, sans-serif", "size": 13, "color": INK},
            "plot_bgcolor": PAPER,
            "paper_bgcolor": PAPER,
            "hovermode": "closest",
            "showlegend": len(data) > 1,  # the page draws it above the figure
            **axes,
            **layout,
        },
    }


def safe(text: str) -> str:
    """Returns a text without the HTML that plotly interprets."""
    return text.replace("&", "&amp;").replace("<", "&lt;")


def mark(x: float, text: str) -> Figure:
    """Returns a dashed line at x with a text above the figure."""
    line = {"dash": "dash", "color": STROKE}
    shape = {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": line}
    note = {"x": x, "yref": "paper", "y": 1, "yanchor": "bottom", "showarrow": False, "text": text}
    return {"shapes": [shape], "annotations": [note]}


def hover_text(event: Event) -> str:
    lines = [f"<b>{safe(event.name)}</b>", safe(event.device)]
    if event.category == WAITING:
        lines[0] = f"waits for <b>{safe(event.name)}</b>"
    elif event.microbatch:
        lines[0] = f"<b>{event.category}</b> of micro-batch {event.microbatch}"
    elif not event.computes:
        lines.insert(1, f"{event.category}, {said(event.bytes, SIZES)} of this device")
    lines.append(
        f"from {said(event.start, TIMES)} to {said(event.end, TIMES)}: "
        f"{said(event.end - event.start, TIMES)}"
    )
    return "<br>".join(lines)
