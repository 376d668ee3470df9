"""Traces of spot pools, replayed on the simulator: `python -m benchmarks.spot`. See README.md."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.spot import traces
from benchmarks.spot.costs import Costs
from benchmarks.spot.planned import Planned
from benchmarks.spot.replay import Outcome, oracle, replay


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Reads the arguments."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spot", description=__doc__)
    parser.add_argument("graph", type=Path, help="g.graph")
    parser.add_argument("cluster", type=Path, help="cluster.yaml with a pool for each trace")
    parser.add_argument("--global-batch", type=int, required=True)
    parser.add_argument(
        "--trace", action="append", required=True, help="pool=FILE, .csv or .json; several"
    )
    parser.add_argument(
        "--costs", nargs="*", type=Path, default=[], help="a rule's figures, each with its source"
    )
    parser.add_argument(
        "--state-bytes", type=float, required=True, help="parameters and the optimizer's, once"
    )
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--hours", type=float, help="as long as the trace if not given")
    parser.add_argument("--cache", type=Path, help="keep what plans come to here")
    return parser.parse_args(arguments)


def table(best: Outcome, others: Sequence[tuple[str, Outcome]], end: float) -> str:
    """Returns the figures as Markdown."""
    lines = [
        f"| {end / 3600:.1f} h | rows/s | of the oracle | stopped | recoveries | begun again |",
        "|---|---|---|---|---|---|",
    ]
    for name, outcome in [("oracle: re-plans for nothing", best), *others]:
        lines.append(
            f"| {name} | {outcome.rows / end:.4g} | {outcome.rows / best.rows:.3f} "
            f"| {outcome.stopped_seconds / end:.1%} | {outcome.recoveries} "
            f"| {outcome.begun_again} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    options = parse(arguments)
    read = []
    for word in options.trace:
        pool, _, file = word.partition("=")
        if not file:
            raise ValueError(f"--trace: found {word}, expected pool=FILE")
        read.append(traces.read(Path(file), pool))
    changes = traces.merge(read)
    end = changes[-1].at if options.hours is None else options.hours * 3600
    rules = [Costs.load(path) for path in options.costs]
    planner = Planned(
        options.graph, options.cluster, options.global_batch, options.strategy, options.cache
    )
    best = oracle(changes, planner, end)
    if best.rows == 0.0:
        raise ValueError(f"{options.graph}: no plan fits at any time of the trace")
    others = [
        (
            costs.name,
            replay(changes, planner, costs, options.state_bytes, end, planner.moved),
        )
        for costs in rules
    ]
    nodes = sum(len(change.joined) for change in changes), sum(len(c.left) for c in changes)
    print(f"{len(changes)} changes: {nodes[0]} nodes came, {nodes[1]} left. Steps are simulated;")
    print("recoveries take what the figures below say. Nothing here was run.\n")
    print(table(best, others, end))
    for costs in rules:
        print(f"\n{costs.table()}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, ValueError) as error:
        sys.exit(str(error))
