"""`medley demo`: a small GPT on heterogeneous devices, and a run that tolerates the loss of a
process."""

from __future__ import annotations

import argparse
from pathlib import Path


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.add_argument("--steps", type=int, default=30, help="of each run")
    parser.add_argument(
        "--trace", default="demo_trace.json", help="write a trace for Perfetto here"
    )
    parser.add_argument(
        "--no-kill", action="store_true", help="do not show how a run goes on without a process"
    )


def command(arguments: argparse.Namespace) -> int:
    """Runs the verb. Returns the exit code."""
    from medley_extras.demo.emulated import demo
    from medley_extras.demo.kill import survive

    kill = None if arguments.no_kill else survive
    return demo(arguments.steps, Path(arguments.trace), arguments.json, kill)
