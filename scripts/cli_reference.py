"""Writes docs/cli.md, the reference of the command line, from the help of each verb.

--check fails if the page is not current.
"""

import argparse
import contextlib
import io
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "cli.md"
WIDTH = 100
HEAD = """\
# Command line

`scripts/cli_reference.py` writes this page from the help texts. The [tour](tour.md) shows the verbs
in the order of use.

All verbs take `--help`, and `--json` to print JSON. The verbs under *Plan* and *Inspect*, except
`fits` and `report`, take `--catalogue`, the directory of a device catalogue instead of our own.
`probe`, `profile` and `train` take `--interface NAME`, the network interface of the processes, by
default the one to the master. These options are left out below.

Exit codes: 0 success, 1 a bug of Medley, 2 bad input, 3 a problem of the environment.
"""
# Options of all verbs, and optional ones in the usage of a verb of Python.
COMMON = re.compile(
    r"\n  (?:-h, ?--help|--json|--catalogue TEXT) .*|\n  --interface NAME .*\n {8,}master"
)
OPTIONAL = re.compile(r"\s*\[-(?:[^\[\]]|\[[^\]]*\])*\]")
sys.path.insert(0, str(ROOT / "python"))


def output_of(arguments: list[str]) -> str:
    """Returns the output of a command line that prints a help text, in WIDTH columns."""
    from medley import cli

    found = io.StringIO()
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(WIDTH)
    try:
        with contextlib.redirect_stdout(found), contextlib.suppress(SystemExit):
            cli.run(arguments)
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before
    lines = [line.rstrip() for line in found.getvalue().strip().splitlines()]
    return "\n".join(map(with_sorted_names, lines))


def with_sorted_names(line: str) -> str:
    """Returns a line with sorted option names after "Needs:" and "Excludes:", which vary by run."""
    return re.sub(r"(?<=: )--[\w-]+(?: --[\w-]+)+", lambda m: " ".join(sorted(m[0].split())), line)


def shortened(text: str, description: str) -> str:
    """Returns the help of a verb without its description and without options of all verbs."""
    text = COMMON.sub("", text.replace(f"{description}.\n\n", "").removeprefix(f"{description}\n"))
    usage, gap, rest = text.replace("\n\nOptions:\n\n", "\n\n").partition("\n\n")
    if usage.startswith("usage:"):
        usage = OPTIONAL.sub("", re.sub(r"\s+", " ", usage))
        usage = re.sub(r"^usage: (medley \w+)", r"Usage: \1 [OPTIONS]", usage)
    return usage + gap + rest


def verbs(overview: str) -> dict[str, list[tuple[str, str]]]:
    """Returns name and description of the verbs of each group in the output of `medley --help`."""
    found: dict[str, list[tuple[str, str]]] = {}
    group = ""
    for line in overview.splitlines():
        name, _, text = line.strip().partition(" ")
        if line.startswith("  "):
            found[group].append((name, text.strip()))
        elif line.endswith(":"):
            group = line[:-1]
            found[group] = []
    return found


def page() -> str:
    """Returns the text of docs/cli.md."""
    groups = verbs(output_of(["--help"]))
    lines = [HEAD]
    for group, found in groups.items():
        lines += [f"| {group} | |", "|---|---|"]
        lines += [*(f"| [`{name}`](#{name}) | {text} |" for name, text in found), ""]
    for name, text in (verb for found in groups.values() for verb in found):
        shown = shortened(output_of([name, "--help"]), text)
        lines += [f"## {name}", "", "```text", shown, "```", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="fail if the page is not current")
    if parser.parse_args().check:
        return int(PAGE.read_text() != page())
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
