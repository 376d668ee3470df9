"""One HTML file of a report's content: tables, figures and plotly.js itself, without network
access."""

from __future__ import annotations

import itertools
import json
import re
from html import escape
from typing import Any, NamedTuple

from medley_extras.report import cluster, figures, headline, measured, pipeline_figures, raced
from medley_extras.report.collect import Content
from medley_extras.report.draw import SIZES, TIMES, Figure, color, percent, said, samples
from medley_extras.report.style import SCRIPT, STYLE
from medley_extras.report.trace import in_flight

DASHES = {"solid": "none", "dash": "6 3", "dot": "2 2", "dashdot": "6 2 2 2"}
MOST_NAMES = 8
LONG = 24  # characters of a cell that may take several lines
MEASURED = (
    "Frames mark the first difference. The trace of each process begins with its first event. The "
    "clocks of processes are not compared."
)
MUCH = 0.2  # share of a step, or of a device's memory


class Section(NamedTuple):
    """A heading with its content."""

    name: str
    title: str
    note: str
    table: str = ""
    figure: Figure | None = None


class Head(NamedTuple):
    """The part of a page above its sections."""

    title: str
    reason: str
    tiles: str  # HTML, as `banner`
    banner: str = ""


def page(content: Content, plotly: str) -> str:
    """Returns the whole file. `plotly`: the text of plotly.js."""
    step = content.simulated["step_nanoseconds"]
    title = headline.title(content.model, len(content.slots), step)
    reason = f"{content.explained['summary']} {headline.reason(content)}"
    head = Head(title, reason, _tiles(content), headline.banner(content))
    return document(head, content.files, sections(content), plotly)


def document(head: Head, paths: dict[str, str], parts: list[Section], plotly: str) -> str:
    """Returns one HTML file of these parts."""
    title = escape(head.title)
    files = " &middot; ".join(
        f"{escape(what)} <code>{escape(path)}</code>" for what, path in paths.items()
    )
    links = "".join(f'<li><a href="#{p.name}">{escape(p.title)}</a></li>' for p in parts)
    body = "\n".join(_section(section) for section in parts)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{STYLE}</style>
<script>{plotly}</script>
</head>
<body>
<h1>{title}</h1>
<p class="note">{files}</p>
<p class="reason">{_with_code(head.reason)}</p>
{head.banner}
<nav class="contents" aria-label="Contents"><ul>{links}</ul></nav>
{head.tiles}
{body}
<script>{SCRIPT}</script>
</body>
</html>
"""


def difference_of(content: Content) -> str:
    """Returns sentences about the difference of the measured step. Requires a measured trace."""
    assert content.difference is not None
    stages = {slot.device: slot.name for slot in content.slots if content.num_stages > 1}
    return measured.sentence(content.difference, lambda device: stages.get(device, ""))


def _with_code(text: str) -> str:
    """Returns a text as HTML, with code for the words between backquotes."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


def sections(content: Content) -> list[Section]:
    """Returns the sections of the page in order."""
    several = content.num_stages > 1
    bars = (
        "Top bar: compute (number = micro-batch). Thin bar: communication. Light: forward, "
        "dark: backward. Drag to zoom, double-click to reset, hover for names and times."
    )
    figure = figures.timeline(content)
    found = [Section("timeline", "One step, as predicted", bars, figure=figure)]
    if content.difference is not None:
        text = f'<p class="reason">{_with_code(difference_of(content))}</p>'
        found = [
            Section("timeline", "Predicted and measured", f"{bars} {MEASURED}", text, figure),
            Section(
                "measured",
                "The difference by device",
                "The parts of each device add up to the step. If computing differs, the times of "
                "ops do: profile them, or profile them again. If only waiting differs, the "
                "network does. A device pauses between calls, and after the last one.",
                html_table(
                    measured.HEADER,
                    measured.rows(content.difference, [slot.device for slot in content.slots]),
                    1,
                ),
            ),
        ]
    found += [
        _cluster(content),
        Section(
            "times",
            "Where the time goes",
            "Waits: the device is idle until a communication, another stage or the step ends. "
            "The bubble of a pipeline is the part of it without communication.",
            figure=figures.times(content),
        ),
        *_in_flight(content),
        Section(
            "memory",
            "Memory over the step",
            "Bytes of tensors that are alive. An allocator needs a little more memory.",
            figure=figures.memory_over_time(content),
        ),
        Section(
            "memory_at_peak",
            "Memory at the peak",
            "By use of the tensors, at the time at which the device needs the most memory.",
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
                "One bar per direction of a link, the busiest link first.",
                figure=figures.traffic(content),
            )
        )
    if content.compared is not None:
        found.append(
            Section(
                "strategies",
                "Strategies side by side",
                "The best plan of each strategy for the same graph, cluster and rows, by the same "
                "simulator.",
                _strategies(content),
                figures.strategies(content),
            )
        )
    if content.race is not None:
        tried = raced.figure(content.race)
        found.append(Section("race", "Plans tried", raced.note(content.race), figure=tried))
    found += [
        Section(
            "stages",
            "Stages on devices" if several else "Devices",
            (
                "A stage is a range of the model's layers. The devices of a stage divide its rows "
                "or its tensors."
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
    ]
    if steps := _next_steps(content):
        found.append(Section("next", "Next steps", "", _list(steps)))
    return found


def _not_used(content: Content) -> str:
    names = content.explained.get("not_used", [])
    if not names:
        return ""
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f" Devices without work: {', '.join(names[:MOST_NAMES])}{more}."


def _cluster(content: Content) -> Section:
    fills = {slot.device: color(slot.stage) for slot in content.slots}
    note = (
        "Nodes, their devices with memory, and the networks between them. Bandwidth is that of one "
        "direction. The color is that of the stage; a dashed device has no work."
    )
    return Section(
        "cluster", "Cluster", note, cluster.draw(cluster.look(content.files["cluster"]), fills)
    )


def _pipelines(content: Content) -> list[Section]:
    """Returns the division of the model by pipelines, and the gradients that they sum together."""
    found = []
    if content.num_pipelines > 1:
        found.append(
            Section(
                "pipelines",
                "Pipelines",
                "Each pipeline computes the whole model for its own rows, with its own cuts and "
                "devices. The table has the end of its backward phase, the idle time of its "
                "devices, and the traffic between its stages in a step.",
                _pipeline_table(content),
                pipeline_figures.pipelines(content),
            )
        )
    if "gradient_syncs" in content.simulated:
        found.append(
            Section(
                "gradient_syncs",
                "Gradients that stages share",
                "Stages that hold the same layers sum their gradients, each as soon as it is "
                "done. Bars left of the dashed line are overlapped: some stage still goes "
                "backward. Bars right of it make the step longer.",
                _shared(content),
                pipeline_figures.syncs(content),
            )
        )
    return found


def _next_best(content: Content) -> list[Section]:
    """Returns the reasons for the sharding."""
    rows = []
    for row in content.explained.get("next_best", []):
        other = ["none", "", ""]
        if "next_best" in row:
            slower = percent(row["longer_by_share"], sign="+") if row["fits"] else "does not fit"
            other = [row["next_best"], said(row["step_seconds"] * 1e9, TIMES), slower]
        rows.append([*(escape(text) for text in (row["about"], row["now"], *other))])
    if not rows:
        return []
    note = (
        "The step if that layer alone were sharded in its next-best way, with the best choices for "
        "all other layers."
    )
    table = html_table(["layer", "now", "next best", "step", "slowdown"], rows, 3)
    return [Section("next_best", "Value of each choice", note, table)]


def _in_flight(content: Content) -> list[Section]:
    """Returns the micro-batches in flight. A pipeline of one micro-batch has no such section."""
    if all(len(slot.microbatches) < 2 for slot in content.slots):
        return []
    return [
        Section(
            "in_flight",
            "Micro-batches in flight",
            "A micro-batch keeps its activations from the begin of its forward call to the end of "
            "its backward call.",
            figure=pipeline_figures.in_flight_over_time(content),
        )
    ]


def _next_steps(content: Content) -> list[str]:
    """Returns advice derived from these numbers, as HTML."""
    simulated, steps = content.simulated, []
    step = simulated["step_nanoseconds"]
    waits = {slot.device: slot.simulated["waits_nanoseconds"] / step for slot in content.slots}
    device = max(waits, key=lambda name: waits[name])
    if waits[device] > MUCH:
        steps.append(
            f"{escape(device)} waits {percent(waits[device], 0)} of the step: "
            + (
                "<code>medley simulate --schedules all</code> compares schedules, and more "
                "micro-batches make the bubble shorter."
                if content.num_stages > 1
                else "<code>medley compare</code> compares strategies."
            )
        )
    fullest = max(
        content.slots, key=lambda slot: slot.memory["peak_bytes"] / slot.memory["available_bytes"]
    )
    if fullest.memory["peak_bytes"] > (1 - MUCH / 2) * fullest.memory["available_bytes"]:
        steps.append(
            f"The memory of {escape(fullest.device)} is nearly full: <code>medley memory</code> "
            "lists its uses. More micro-batches, or <code>recompute</code> in the plan, need less."
        )
    if content.measured is None:
        steps.append(
            "Run the plan with <code>trace=True</code> and give the trace to <code>--trace</code>: "
            "the report then compares the prediction with the measured step."
        )
    return steps


def _list(items: list[str]) -> str:
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def _section(section: Section) -> str:
    plot = ""
    if section.figure is not None:
        text = json.dumps(section.figure).replace("</", "<\\/")
        kind = 'type="application/json" class="figure"'
        plot = f'{_legend(section.figure)}<div class="plot"></div><script {kind}>{text}</script>'
    return (
        f'<section id="{section.name}"><h2>{escape(section.title)}</h2>'
        f'<p class="note">{_with_code(section.note)}</p>{section.table}{plot}</section>'
    )


def _legend(figure: Figure) -> str:
    """Returns the legend of a figure. Each entry toggles its bars or lines."""
    if not figure["layout"]["showlegend"]:
        return ""
    entries = []
    for number, trace in enumerate(figure["data"]):
        mark = (
            f'<rect width="20" height="12" rx="2" fill="{trace.get("marker", {}).get("color")}"/>'
        )
        if "line" in trace:
            dash = DASHES[trace["line"].get("dash", "solid")]
            mark = (
                f'<path d="M0 6H20" stroke="{trace["line"]["color"]}" stroke-width="3"'
                f' stroke-dasharray="{dash}"/>'
            )
        entries.append(
            f'<button type="button" aria-pressed="true" data-trace="{number}">'
            f'<svg viewBox="0 0 20 12" aria-hidden="true">{mark}</svg>{trace["name"]}</button>'
        )
    return f'<div class="figure-legend">{"".join(entries)}</div>'


def _tiles(content: Content) -> str:
    simulated = content.simulated
    step = simulated["step_nanoseconds"]
    waits = [slot.simulated["waits_nanoseconds"] for slot in content.slots]
    fullest = max(
        content.slots, key=lambda slot: slot.memory["peak_bytes"] / slot.memory["available_bytes"]
    ).memory
    tiles = [(said(step, TIMES), "predicted step")]
    if content.measured is not None:
        span = content.measured.span
        tiles.append((said(span, TIMES), f"measured step, {percent(span / step - 1, sign='+')}"))
    tiles += [
        (samples(simulated["rows_per_second"]), "samples/s, predicted"),
        (percent(sum(waits) / len(waits) / step), "of their time devices wait"),
        (
            said(fullest["peak_bytes"], SIZES),
            f"most memory, of {said(fullest['available_bytes'], SIZES)} on {fullest['device']}",
        ),
    ]
    if "bubble_share" in simulated:
        tiles.append((percent(simulated["bubble_share"]), "of their time idle (pipeline bubble)"))
    return html_tiles(tiles)


def html_tiles(tiles: list[tuple[str, str]]) -> str:
    """Returns labelled numbers as HTML."""
    return (
        f'<div class="tiles" style="--tiles: {len(tiles) if len(tiles) < 6 else 3}">'
        + "".join(
            f'<div class="tile"><b>{escape(value)}</b><span>{escape(what)}</span></div>'
            for value, what in tiles
        )
        + "</div>"
    )


def html_table(header: list[str], rows: list[list[str]], texts: int) -> str:
    """Returns a table. Cells are HTML; the first `texts` columns are text, the others numbers."""

    def line(cells: list[str]) -> str:
        parts = []
        for number, (name, cell) in enumerate(zip(header, cells, strict=True)):
            kind = ' class="long"' if len(cell) > LONG and "<br>" not in cell else ""
            kind = ' class="text"' if number < texts else kind
            text = f"<span>{cell}</span>" if cell else ""
            parts.append(f'<td{kind} data-label="{name}">{text}</td>')
        return f"<tr>{''.join(parts)}</tr>"

    names = "".join(
        f'<th class="text">{name}</th>' if number < texts else f"<th>{name}</th>"
        for number, name in enumerate(header)
    )
    return f'<table><tr class="header">{names}</tr>{"".join(map(line, rows))}</table>'


def _stages(content: Content) -> str:
    step = content.simulated["step_nanoseconds"]
    stages = content.explained["stages"]
    rows = []
    for slot in content.slots:
        chip = f'<span class="chip" style="background:{color(slot.stage)}"></span>'
        simulated = slot.simulated
        rows.append(
            [
                f"{chip}{slot.name}",
                escape(stages[slot.stage].get("layers", "all")),
                escape(stages[slot.stage]["first"] or "the beginning"),
                escape(slot.device),
                escape(slot.kind),
                str(slot.rows),
                _runs(slot.microbatches),
                str(max(n for _, n in in_flight(content.predicted.of(slot.device)))),
                said(simulated["computes_nanoseconds"], TIMES),
                percent(simulated["waits_nanoseconds"] / step),
                percent(simulated.get("waits_for_pipelines_nanoseconds", 0) / step),
                said(slot.memory["peak_bytes"], SIZES),
                said(slot.memory["available_bytes"], SIZES),
            ]
        )
    header = ["stage", "layers", "from", "device", "device type", "rows", "rows by micro-batch"]
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
                percent(row["rows_share"]),
                _runs(row["microbatches"]),
                str(row["stages"]),
                said(row["backward_done_seconds"] * 1e9, TIMES),
                percent(row["waits_share"]),
                percent(row["waits_for_pipelines_share"]),
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
            ", ".join(row["overlaps"]) or "nothing",
            str(row["parameters"]),
            said(row["bytes"], SIZES),
            said(row["takes_seconds"] * 1e9, TIMES),
            percent(row["overlapped_share"]),
        ]
        for row in content.explained["shared"]
    ]
    header = ["layers", "summed over stages", "over", "overlaps backward of", "parameters"]
    return html_table([*header, "bytes", "takes", "overlapped"], rows, 4)


def _sharded(content: Content) -> Section:
    """Returns the sharding of tensors and ops."""
    rows = []
    for name, stage in zip(content.stage_names, content.explained["stages"], strict=True):
        rows += [[name, *cells] for cells in _decisions(stage)]
    note = "The division of tensors over the devices of each stage. Other tensors are replicated. "
    note += "Other ops are divided such that the least data moves."
    if not rows:
        note = "Only rows are divided: every device has all parameters of its stage."
    header = ["stage", "what", "name", "plan text", "meaning", "count"]
    return Section(
        "sharded", "Sharded tensors and ops", note, html_table(header, rows, 5) if rows else ""
    )


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


def _strategies(content: Content) -> str:
    assert content.compared is not None
    rows = []
    for row in content.compared["strategies"]:
        if "infeasible" in row:
            cells = ["does not fit", "", "", "", "", escape(row["infeasible"])]
        else:
            memory = "<br>".join(
                f"{escape(kind)} {said(each['used'], SIZES)} of {said(each['has'], SIZES)}"
                for kind, each in row["memory_bytes"].items()
            )
            cells = [
                said(row["step_ns"], TIMES),
                percent(row["gap"], 0),
                f"{row['pipelines']} / {row['stages']}",
                str(row["microbatches"]),
                said(row["traffic_bytes"], SIZES),
                memory,
            ]
        rows.append([escape(row["strategy"]), *cells])
    header = ["strategy", "step", "above the bound", "pipelines / stages", "micro-batches"]
    header += ["traffic", "most memory"]
    return html_table(header, rows, 1)
