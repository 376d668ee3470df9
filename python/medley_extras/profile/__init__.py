"""`medley profile`: measures the times of ops and collectives of models."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from medley import SGD, AdamW, Graph, Plan, capture
from medley.cli.verb import print_next
from medley.cluster import load_cluster
from medley.profiling.profiler import Outcome, Profiler, Truth, wanted_ops
from medley.run import job


def read_seconds(text: str, option: str = "--budget") -> float:
    """Returns the seconds in "90", "60s", "5m", "10ms"."""
    units = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
    name = next((each for each in units if text.endswith(each)), "")
    digits, unit = text.removesuffix(name), units.get(name, 1.0)
    try:
        seconds = float(digits) * unit
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e7:
        raise ValueError(f"{option}: found {text!r}, expected a time such as 60s or 5m")
    return seconds


def describe(outcome: Outcome, output: Path, kinds: Sequence[str]) -> str:
    """Returns a description of the outcome in two or three sentences."""
    text = (
        f"{outcome.unique} unique of {outcome.seen} ops, on {', '.join(kinds)}\n"
        f"{outcome.wanted - outcome.unique} more for sizes in between, "
        f"{outcome.collectives} collectives\n"
        f"{output}: {outcome.wanted - outcome.left - len(outcome.failed)} of {outcome.wanted} "
        f"ops measured, {outcome.share:.0%} of the predicted time, {outcome.seconds:.1f} s"
    )
    if outcome.left:
        text += f"; {outcome.left} are left: --resume continues"
    for sentence in outcome.failed[:5]:
        text += f"\nnot measured: {sentence}"
    if len(outcome.failed) > 5:
        text += f"\n... and {len(outcome.failed) - 5} more"
    return text


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `medley profile`."""
    parser.add_argument(
        "graphs", nargs="+", help="files that `medley capture` wrote, or package.module:function"
    )
    parser.add_argument("cluster", help="cluster.yaml")
    parser.add_argument("-o", "--output", default="profile.json", help="write the profile here")
    parser.add_argument(
        "--plan", nargs="+", default=[], help="measure the ops of these plans, at their sizes"
    )
    parser.add_argument(
        "--global-batch",
        type=int,
        metavar="N",
        help="rows of a step; without --plan the plans of data parallelism are measured",
    )
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--no-grid", action="store_true", help="no other sizes than these")
    parser.add_argument(
        "--no-ops", action="store_true", help="links only: ops are priced by cluster.yaml"
    )
    parser.add_argument(
        "--busy",
        metavar="TIME",
        help="measure only messages, between devices that compute so long before each; by default "
        "CPUs compute 10ms before small messages",
    )
    parser.add_argument(
        "--no-collectives", action="store_true", help="ops only: links are as cluster.yaml says"
    )
    parser.add_argument(
        "--emulate", action="store_true", help="measure the emulated devices of the cluster"
    )
    parser.add_argument("--truth-seed", type=int, default=0, help="of emulated devices")
    parser.add_argument("--truth-spread", type=float, default=0.0, help="of emulated devices")
    parser.add_argument("--kind", help="the device type of the cluster that this machine has")
    parser.add_argument("--device", help="cpu or cuda:0; the default is what this machine has")
    parser.add_argument(
        "--budget",
        metavar="TIME",
        help="stop after 50s, 5m or never; 50s is the default on real devices; --resume continues",
    )
    parser.add_argument(
        "--window",
        metavar="TIME",
        help="median of three means over so long, not of single runs; by default 0.3s if a CPU is "
        "under a quota or busy",
    )
    parser.add_argument("--resume", action="store_true", help="keep what the output already has")


def command(arguments: argparse.Namespace) -> int:
    """Runs `medley profile`."""
    sys.path.insert(0, os.getcwd())
    budget = _budget(arguments)
    window = read_seconds(arguments.window, "--window") if arguments.window else None
    busy = read_seconds(arguments.busy, "--busy") if arguments.busy else None
    if busy and (arguments.emulate or arguments.no_collectives):
        raise ValueError("--busy: found --emulate or --no-collectives, expected to measure links")
    if not 0 <= arguments.truth_spread < 1:
        raise ValueError(
            f"--truth-spread: found {arguments.truth_spread}, expected a number in [0, 1)"
        )
    if not 0 <= arguments.truth_seed < 2**64:
        raise ValueError(
            f"--truth-seed: found {arguments.truth_seed}, expected a number in [0, 2^64)"
        )
    if arguments.global_batch is not None and arguments.global_batch < 1:
        raise ValueError(f"--global-batch: found {arguments.global_batch}, expected 1 or more")
    cluster = load_cluster(arguments.cluster)
    plans = [Plan.load(path) for path in arguments.plan]
    graphs = [_load(name) for name in arguments.graphs]
    optimizer = AdamW() if arguments.optimizer == "adamw" else SGD(lr=0.1)
    output = Path(arguments.output)
    truth = Truth(arguments.truth_seed, arguments.truth_spread) if arguments.emulate else None
    wanted = wanted_ops([], cluster, grid=False)
    if not arguments.no_ops:
        wanted = wanted_ops(
            graphs, cluster, plans, arguments.global_batch, optimizer, not arguments.no_grid
        )
    profiler = Profiler(
        wanted,
        cluster,
        output,
        truth,
        arguments.kind,
        arguments.device,
        arguments.resume,
        window,
        not arguments.no_collectives,
        busy,
    )
    code = _run(profiler, output, budget, arguments.json)
    this = job.current()
    if arguments.global_batch and not arguments.json and (this is None or this.rank == 0):
        words = ["medley", "plan", arguments.graphs[0], arguments.cluster, "--profile", str(output)]
        print_next([*words, "--global-batch", str(arguments.global_batch), "-o", "plan.json"])
    return code


def _budget(arguments: argparse.Namespace) -> float | None:
    if arguments.budget == "never" or (arguments.budget is None and arguments.emulate):
        return None
    return read_seconds(arguments.budget or "50s")


def _load(name: str) -> Graph:
    if Path(name).is_file():
        return Graph.load(name)
    if ":" not in name:
        raise ValueError(f"{name}: cannot be read: no such file")
    from medley.capture import model_name, weightless

    model, batch = weightless.load(lambda: model_name.load(name, None))
    return capture(model, batch)


def _run(profiler: Profiler, output: Path, budget: float | None, as_json: bool) -> int:
    """Runs the profiler with a progress bar and prints its outcome."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    this = job.current()
    quiet = as_json or (this is not None and this.rank != 0)
    columns = (
        TextColumn("measuring {task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TimeElapsedColumn(),
    )
    console = Console(stderr=True)
    try:
        with Progress(*columns, console=console, transient=True, disable=quiet) as progress:
            task = progress.add_task("ops", total=None)

            def report(what: str, done: int, of: int) -> None:
                progress.update(task, description=what, completed=done, total=of)

            outcome = profiler.run(budget, report)
    except KeyboardInterrupt:
        console.print(f"{output} has what was measured; --resume continues", highlight=False)
        raise
    if this is not None and this.rank != 0:
        return 0
    if as_json:
        figures: dict[str, Any] = dataclasses.asdict(outcome)
        print(json.dumps({"profile": str(output), "kinds": profiler.kinds, **figures}, indent=2))
    else:
        print(describe(outcome, output, profiler.kinds))
    return 0
