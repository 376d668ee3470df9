"""Predicted compared with emulated steps, with and without a profile.

    python benchmarks/emulated_prediction.py [--seeds 1 2 3] [--spread 0.3] [--json FILE]

Four families, scaled down, on eight emulated devices: two fast and six slow ones on low-bandwidth
links. The true speeds are hidden: an efficiency per device type, class and size of op, drawn from a
seed. `medley profile` measures it through the emulation, on the ops of data parallelism and a grid.
The profiler does not know the other judged plans, some of which are planned with the profile.
Emulated times are the same on every host.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import itertools
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn

import medley
from medley import _core, _testing
from medley.cluster import Cluster, parse_cluster
from medley.graph import Graph
from medley.plan import Plan, plan
from medley.profiling.profiler import Profiler, Truth, wanted_ops
from medley.run import job
from medley.trainer import Trainer
from medley_extras import models

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: quick, devices_per_node: 2}
  - {name: slow, count: 3, device: lame, devices_per_node: 2}
networks:
  - {name: bus, inside: node, bandwidth: 4 GB/s, latency: 5 us}
  - {name: lan, connects: [fast, slow], bandwidth: 1 Gbit/s, latency: 50 us}
devices:
  quick:
    sustained: {f32: 10 Gflop/s}
    memory: 1 GiB
    memory_bandwidth: 4 GB/s
    launch_latency: 5 us
  lame:
    sustained: {f32: 4 Gflop/s}
    memory: 1 GiB
    memory_bandwidth: 2 GB/s
    launch_latency: 8 us
"""
STRATEGIES = ("data-parallel-even", "data-parallel-proportional", "hap")
RANDOM_PLANS = 4

HEADER = (
    f"{'model':<6} {'seed':>4} {'plan':<36} {'emulated':>11} {'predicted':>11} "
    f"{'error':>7} {'analytic':>9} {'peak':>7}"
)

Make = Callable[..., tuple[nn.Module, Any]]
FAMILIES: dict[str, tuple[Make, int]] = {  # global batch
    "vgg": (
        functools.partial(models.vgg, image=16, channels=((16, 16), (32, 32)), hidden=256),
        64,
    ),
    "vit": (functools.partial(models.vit, width=64, layers=2), 64),
    "bert": (functools.partial(models.bert, width=64, hidden=256, layers=3, vocabulary=1024), 64),
    "moe": (functools.partial(models.moe, width=64, hidden=128, layers=2, experts=8), 64),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One plan on one hidden truth; times in seconds."""

    family: str
    seed: int
    plan: str
    emulated: float
    predicted: float  # with the profile
    analytic: float  # without
    peak_error: float  # predicted / counted - 1, of the device where it is lowest

    @property
    def error(self) -> float:
        """The error of the step with the profile."""
        return self.predicted / self.emulated - 1

    @property
    def analytic_error(self) -> float:
        """The error of the step without a profile."""
        return self.analytic / self.emulated - 1

    def line(self) -> str:
        """Returns it as a line below HEADER."""
        return (
            f"{self.family:<6} {self.seed:>4} {self.plan:<36} "
            f"{self.emulated * 1e3:>8.3f} ms {self.predicted * 1e3:>8.3f} ms "
            f"{self.error:>+7.1%} {self.analytic_error:>+9.1%} {self.peak_error:>+7.1%}"
        )


class Family:
    """A model with its graph and its judged plans."""

    def __init__(self, name: str, cluster: Cluster) -> None:
        make, self.rows = FAMILIES[name]
        self.name = name
        self.cluster = cluster
        self.model, self.batch = make(batch=self.rows)
        self.graph: Graph = medley.capture(self.model, self.batch, name=name)
        self.plans: dict[str, Plan] = {}
        for strategy in STRATEGIES:
            try:
                chosen = plan(self.graph, cluster, strategy, global_batch=self.rows)
            except ValueError as error:
                print(f"{name}: {strategy}: left out: {error}", file=sys.stderr)
                continue
            self.plans[strategy] = chosen
        for seed in range(RANDOM_PLANS):
            text = _testing.random_plan(self.graph.core.text(), cluster.devices, self.rows, seed)
            self.plans[f"random {seed}"] = Plan(text, self.graph, cluster)

    def profile(self, truth: Truth, folder: Path) -> str:
        """Returns a profile of the devices with this hidden truth."""
        path = folder / f"{self.name}-{truth.seed}.json"
        wanted = wanted_ops([self.graph], self.cluster, global_batch=self.rows)
        Profiler(wanted, self.cluster, path, truth).run(None, lambda what, done, of: None)
        return path.read_text()

    def predict(self, chosen: Plan, profile: str) -> tuple[float, dict[str, int]]:
        """Returns the seconds of a step and the peak of each device."""
        found: Any = _core.simulate(
            _core.Program(self.graph.core, chosen.core, self.cluster), self.cluster, profile
        )
        peaks = {name: row["peak"] for name, row in found["devices"].items()}
        return found["step"] * 1e-9, peaks

    def emulate(self, chosen: Plan, truth: Truth) -> tuple[float, dict[str, int]]:
        """Returns the same, as it happens. The second step is like all that follow."""
        with job.emulated(truth_seed=truth.seed, truth_spread=truth.spread):
            trainer = Trainer(self.model, self.graph, chosen, local=True, keep_gradients=False)
            for _ in range(2):
                metrics = trainer.step(self.batch)
        peaks = trainer.peak_bytes()
        return metrics.step_seconds, peaks


def judge(family: Family, truth: Truth, folder: Path) -> list[Row]:
    """Returns a row for each plan."""
    profile = family.profile(truth, folder)
    plans = dict(family.plans)
    for strategy in STRATEGIES:
        if strategy in plans:
            plans[f"{strategy}, profiled"] = plan(
                family.graph,
                family.cluster,
                strategy,
                global_batch=family.rows,
                profile=folder / f"{family.name}-{truth.seed}.json",
            )
    rows = []
    for name, chosen in plans.items():
        emulated, counted = family.emulate(chosen, truth)
        predicted, peaks = family.predict(chosen, profile)
        analytic, _ = family.predict(chosen, "")
        lowest = min(peaks[device] / counted[device] - 1 for device in counted)
        rows.append(Row(family.name, truth.seed, name, emulated, predicted, analytic, lowest))
    return rows


def swaps(rows: list[Row], limit: float) -> list[str]:
    """Returns the pairs of plans of one model in another order than predicted, if they differ by
    more than `limit`."""
    found = []
    for (_, _), group in itertools.groupby(rows, key=lambda row: (row.family, row.seed)):
        for a, b in itertools.combinations(list(group), 2):
            apart = abs(a.emulated - b.emulated) > limit * min(a.emulated, b.emulated)
            if apart and (a.emulated < b.emulated) != (a.predicted < b.predicted):
                found.append(f"{a.family} {a.seed}: {a.plan}, {b.plan}")
    return found


def summarize(rows: list[Row]) -> dict[str, Any]:
    """Returns the figures that are required."""
    errors = [abs(row.error) for row in rows]
    analytic = [abs(row.analytic_error) for row in rows]
    return {
        "plans": len(rows),
        "with_profile": {"median": statistics.median(errors), "worst": max(errors)},
        "without_profile": {"median": statistics.median(analytic), "worst": max(analytic)},
        "lowest_peak_error": min(row.peak_error for row in rows),
        "swapped": swaps(rows, 0.0),
    }


def main() -> None:
    """Prints a table and the figures. Exits with 1 if they miss the requirements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--spread", type=float, default=0.3)
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--json", help="write the rows here")
    arguments = parser.parse_args()
    cluster = parse_cluster(CLUSTER, "cluster")
    rows: list[Row] = []
    print(HEADER)
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.families:
            family = Family(name, cluster)
            for seed in arguments.seeds:
                for row in judge(family, Truth(seed, arguments.spread), Path(folder)):
                    rows.append(row)
                    print(row.line(), flush=True)
    figures = summarize(rows)
    print(json.dumps(figures, indent=2))
    if arguments.json:
        text = json.dumps({"figures": figures, "rows": [dataclasses.asdict(row) for row in rows]})
        Path(arguments.json).write_text(text)
    good = figures["with_profile"]["median"] <= 0.05 and figures["with_profile"]["worst"] <= 0.10
    good = good and figures["lowest_peak_error"] >= -0.05 and not figures["swapped"]
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
