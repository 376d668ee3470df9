"""`medley report`: the division and predicted cost of a plan, as one HTML file."""

from __future__ import annotations

import argparse
import json
import os

from medley.cli.verb import progress, wrapped
from medley.files import write_atomically
from medley_extras.report.collect import collect
from medley_extras.report.layers import collect_layers, layer_sections, layers_page
from medley_extras.report.page import Section, difference_of, page, sections


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.add_argument("plan", help="the plan (plan.json)")
    of = parser.add_mutually_exclusive_group(required=True)
    of.add_argument("--graph", default="", help="the graph that it is for (g.graph)")
    of.add_argument(
        "--layers", default="", help="the measured layers that it is for (table.json), not a graph"
    )
    parser.add_argument(
        "--cluster", required=True, help="the cluster that it is for (cluster.yaml)"
    )
    parser.add_argument("--profile", default="", help="measured times (profile.json)")
    parser.add_argument(
        "--compare", action="store_true", help="also what all strategies come to: plans with each"
    )
    parser.add_argument(
        "--trace",
        nargs="+",
        default=[],
        metavar="TRACE",
        help="of a run of the plan (Trainer.save_trace), one per process: predicted against "
        "measured",
    )
    parser.add_argument(
        "--race", default="", metavar="RACE", help="of a run with --tune (race.json): plans tried"
    )
    parser.add_argument("-o", "--output", default="report.html", help="write the report here")


def command(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    from plotly.offline import get_plotlyjs

    output = os.fspath(arguments.output)
    if arguments.layers:
        for name in ("profile", "trace", "race"):
            if getattr(arguments, name):
                raise ValueError(f"found --layers and --{name}, expected one of them")
        with progress("asking the planner", arguments.json):
            table = collect_layers(
                arguments.plan, arguments.layers, arguments.cluster, arguments.compare
            )
            write_atomically(output, layers_page(table, get_plotlyjs()))
        return _say(output, table.summary, layer_sections(table), arguments.json)
    with progress("asking the planner", arguments.json):
        content = collect(
            arguments.plan,
            arguments.graph,
            arguments.cluster,
            arguments.profile,
            arguments.compare,
            arguments.trace,
            arguments.race,
        )
        write_atomically(output, page(content, get_plotlyjs()))
    difference = difference_of(content) if content.measured is not None else ""
    summary = content.explained["summary"]
    return _say(output, summary, sections(content), arguments.json, difference)


def _say(
    output: str, summary: str, parts: list[Section], as_json: bool, difference: str = ""
) -> int:
    if as_json:
        found = {"report": output, "sections": [section.name for section in parts]}
        print(json.dumps(found | ({"difference": difference} if difference else {})))
        return 0
    print(wrapped(f"{output}: {summary}"))
    if difference:
        print(wrapped(difference))
    print(f"Next: open {output} in a browser")
    return 0
