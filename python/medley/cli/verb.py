"""A verb of the command line that is implemented in Python."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple


class Verb(NamedTuple):
    """A command: adds its arguments to a parser, then runs. Returns the exit code.

    Example:
        Verb("size", "Inspect", "Print the size", "medley size plan.json", prepare, command)
    """

    name: str
    group: str  # of `medley --help`
    help: str
    example: str
    prepare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    is_of_a_job: bool = False  # torchrun may start it several times; it has --interface
    # Ends the process without freeing imported modules, which takes two seconds, and without
    # garbage collection, which is a quarter of the time of imports and traces.
    ends_at_once: bool = False


def verb_of(module: str, name: str, group: str, help: str, example: str, **more: bool) -> Verb:
    """Returns the verb of a module with the functions prepare(parser) and command(arguments). The
    module is imported at first use."""

    def prepare(parser: argparse.ArgumentParser) -> None:
        importlib.import_module(module).prepare(parser)

    def run(arguments: argparse.Namespace) -> int:
        return int(importlib.import_module(module).command(arguments))

    return Verb(name, group, help, example, prepare, run, **more)


def print_next(*commands: Sequence[str]) -> None:
    """Prints the commands that follow, as the verbs of the core do."""
    for lead, words in zip(("Next: ", "  or: "), commands, strict=False):
        print(lead + wrapped(shlex.join(words), " \\\n        ", 90))


def wrapped(text: str, between: str = "\n  ", width: int = 98) -> str:
    """Returns the text with its wide lines broken between words."""
    whole = {"break_long_words": False, "break_on_hyphens": False}
    lines = [textwrap.wrap(line, width, **whole) for line in text.split("\n")]  # type: ignore
    return "\n".join(between.join(line) for line in lines)


@contextlib.contextmanager
def progress(what: str, quiet: bool) -> Iterator[None]:
    """Shows on a terminal that work is in progress."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ..."):
        yield
