"""`medley report`: what a plan does and what it will cost, as one HTML file for people."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from medley.files import write_atomically
from medley.report.collect import collect
from medley.report.page import page, sections

Progress = Callable[[str, bool], AbstractContextManager[None]]


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.add_argument("plan", help="the plan (plan.json)")
    parser.add_argument("--graph", required=True, help="the graph that it is for (g.graph)")
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
    parser.add_argument("-o", "--output", default="report.html", help="write the report here")


def command(arguments: argparse.Namespace, progress: Progress) -> int:
    """Runs the verb; returns the exit code."""
    from plotly.offline import get_plotlyjs

    output = os.fspath(arguments.output)
    with progress("asking the planner", arguments.json):
        content = collect(
            arguments.plan,
            arguments.graph,
            arguments.cluster,
            arguments.profile,
            arguments.compare,
            arguments.trace,
        )
        write_atomically(output, page(content, get_plotlyjs()))
    names = [section.name for section in sections(content)]
    if arguments.json:
        print(json.dumps({"report": output, "sections": names}))
    else:
        print(f"{output}: {content.explained['summary']} Open it in a browser.")
    return 0
