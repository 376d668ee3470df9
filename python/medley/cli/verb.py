"""A verb of the command line that Python runs."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import sys
from collections.abc import Callable, Iterator
from typing import NamedTuple


class Verb(NamedTuple):
    """A command: adds its arguments to a parser, then runs; returns the exit code."""

    name: str
    help: str
    example: str
    prepare: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]
    is_of_a_job: bool = False  # torchrun may start it several times: it has --interface
    # The process ends without taking apart what it has imported, which takes two seconds. Most of
    # what imports and traces make stays: looking for garbage is a quarter of them.
    ends_at_once: bool = False


def verb_of(module: str, name: str, help: str, example: str, **more: bool) -> Verb:
    """Returns the verb of a module, which is imported when it is used: its functions are
    prepare(parser) and command(arguments)."""

    def prepare(parser: argparse.ArgumentParser) -> None:
        importlib.import_module(module).prepare(parser)

    def run(arguments: argparse.Namespace) -> int:
        return int(importlib.import_module(module).command(arguments))

    return Verb(name, help, example, prepare, run, **more)


@contextlib.contextmanager
def progress(what: str, quiet: bool) -> Iterator[None]:
    """Shows on a terminal that something is under way."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{what} ..."):
        yield
