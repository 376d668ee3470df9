"""Heterogeneous pipelines: predicted compared with emulated steps.

    python benchmarks/emulated_groups.py [--seeds 1 2 3] [--spread 0.3] [--json FILE]

A GPT and a BERT on eight emulated devices of three types in four nodes with low-bandwidth links.
The true speeds are hidden, as in emulated_prediction.py. `medley profile` measures them on the ops
of data parallelism and a grid. The judged plans are those of `autohet` and `harp` for several
numbers of micro-batches, with and without the profile, `autohet`'s with other schedules, and two to
four random pipelines. Emulated times are the same on every host.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import emulated_prediction as single

import medley
from medley import _testing
from medley.cluster import Cluster, parse_cluster
from medley.plan import Plan, plan
from medley.profiling.profiler import Truth
from medley_extras import models

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: quick, devices_per_node: 2}
  - {name: middle, count: 1, device: fair, devices_per_node: 2}
  - {name: slow, count: 2, device: lame, devices_per_node: 2}
networks:
  - {name: bus, inside: node, bandwidth: 4 GB/s, latency: 5 us}
  - {name: lan, connects: [fast, middle, slow], bandwidth: 400 Mbit/s, latency: 50 us}
devices:
  quick:
    sustained: {f32: 16 Gflop/s}
    memory: 1 GiB
    memory_bandwidth: 6 GB/s
    launch_latency: 5 us
  fair:
    sustained: {f32: 8 Gflop/s}
    memory: 1 GiB
    memory_bandwidth: 4 GB/s
    launch_latency: 5 us
  lame:
    sustained: {f32: 4 Gflop/s}
    memory: 1 GiB
    memory_bandwidth: 2 GB/s
    launch_latency: 8 us
"""
ROWS = 64
MICROBATCHES = (4, 8, 16)
SCHEDULES = ("gpipe", "eager-1f1b")
RANDOM_PLANS = 7
APART = 0.02  # relative difference of emulated steps below which plans have no order
FAMILIES: dict[str, single.Make] = {
    "gpt": functools.partial(models.gpt, width=128, layers=6),
    "bert": functools.partial(models.bert, width=128, hidden=512, layers=6, vocabulary=1024),
}


class Groups(single.Family):
    """A model with its judged plans."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name = name
        self.rows = ROWS
        self.cluster = cluster
        self.model, self.batch = FAMILIES[name](batch=ROWS)
        self.graph = medley.capture(self.model, self.batch, name=name)
        self.plans: dict[str, Plan] = {}
        for strategy in ("autohet", "harp"):
            for count in MICROBATCHES:
                self.plans[f"{strategy} {count}"] = self.find(strategy, count)
        for schedule in SCHEDULES:
            text = json.loads(self.plans[f"autohet {MICROBATCHES[-1]}"].text)
            for pipeline in text["pipelines"]:
                pipeline["schedule"] = schedule
                pipeline.pop("in_flight", None)
            self.plans[f"autohet, {schedule}"] = Plan(json.dumps(text), self.graph, cluster)
        for seed in range(RANDOM_PLANS):
            text = _testing.random_pipelines(self.graph.core.text(), cluster.devices, ROWS, seed)
            self.plans[f"random {seed}"] = Plan(text, self.graph, cluster)

    def find(self, strategy: str, count: int | None = None, profile: Path | None = None) -> Plan:
        """Returns the plan of a strategy."""
        return plan(
            self.graph,
            self.cluster,
            strategy,
            global_batch=ROWS,
            microbatches=count,
            profile=profile,
        )


def judge(family: Groups, truth: Truth, folder: Path) -> list[single.Row]:
    """Returns a row for each plan."""
    profile = family.profile(truth, folder)
    path = folder / f"{family.name}-{truth.seed}.json"
    profiled = {f"{name}, profiled": family.find(name, None, path) for name in ("autohet", "harp")}
    rows = []
    for name, chosen in (family.plans | profiled).items():
        emulated, counted = family.emulate(chosen, truth)
        predicted, peaks = family.predict(chosen, profile)
        analytic, _ = family.predict(chosen, "")
        lowest = min(peaks[device] / counted[device] - 1 for device in counted)
        rows.append(
            single.Row(family.name, truth.seed, name, emulated, predicted, analytic, lowest)
        )
    return rows


def pairs_apart(rows: list[single.Row]) -> int:
    """Returns how many pairs of plans of one model and truth have an order."""
    groups: dict[tuple[str, int], list[float]] = {}
    for row in rows:
        groups.setdefault((row.family, row.seed), []).append(row.emulated)
    return sum(
        abs(a - b) > APART * min(a, b)
        for steps in groups.values()
        for i, a in enumerate(steps)
        for b in steps[:i]
    )


def summarize(rows: list[single.Row]) -> dict[str, Any]:
    """Returns the figures that are required."""
    errors = [abs(row.error) for row in rows]
    pairs = pairs_apart(rows)
    swapped = single.swaps(rows, APART)
    return {
        "plans": len(rows),
        "median": statistics.median(errors),
        "worst": max(errors),
        "without_profile": statistics.median(abs(row.analytic_error) for row in rows),
        "lowest_peak_error": min(row.peak_error for row in rows),
        "pairs": pairs,
        "in_order": 1 - len(swapped) / pairs,
        "swapped": swapped,
    }


def main() -> None:
    """Prints a table and the figures. Exits with 1 if they miss the requirements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--spread", type=float, default=0.3)
    parser.add_argument("--json", help="write the rows here")
    asked = parser.parse_args()
    cluster = parse_cluster(CLUSTER, "cluster")
    rows: list[single.Row] = []
    print(single.HEADER)
    with tempfile.TemporaryDirectory() as folder:
        for name in FAMILIES:
            family = Groups(name, cluster)
            for seed in asked.seeds:
                for row in judge(family, Truth(seed, asked.spread), Path(folder)):
                    rows.append(row)
                    print(row.line(), flush=True)
    figures = summarize(rows)
    print(json.dumps(figures, indent=2))
    if asked.json:
        text = json.dumps({"figures": figures, "rows": [dataclasses.asdict(row) for row in rows]})
        Path(asked.json).write_text(text)
    good = figures["median"] <= 0.02 and figures["in_order"] >= 0.99
    sys.exit(0 if good and figures["lowest_peak_error"] >= -0.05 else 1)


if __name__ == "__main__":
    main()
