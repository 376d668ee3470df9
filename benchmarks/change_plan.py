"""Bytes and time of a change of plan in a job, against its bound:

    python -m testbed --when-ready testbed/four.yaml -- \\
        python benchmarks/change_plan.py moe testbed/four.yaml PLAN PLAN ...

Trains under each plan in turn, from the last one to the next. The bound is the largest of all
devices: 1.5 times the bytes that it sends or receives at its bandwidth, one step of the new plan,
and the making of its program and run.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from typing import Any

import torch

import medley
from medley import _core
from medley.cluster import load_cluster
from medley.engine import Engine
from medley.run import exchange
from testbed.comparators import workloads
from testbed.ready import ready

STEPS = 4  # under each plan
FACTOR = 1.5


class Building:
    """Sums the seconds in which an engine makes programs and runs."""

    def __init__(self, engine: Engine) -> None:
        self.seconds = 0.0
        for name in ("program_of", "make_run"):
            setattr(engine, name, self._timed(getattr(engine, name)))

    def _timed(self, make: Any) -> Any:
        def timed(*arguments: Any) -> Any:
            begin = time.monotonic()
            made = make(*arguments)
            self.seconds += time.monotonic() - begin
            return made

        return timed


def main() -> None:
    """Prints a line per change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload")
    parser.add_argument("cluster")
    parser.add_argument("plans", nargs="+")
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model, batch = workloads.load(options.workload)
    graph = medley.capture(model, batch)
    machines = load_cluster(options.cluster)
    plans = [medley.plan(graph, machines, plan=each) for each in options.plans]
    trainer = medley.Trainer(model, graph, plans[0], medley.AdamW(lr=1e-3), keep_gradients=False)
    engine = trainer.engine
    building = Building(engine)
    bandwidth = min(each.bandwidth for each in machines.networks)
    ready()
    for _ in range(STEPS):
        trainer.step(batch)
    order = [plans[n % len(plans)] for n in range(1 + options.turns * len(plans))]
    for before, after in itertools.pairwise(order):
        programs = [engine.program_of(each) for each in (before, after)]
        moves = _core.ReshardPlan([(programs[0], programs[0].devices, None)], programs[1])
        building.seconds = 0.0
        exchange.largest(0.0)
        begin = time.monotonic()
        received = trainer.change_plan(after)
        seconds = exchange.largest(time.monotonic() - begin)
        built = exchange.largest(building.seconds)
        steps = [trainer.step(batch).step_seconds for _ in range(STEPS)]
        usual = exchange.largest(statistics.median(steps))
        bound = FACTOR * moves.busiest / bandwidth + usual + built
        total = sum(exchange.values(received))
        if trainer.is_first:
            print(
                f"{before.strategy} -> {after.strategy}: {seconds:.2f} s, {total} bytes received, "
                f"{moves.busiest} by the busiest device; building {built:.2f} s, step {usual:.2f} "
                f"s: {seconds / bound:.2f} of the bound",
                flush=True,
            )
    trainer.finish()


if __name__ == "__main__":
    main()
