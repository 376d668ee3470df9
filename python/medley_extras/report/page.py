"""One HTML file of a report's content: tables, figures and plotly.js itself, without network
access."""

from __future__ import annotations

import itertools
import json
from html import escape
from typing import Any, NamedTuple

from medley_extras.report import figures, pipeline_figures
from medley_extras.report.collect import Content
from medley_extras.report.draw import SIZES, TIMES, Figure, color, said
from medley_extras.report.trace import in_flight

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

MOST_NAMES = 8
MUCH = 0.2  # share of a step, or of a device's memory

# Shows errors in the page itself, for readers and for a test.
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
    """A heading with its content."""

    name: str
    title: str
    note: str
    table: str = ""
    figure: Figure | None = None


def page(content: Content, plotly: str) -> str:
    """Returns the whole file. `plotly`: the text of plotly.js."""
    summary = content.explained["summary"]
    return document(summary, content.files, _tiles(content), sections(content), plotly)


def document(
    summary: str, paths: dict[str, str], tiles: str, parts: list[Section], plotly: str
) -> str:
    """Returns one HTML file of these parts. `tiles` is HTML."""
    title = summary.rstrip(".")
    files = " &middot; ".join(
        f"{escape(what)} <code>{escape(path)}</code>" for what, path in paths.items()
    )
    body = "\n".join(_section(section) for section in parts)
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
{tiles}
{body}
<script>{SCRIPT}</script>
</body>
</html>
"""


def sections(content: Content) -> list[Section]:
    """Returns the sections of the page in order."""
    several = content.num_stages > 1
    found = [
        Section(
            "stages",
            "Stages on devices" if several else "Devices",
            (
                "Who computes what. A stage is a range of the model's layers; the devices of a "
                "stage divide its rows or its tensors."
                if several
                else "All devices compute the whole model, each its rows or its part of the "
                "tensors."
            )
            + _not_used(content),
            _stages(content),
        ),
        *_pipelines(content),
        _sharded(content),
        *_next_best(content),
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
            "Waits: the device stands still, for a communication, another stage or the end of "
            "the step. The bubble of a pipeline is the part of it without communication.",
            figure=figures.times(content),
        ),
        *_in_flight(content),
        Section(
            "memory",
            "Memory over the step",
            "Bytes of tensors that are alive. An allocator needs a little more.",
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
                "Each direction of each link; first those that are busy longest.",
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
    if steps := _next_steps(content):
        found.append(Section("next", "What to try next", "", _list(steps)))
    return found


def _not_used(content: Content) -> str:
    names = content.explained.get("not_used", [])
    if not names:
        return ""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f" Left out, without any work: {', '.join(names[:MOST_NAMES])}{more}."


def _pipelines(content: Content) -> list[Section]:
    """Returns the division of the model by pipelines, and the gradients that they sum together."""
    found = []
    if content.num_pipelines > 1:
        found.append(
            Section(
                "pipelines",
                "Pipelines",
                "Each computes the whole model for rows of its own, with cuts and devices of its "
                "own. The table: until when it goes backward, how much of their time its devices "
                "wait for its own stages and for other pipelines, and what its stages send each "
                "other in a step.",
                _pipeline_table(content),
                pipeline_figures.pipelines(content),
            )
        )
    if "relays" in content.simulated:
        found.append(
            Section(
                "relays",
                "Gradients that stages share",
                "Stages that hold the same layers sum their gradients, each as soon as it is "
                "done. What lies left of the dashed line is hidden: some stage still goes "
                "backward. What lies right of it makes the step longer.",
                _shared(content),
                pipeline_figures.relays(content),
            )
        )
    return found


def _next_best(content: Content) -> list[Section]:
    """Returns the reasons for the sharding."""
    rows = []
    for row in content.explained.get("next_best", []):
        other = ["none", "", ""]
        if "next_best" in row:
            slower = f"{row['longer_by_share']:+.1%}" if row["fits"] else "does not fit"
            other = [row["next_best"], said(row["step_seconds"] * 1e9, TIMES), slower]
        rows.append([*(escape(text) for text in (row["about"], row["now"], *other))])
    if not rows:
        return []
    note = (
        "The step if that layer alone had to be sharded otherwise, and all else as suits it best."
    )
    table = html_table(["layer", "now", "next best", "step", "slowdown"], rows, 3)
    return [Section("next_best", "What each choice is worth", note, table)]


def _in_flight(content: Content) -> list[Section]:
    """Returns the micro-batches in flight. A pipeline of one micro-batch has no such section."""
    if all(len(seat.microbatches) < 2 for seat in content.seats):
        return []
    return [
        Section(
            "in_flight",
            "Micro-batches in flight",
            "Forward call begun, backward call not ended: each keeps its activations that long.",
            figure=pipeline_figures.in_flight_over_time(content),
        )
    ]


def _next_steps(content: Content) -> list[str]:
    """Returns advice derived from these numbers, as HTML."""
    simulated, steps = content.simulated, []
    step = simulated["step_nanoseconds"]
    sources = simulated["ops_by_source"]
    if sources.get("analytic", 0) > 0:
        steps.append(
            f"The times of {sources['analytic']:,} of {sum(sources.values()):,} ops are from data "
            "sheets: <code>medley profile</code> measures them."
        )
    waits = {seat.device: seat.simulated["waits_nanoseconds"] / step for seat in content.seats}
    device = max(waits, key=lambda name: waits[name])
    if waits[device] > MUCH:
        steps.append(
            f"{escape(device)} waits {waits[device]:.0%} of the step: "
            + (
                "<code>medley simulate --schedules all</code> says what other schedules come to, "
                "and more micro-batches make a shorter bubble."
                if content.num_stages > 1
                else "<code>medley compare</code> says what other strategies come to."
            )
        )
    fullest = max(
        content.seats, key=lambda seat: seat.memory["peak_bytes"] / seat.memory["available_bytes"]
    )
    if fullest.memory["peak_bytes"] > (1 - MUCH / 2) * fullest.memory["available_bytes"]:
        steps.append(
            f"{escape(fullest.device)} is nearly full: <code>medley memory</code> says of what, "
            "and more micro-batches, or <code>recompute</code> in the plan, need less."
        )
    if content.measured is None:
        steps.append(
            "Run it with <code>trace=True</code> and give the trace to <code>--trace</code>: the "
            "report then shows predicted against measured."
        )
    return steps


def _list(items: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


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
    measured = all_ops - by_source.get("analytic", 0)
    tiles = [(said(step, TIMES), "predicted step")]
    if content.measured is not None:
        span = content.measured.span
        tiles.append((said(span, TIMES), f"measured step, {span / step - 1:+.1%}"))
    rate = simulated["rows_per_second"]
    tiles += [
        (f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}", "rows/s, predicted"),
        (f"{sum(waits) / len(waits) / step:.1%}", "of their time devices wait"),
        (
            said(fullest["peak_bytes"], SIZES),
            f"on {fullest['device']}, the fullest: of {said(fullest['available_bytes'], SIZES)}",
        ),
        (f"{measured:,} of {all_ops:,}", "ops with measured times, the rest from data sheets"),
    ]
    if "bubble_share" in simulated:
        tiles.append((f"{simulated['bubble_share']:.1%}", "of their time idle (pipeline bubble)"))
    return html_tiles(tiles)


def html_tiles(tiles: list[tuple[str, str]]) -> str:
    """Returns labelled numbers as HTML."""
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>'
            for value, what in tiles
        )
        + "</div>"
    )


def html_table(header: list[str], rows: list[list[str]], texts: int) -> str:
    """Returns a table. Cells are HTML; the first `texts` columns are text, the others numbers."""

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
    stages = content.explained["stages"]
    rows = []
    for seat in content.seats:
        chip = f'<span class="chip" style="background:{color(seat.stage)}"></span>'
        simulated = seat.simulated
        rows.append(
            [
                f"{chip}{seat.name}",
                escape(stages[seat.stage].get("layers", "all")),
                escape(stages[seat.stage]["first"] or "the beginning"),
                escape(seat.device),
                escape(seat.kind),
                str(seat.rows),
                _runs(seat.microbatches),
                str(max(n for _, n in in_flight(content.predicted.of(seat.device)))),
                said(simulated["computes_nanoseconds"], TIMES),
                f"{simulated['waits_nanoseconds'] / step:.1%}",
                f"{simulated.get('waits_for_pipelines_nanoseconds', 0) / step:.1%}",
                said(seat.memory["peak_bytes"], SIZES),
                said(seat.memory["available_bytes"], SIZES),
            ]
        )
    header = ["stage", "layers", "from", "device", "kind", "rows", "rows by micro-batch"]
    header += ["at most in flight", "computes", "waits", "of that for other pipelines"]
    header += ["memory", "available"]
    if content.num_pipelines == 1:
        number = header.index("of that for other pipelines")
        header.pop(number)
        for row in rows:
            row.pop(number)
    return html_table(header, rows, 5)


def _runs(lengths: list[int]) -> str:
    """Returns equal neighbours once: 11 x 8, 10."""
    runs = [(length, len(list(same))) for length, same in itertools.groupby(lengths)]
    return ", ".join(f"{length} x {n}" if n > 1 else str(length) for length, n in runs)


def _pipeline_table(content: Content) -> str:
    rows = []
    for row in content.explained["pipelines"]:
        kinds = ", ".join(f"{count} {escape(kind)}" for kind, count in row["kinds"].items())
        rows.append(
            [
                str(row["pipeline"]),
                kinds,
                f"{row['first_row']}-{row['first_row'] + row['rows'] - 1}",
                f"{row['rows_share']:.1%}",
                _runs(row["microbatches"]),
                str(row["stages"]),
                said(row["backward_done_seconds"] * 1e9, TIMES),
                f"{row['waits_share']:.1%}",
                f"{row['waits_for_pipelines_share']:.1%}",
                said(row["sends_bytes"], SIZES),
                escape(row["network"]),
            ]
        )
    header = ["pipeline", "devices", "rows", "share", "rows by micro-batch", "stages"]
    header += ["backward done", "waits for its own", "for other pipelines", "stages send", "over"]
    return html_table(header, rows, 2)


def _shared(content: Content) -> str:
    rows = [
        [
            escape(row["layers"] or "tied"),
            " + ".join(row["stages"]),
            escape(row["network"]),
            ", ".join(row["behind"]) or "nothing",
            str(row["parameters"]),
            said(row["bytes"], SIZES),
            said(row["takes_seconds"] * 1e9, TIMES),
            f"{row['hidden_share']:.1%}",
        ]
        for row in content.explained["shared"]
    ]
    header = ["layers", "summed over stages", "over", "behind backward of", "parameters"]
    return html_table([*header, "bytes", "takes", "hidden"], rows, 4)


def _sharded(content: Content) -> Section:
    """Returns the sharding of tensors and ops."""
    rows = []
    for name, stage in zip(content.stage_names, content.explained["stages"], strict=True):
        rows += [[name, *cells] for cells in _decisions(stage)]
    note = "How each stage divides tensors over its devices. All that is not named is whole on "
    note += "each of them; ops are divided where the least data moves."
    if not rows:
        note = "Nothing but rows: every device has all parameters of its stage."
    header = ["stage", "what", "name", "plan text", "meaning", "how many"]
    return Section("sharded", "What is sharded", note, html_table(header, rows, 5) if rows else "")


def _decisions(stage: dict[str, Any]) -> list[list[str]]:
    if "groups" not in stage:
        return [
            [*(escape(entry[key]) for key in ("about", "name", "plan_text", "meaning")), "1"]
            for entry in stage["entries"]
        ]
    groups = stage["groups"]
    return [
        [
            what,
            *(escape(row[key]) for key in (what, "plan_text", "meaning")),
            str(row["count"]),
        ]
        for what, rows in (("parameter", groups["sharded"]), ("op", groups["not_by_rows"]))
        for row in rows
    ]


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
    return html_table(header, rows, 1)


def _difference(predicted: int, measured: int) -> list[str]:
    relative = f"{measured / predicted - 1:+.1%}" if predicted else ""
    return [said(predicted, TIMES), said(measured, TIMES), relative]


def _strategies(content: Content) -> str:
    assert content.compared is not None
    rows = []
    for row in content.compared["strategies"]:
        if "infeasible" in row:
            cells = ["does not fit", "", "", "", "", escape(row["infeasible"])]
        else:
            memory = ", ".join(
                f"{escape(kind)} {said(each['used'], SIZES)} of {said(each['has'], SIZES)}"
                for kind, each in row["memory_bytes"].items()
            )
            cells = [
                said(row["step_ns"], TIMES),
                f"{row['gap']:.0%}",
                f"{row['pipelines']} / {row['stages']}",
                str(row["microbatches"]),
                said(row["traffic_bytes"], SIZES),
                memory,
            ]
        rows.append([escape(row["strategy"]), *cells])
    header = ["strategy", "step", "above the bound", "pipelines / stages", "micro-batches"]
    header += ["traffic", "most memory"]
    return html_table(header, rows, 1)
