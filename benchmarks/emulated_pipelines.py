"""Schedules of one pipeline over a low-bandwidth link: predicted compared with emulated steps.

    python benchmarks/emulated_pipelines.py [--seeds 1 2] [--spread 0.3] [--microbatches 16]

A GPT on 2 + 2 and on 4 + 2 emulated devices of hidden speed, as in emulated_prediction.py. `harp`
plans with the profile of `medley profile`. The same stages then run with every schedule. "hidden"
is the overlapped share of the boundaries' time (all micro-batches, both directions), from a
comparison with links a thousand times as fast.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

import emulated_prediction as single

import medley
from medley import _core
from medley.cluster import Cluster, parse_cluster
from medley.plan import Plan, plan
from medley.profiling.profiler import Truth
from medley_extras import models

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {{name: fast, count: 1, device: quick, devices_per_node: {fast}}}
  - {{name: slow, count: 1, device: lame, devices_per_node: 2}}
networks:
  - {{name: bus, inside: node, bandwidth: 4 GB/s, latency: 5 us}}
  - {{name: wan, connects: [fast, slow], bandwidth: {mbits:g} Mbit/s, latency: {us:g} us}}
devices:
  quick:
    sustained: {{f32: 10 Gflop/s}}
    memory: 1 GiB
    memory_bandwidth: 4 GB/s
    launch_latency: 5 us
  lame:
    sustained: {{f32: 4 Gflop/s}}
    memory: 1 GiB
    memory_bandwidth: 2 GB/s
    launch_latency: 8 us
"""
BANDWIDTH, LATENCY = 60e6, 200e-6  # bit/s and seconds, of the link between the nodes
FAST = 1000  # factor of a link with nearly no time
SCHEDULES = ["h1f1b", "1f1b", "eager-1f1b", "gpipe"]
ROWS = 4  # per micro-batch
MAKE = functools.partial(models.gpt, width=128, layers=6)


@dataclasses.dataclass(frozen=True)
class Row:
    """One schedule on one hidden truth; times in seconds."""

    devices: str
    seed: int
    schedule: str
    emulated: float
    predicted: float
    over_fast_links: float
    boundaries: float

    @property
    def error(self) -> float:
        """The error of the step."""
        return self.predicted / self.emulated - 1

    @property
    def hidden(self) -> float:
        """The share of the boundaries' time that does not make the step longer."""
        return 1 - (self.emulated - self.over_fast_links) / self.boundaries


def cluster(fast: int, bandwidth: float, latency: float) -> Cluster:
    """Returns the cluster with such a link."""
    text = CLUSTER.format(fast=fast, mbits=bandwidth * 1e-6, us=latency * 1e6)
    return parse_cluster(text, "cluster")


class Pipelines(single.Family):
    """A model, a cluster, and one pipeline with every schedule."""

    def __init__(self, fast: int, microbatches: int) -> None:
        self.name = f"{fast} + 2"
        self.microbatches = microbatches
        self.rows = ROWS * microbatches
        self.cluster = cluster(fast, BANDWIDTH, LATENCY)
        self.free = cluster(fast, BANDWIDTH * FAST, LATENCY / FAST)
        self.model, self.batch = MAKE(batch=self.rows)
        self.graph = medley.capture(self.model, self.batch, name="gpt")

    def variants(self, profile: Path) -> dict[str, Plan]:
        """Returns the plan that harp finds, with each schedule."""
        found = plan(
            self.graph,
            self.cluster,
            "harp",
            global_batch=self.rows,
            microbatches=self.microbatches,
            profile=profile,
        )
        plans = {"h1f1b": found}
        for schedule in SCHEDULES[1:]:
            text = json.loads(found.text)
            text["pipelines"][0]["schedule"] = schedule
            del text["pipelines"][0]["in_flight"]
            plans[schedule] = Plan(json.dumps(text), self.graph, self.cluster)
        return plans

    def over_fast_links(self, chosen: Plan, profile: str) -> float:
        """Returns the seconds of a step if links took next to no time."""
        text, measured = json.loads(chosen.text), json.loads(profile)
        text.pop("cluster_hash", None)
        measured["collectives"] = []  # they depend on the speed of the links
        found: Any = _core.simulate(
            _core.Program(self.graph.core, _core.Plan(json.dumps(text)), self.free),
            self.free,
            json.dumps(measured),
        )
        return float(found["step"] * 1e-9)

    def boundaries(self, chosen: Plan, profile: str) -> float:
        """Returns the seconds per step for which the low-bandwidth link is busy, summed over
        directions."""
        found: Any = _core.simulate(
            _core.Program(self.graph.core, chosen.core, self.cluster), self.cluster, profile
        )
        sent = [size for link, size in found["bytes_by_link"].items() if "wan:fast" in link]
        return float(sum(sent) * 8 / BANDWIDTH + 2 * self.microbatches * LATENCY)


def judge(family: Pipelines, seed: int, spread: float, folder: Path) -> list[Row]:
    """Returns a row for each schedule."""
    truth = Truth(seed, spread)
    profile = family.profile(truth, folder)
    rows = []
    for name, chosen in family.variants(folder / f"{family.name}-{seed}.json").items():
        emulated, _ = family.emulate(chosen, truth)
        predicted, _ = family.predict(chosen, profile)
        free = family.over_fast_links(chosen, profile)
        busy = family.boundaries(chosen, profile)
        rows.append(Row(family.name, seed, name, emulated, predicted, free, busy))
    return rows


def main() -> None:
    """Prints a line for each run and the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--spread", type=float, default=0.3)
    parser.add_argument("--microbatches", type=int, default=16)
    asked = parser.parse_args()
    rows: list[Row] = []
    print("devices  seed  schedule     emulated  predicted    error  hidden")
    with tempfile.TemporaryDirectory() as folder:
        families = [Pipelines(fast, asked.microbatches) for fast in (2, 4)]
        for family, seed in itertools.product(families, asked.seeds):
            for row in judge(family, seed, asked.spread, Path(folder)):
                rows.append(row)
                print(
                    f"{row.devices:7}  {row.seed:4}  {row.schedule:10}  "
                    f"{row.emulated * 1e3:7.2f} ms {row.predicted * 1e3:7.2f} ms "
                    f"{row.error:+7.1%} {row.hidden:7.0%}",
                    flush=True,
                )
    errors = [abs(row.error) for row in rows]
    print(f"error: median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    swapped = [
        f"{a.devices} {a.seed}: {a.schedule}, {b.schedule}"
        for a, b in itertools.combinations(rows, 2)
        if (a.devices, a.seed) == (b.devices, b.seed)
        and (a.emulated < b.emulated) != (a.predicted < b.predicted)
        and a.emulated != b.emulated
    ]
    print(f"order other than predicted: {', '.join(swapped) or 'none'}")


if __name__ == "__main__":
    main()
