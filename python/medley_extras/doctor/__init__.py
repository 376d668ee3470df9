"""`medley doctor`: the installed packages and devices found here, expected failures, and fixes.

With `--gpu` it runs fourteen checks of the GPUs of this machine in about a minute.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from medley.cli.verb import print_next
from medley_extras.doctor.finding import FAILURE, OK, UNTRIED, WARNING, as_json, examine

_MARKS = {
    OK: "[green]ok[/]",
    WARNING: "[yellow]warn[/]",
    FAILURE: "[red]fail[/]",
    UNTRIED: "[dim]-[/]",
}


@contextmanager
def _progress(shown: bool) -> Iterator[Callable[[str], None]]:
    from rich.console import Console

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda text: None
        return
    with console.status("") as status:
        yield lambda text: status.update(f"{text} ...")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="try the GPUs of this machine too: fourteen checks in about a minute",
    )


def command(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    return doctor(arguments.json, arguments.gpu)


def doctor(to_json: bool, gpu: bool = False) -> int:
    """Prints the report. Returns 3 for an expected failure, else 0."""
    from medley_extras.doctor import host

    with _progress(not to_json) as say:
        findings = examine(host.CHECKS, say)
        if gpu:
            from medley_extras.doctor import gpus

            findings += gpus.examine_gpus(say)
    code = 3 if any(finding.state == FAILURE for finding in findings) else 0
    if to_json:
        print(json.dumps([as_json(finding) for finding in findings], indent=2))
        return code
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for column in ("", "what", "found", "fix"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        table.add_row(_MARKS[finding.state], finding.what, finding.found, finding.fix)
    console = Console(highlight=False)
    console.print(table, width=min(console.width, 100))
    if code == 0:
        print_next(["medley", "probe", "-o", "cluster.yaml"] if gpu else ["medley", "demo"])
    return code
