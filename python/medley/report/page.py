"""One HTML file of a report's content: tables, figures and plotly.js itself, so that it needs no
network."""

from __future__ import annotations

import json
from html import escape
from typing import NamedTuple

from medley.report import figures
from medley.report.collect import Content
from medley.report.figures import SIZES, TIMES, Figure, said
from medley.report.trace import in_flight

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1180px; margin: 2em auto;
  padding: 0 1.2em; }
h1 { font-size: 1.6em; margin-bottom: 0; }
h2 { font-size: 1.2em; margin: 2.2em 0 0; border-top: 1px solid #ddd; padding-top: 1em; }
p.note { color: #666; margin: .2em 0 .6em; max-width: 60em; }
.tiles { display: flex; flex-wrap: wrap; gap: .8em; margin: 1.2em 0; }
.tile { border: 1px solid #ddd; border-radius: 6px; padding: .6em 1em; }
.tile b { display: block; font-size: 1.35em; }
.tile span { color: #666; font-size: .9em; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6em 0; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25em .8em; border-bottom: 1px solid #e5e5e5;
  white-space: nowrap; }
th { color: #666; font-weight: 500; }
th.text, td.text { text-align: left; }
.chip { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .5em; }
"""

# Says in the page itself what went wrong: a test reads it, and so does whoever opens it.
SCRIPT = """
let drawn = 0;
window.onerror = (message) => { document.body.dataset.error = message; };
Promise.all(Array.from(document.querySelectorAll("script.figure"), (source) => {
  const figure = JSON.parse(source.textContent);
  const options = {responsive: true, displayModeBar: false};
  return Plotly.newPlot(source.previousElementSibling, figure.data, figure.layout, options)
    .then(() => { drawn += 1; });
})).then(() => { document.body.dataset.drawn = drawn; })
  .catch((error) => { document.body.dataset.error = error; });
"""


class Section(NamedTuple):
    """A heading with what stands below it."""

    name: str
    title: str
    note: str
    table: str = ""
    figure: Figure | None = None


def page(content: Content, plotly: str) -> str:
    """Returns the whole file. `plotly`: the text of plotly.js."""
    title = content.explained["summary"].rstrip(".")
    files = " &middot; ".join(
        f"{escape(what)} <code>{escape(path)}</code>" for what, path in content.files.items()
    )
    body = "\n".join(_section(section) for section in sections(content))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{STYLE}</style>
<script>{plotly}</script>
</head>
<body>
<h1>{escape(title)}</h1>
<p class="note">{files}</p>
{_tiles(content)}
{body}
<script>{SCRIPT}</script>
</body>
</html>
"""


def sections(content: Content) -> list[Section]:
    """Returns what the page shows, in order."""
    several = content.num_stages > 1
    found = [
        Section(
            "stages",
            "Stages on devices" if several else "Devices",
            "Who computes what. A stage is a range of the model's layers; the devices of a stage "
            "divide its rows or its tensors."
            if several
            else "All devices compute the whole model, each its rows or its part of the tensors.",
            _stages(content),
        ),
        Section(
            "timeline",
            "One step, as predicted",
            "Above for each device what it computes, the number is the micro-batch; the thin bar "
            "below is what it sends and receives at the same time. Light: forward, dark: backward. "
            "Drag to zoom, double-click to go back, hover for names and times.",
            figure=figures.timeline(content, content.predicted),
        ),
    ]
    if content.measured is not None:
        found.append(
            Section(
                "measured_timeline",
                "The same step, as measured",
                "On the same scale. Traces of several processes begin each with its own first "
                "event: their clocks are not compared.",
                figure=figures.timeline(content, content.measured),
            )
        )
        found.append(
            Section(
                "measured",
                "Predicted against measured",
                "A difference in computing is one of the times of ops: profile, or profile again. "
                "A difference in waiting alone is one of the network.",
                _measured(content),
            )
        )
    found += [
        Section(
            "times",
            "Where the time goes",
            "Waits is the bubble: the device stands still, for a communication, another stage or "
            "the end of the step.",
            figure=figures.times(content),
        ),
        Section(
            "in_flight",
            "Micro-batches in flight",
            "Forward call begun, backward call not ended: each keeps its activations that long.",
            figure=figures.in_flight_over_time(content),
        ),
        Section(
            "memory",
            "Memory over the step",
            "Bytes of tensors alive, as lowering counts them, without the slack of allocators.",
            figure=figures.memory_over_time(content),
        ),
        Section(
            "memory_at_peak",
            "What fills the memory when it is fullest",
            "By what the tensors are for.",
            figure=figures.memory_at_peak(content),
        ),
        Section(
            "shares",
            "Shares",
            "Rows of a step that each device computes, by micro-batch.",
            figure=figures.shares(content),
        ),
    ]
    if content.simulated["links"]:
        found.append(
            Section(
                "traffic",
                "Traffic by link",
                "Each direction of each link, the busiest for its bandwidth first.",
                figure=figures.traffic(content),
            )
        )
    if content.compared is not None:
        found.append(
            Section(
                "strategies",
                "Strategies side by side",
                "What each strategy finds for the same graph, cluster and rows, simulated the same "
                "way.",
                _strategies(content),
                figures.strategies(content),
            )
        )
    return found


def _section(section: Section) -> str:
    plot = ""
    if section.figure is not None:
        text = json.dumps(section.figure).replace("</", "<\\/")
        kind = 'type="application/json" class="figure"'
        plot = f'<div class="plot"></div><script {kind}>{text}</script>'
    return (
        f'<section id="{section.name}"><h2>{escape(section.title)}</h2>'
        f'<p class="note">{escape(section.note)}</p>{section.table}{plot}</section>'
    )


def _tiles(content: Content) -> str:
    simulated = content.simulated
    step = simulated["step_nanoseconds"]
    waits = [seat.simulated["waits_nanoseconds"] for seat in content.seats]
    fullest = max(
        content.seats, key=lambda seat: seat.memory["peak_bytes"] / seat.memory["available_bytes"]
    ).memory
    by_source = simulated["ops_by_source"]
    all_ops = sum(by_source.values())
    sources = ", ".join(f"{n / all_ops:.0%} {source}" for source, n in by_source.items())
    tiles = [(said(step, TIMES), "predicted step")]
    if content.measured is not None:
        span = content.measured.span
        tiles.append((said(span, TIMES), f"measured step, {span / step - 1:+.1%}"))
    rate = simulated["rows_per_second"]
    tiles += [
        (f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}", "rows/s, predicted"),
        (f"{sum(waits) / len(waits) / step:.1%}", "bubble: of the devices' time is waiting"),
        (
            said(fullest["peak_bytes"], SIZES),
            f"on {fullest['device']}, the fullest: of {said(fullest['available_bytes'], SIZES)}",
        ),
        (sources or "none", f"where the times of {all_ops:,} ops come from"),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>'
            for value, what in tiles
        )
        + "</div>"
    )


def _table(header: list[str], rows: list[list[str]], texts: int) -> str:
    """Cells are HTML; the first `texts` columns are text, the others numbers."""

    def line(cells: list[str], tag: str) -> str:
        return (
            "<tr>"
            + "".join(
                f'<{tag} class="text">{cell}</{tag}>' if i < texts else f"<{tag}>{cell}</{tag}>"
                for i, cell in enumerate(cells)
            )
            + "</tr>"
        )

    return (
        '<div class="wide"><table>'
        + line(header, "th")
        + "".join(line(row, "td") for row in rows)
        + "</table></div>"
    )


def _stages(content: Content) -> str:
    step = content.simulated["step_nanoseconds"]
    firsts = [stage["first"] for stage in content.explained["stages"]]
    rows = []
    for seat in content.seats:
        chip = f'<span class="chip" style="background:{figures.color(seat.stage)}"></span>'
        simulated = seat.simulated
        rows.append(
            [
                f"{chip}{seat.stage}",
                escape(firsts[seat.stage] or "the beginning"),
                escape(seat.device),
                escape(seat.kind),
                str(seat.rows),
                str(len([each for each in seat.microbatches if each])),
                str(max(n for _, n in in_flight(content.predicted.of(seat.device)))),
                said(simulated["computes_nanoseconds"], TIMES),
                f"{simulated['waits_nanoseconds'] / step:.1%}",
                said(seat.memory["peak_bytes"], SIZES),
                said(seat.memory["available_bytes"], SIZES),
            ]
        )
    header = ["stage", "from", "device", "kind", "rows", "micro-batches", "at most in flight"]
    return _table([*header, "computes", "waits", "memory", "available"], rows, 4)


def _measured(content: Content) -> str:
    assert content.measured is not None
    spans = (content.simulated["step_nanoseconds"], content.measured.span)
    rows = [["the step", *_difference(*spans), "", ""]]
    for seat in content.seats:
        predicted = seat.simulated["computes_nanoseconds"]
        found = sum(
            event.end - event.start for event in content.measured.of(seat.device) if event.works
        )
        waits = (seat.simulated["waits_nanoseconds"] / spans[0], 1 - found / spans[1])
        rows.append(
            [
                f"{escape(seat.device)} computes",
                *_difference(predicted, found),
                *(f"{share:.1%}" for share in waits),
            ]
        )
    header = ["", "predicted", "measured", "difference", "waits, predicted", "measured"]
    return _table(header, rows, 1)


def _difference(predicted: int, measured: int) -> list[str]:
    relative = f"{measured / predicted - 1:+.1%}" if predicted else ""
    return [said(predicted, TIMES), said(measured, TIMES), relative]


def _strategies(content: Content) -> str:
    assert content.compared is not None
    rows = []
    for row in content.compared["strategies"]:
        if "infeasible" in row:
            cells = ["does not fit", "", "", "", escape(row["infeasible"])]
        else:
            memory = ", ".join(
                f"{escape(kind)} {said(each['used'], SIZES)} of {said(each['has'], SIZES)}"
                for kind, each in row["memory_bytes"].items()
            )
            cells = [
                said(row["step_ns"], TIMES),
                f"{row['gap']:.0%}",
                str(row["microbatches"]),
                said(row["traffic_bytes"], SIZES),
                memory,
            ]
        rows.append([escape(row["strategy"]), *cells])
    header = ["strategy", "step", "above the bound", "micro-batches", "traffic", "most memory"]
    return _table(header, rows, 1)
