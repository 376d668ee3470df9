"""The race of plans in emulated training against a hidden truth.

    python benchmarks/race.py [--seeds 1:3] [--json FILE]

A seed draws the truth: rates of matmuls and of memory of each device type times 0.5 to 2,
bandwidths of links times 0.5 to 1.2, and 0 to 2 ms more latency. The run and its plans begin with
the cluster file, and only the emulated devices have the truth. The regret is the step of the last
plan relative to the best known one: that of `auto` under the truth, or a faster one of the race.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from medley import AdamW, Trainer, _runtime, capture, plan
from medley.cluster import Cluster, parse_cluster
from medley.plan import Question
from medley.run import job
from medley.run.replanning import Subject, plan_on, stepper
from medley_extras import models
from medley_extras.race import Tuner

ROWS = 72
SIZES: dict[str, Any] = {"positions": 32, "width": 64, "vocabulary": 256}
MODELS = {
    "gpt": functools.partial(models.gpt, **SIZES, layers=8, tied=False),
    "moe": functools.partial(models.moe, **SIZES, hidden=512, layers=2, experts=8),
    "bert": functools.partial(models.bert, **SIZES, hidden=256, layers=4, tied=False),
    "vgg": functools.partial(
        models.vgg, image=16, channels=((16, 16), (32, 32), (64,)), hidden=256
    ),
}


@dataclasses.dataclass(frozen=True)
class Machines:
    """A cluster: type, nodes and devices per node of each pool, and the network between them.
    Rates in Gflop/s and GB/s, bandwidth in Mbit/s, latency in us."""

    pools: tuple[tuple[str, int, int], ...]
    kinds: dict[str, tuple[float, float]]
    bandwidth: float
    latency: float = 50.0

    def cluster(self) -> Cluster:
        """Returns it in the form of cluster.yaml."""
        text = "format: medley-cluster\nversion: 1\nnodes:\n"
        for name, count, devices in self.pools:
            text += f"  - {{name: p{name}, count: {count}, device: {name}, "
            text += f"devices_per_node: {devices}}}\n"
        names = ", ".join(f"p{name}" for name, _, _ in self.pools)
        text += "networks:\n  - {name: bus, inside: node, bandwidth: 2 GB/s, latency: 20 us}\n"
        text += f"  - {{name: lan, connects: [{names}], bandwidth: {self.bandwidth:.3f} Mbit/s, "
        text += f"latency: {self.latency:.3f} us}}\ndevices:\n"
        for name, (flops, bytes_) in self.kinds.items():
            text += f"  {name}: {{sustained: {{f32: {flops:.3f} Gflop/s}}, memory: 4 GiB, "
            text += f"memory_bandwidth: {bytes_:.4f} GB/s, launch_latency: 20 us}}\n"
        return parse_cluster(text)

    def truth(self, seed: str) -> Machines:
        """Returns the same with hidden figures."""
        draw = random.Random(seed)

        def spread() -> float:
            return math.exp(draw.uniform(-math.log(2), math.log(2)))

        kinds = {
            name: (flops * spread(), bytes_ * spread())
            for name, (flops, bytes_) in self.kinds.items()
        }
        return dataclasses.replace(
            self,
            kinds=kinds,
            bandwidth=self.bandwidth * draw.uniform(0.5, 1.2),
            latency=self.latency + draw.uniform(0, 2000),
        )


CLUSTERS = {
    "four": Machines(
        (("fast", 2, 1), ("slow", 2, 1)), {"fast": (4.4, 2.5), "slow": (2.2, 1.25)}, 25
    ),
    "three": Machines(
        (("large", 1, 2), ("medium", 1, 2), ("small", 2, 2)),
        {"large": (3.3, 1.9), "medium": (1.66, 0.94), "small": (0.83, 0.47)},
        50,
    ),
    "unlike": Machines(
        (("much", 1, 4), ("little", 4, 1)), {"much": (2.5, 4.0), "little": (5.0, 1.0)}, 250
    ),
}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model on a cluster, planned without the truth."""

    make: Callable[..., tuple[nn.Module, Any]]
    machines: Machines

    def race(self, seed: int) -> dict[str, float]:
        """Returns the regrets of the race and of no race, its cost and its steps."""
        torch.manual_seed(0)
        model, batch = self.make(batch=ROWS)
        graph = capture(model, batch, check=False)
        truth = self.machines.truth(f"{seed}").cluster()
        chosen = plan(graph, self.machines.cluster(), global_batch=ROWS)
        with emulated(truth):
            trainer = Trainer(model, graph, chosen, AdamW(), local=True, tune=10**6, remember=False)
            (tuner,) = trainer.observers
            assert isinstance(tuner, Tuner)
            while tuner.race is None or not tuner.race.is_over:
                trainer.step(batch)
        race, subject = tuner.race, Subject.of(trainer.engine)
        known = plan_on(subject, Question("auto", ROWS), truth, chosen)
        best = min(stepper(subject, known)(truth), *(r.measured for r in race.runners))
        last = race.runners[race.best]
        parallel = [
            plan_on(subject, Question(f"data-parallel-{name}", ROWS), subject.machines, chosen)
            for name in ("even", "proportional")
        ]
        fastest = min(stepper(subject, each)(truth) for each in parallel)
        return {
            "regret": last.measured / best - 1,
            "without": race.runners[0].measured / best - 1,
            "cost": race.spent / last.measured,
            "steps": race.steps,
            "off": abs(last.predicted / last.measured - 1),
            "loses": last.measured > fastest * (1 + 1e-9),
        }


@contextlib.contextmanager
def emulated(truth: Cluster) -> Iterator[None]:
    """Emulates the devices of this cluster in all runs inside the block."""
    run: Any = _runtime.Run
    _runtime.Run = lambda program, _, options: run(program, truth, options)  # type: ignore
    try:
        with job.emulated():
            yield
    finally:
        _runtime.Run = run  # type: ignore[misc]


def main() -> None:
    """Prints a row per model and cluster."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", default="1:3", help="first:last")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    first, _, last = options.seeds.partition(":")
    seeds = range(int(first), int(last or first) + 1)
    print("model  cluster          regret  without a race        cost  prediction off loses")
    every: list[dict[str, Any]] = []
    for model, make in MODELS.items():
        for name, machines in CLUSTERS.items():
            found = []
            for seed in seeds:
                found.append(Case(make, machines).race(seed))
                every.append({"model": model, "cluster": name, "seed": seed, **found[-1]})
                if options.json is not None:  # after each race, which takes up to a minute
                    options.json.write_text(json.dumps(every, indent=1))
            print(f"{model:6} {name:8} {_line(found)}", flush=True)
    print(f"{'all':6} {'':8} {_line(every)}")


def _line(found: list[dict[str, Any]]) -> str:
    """Returns medians and worst values of regrets, and of the cost in steps."""

    def of(key: str, scale: float, unit: str) -> str:
        values = [each[key] for each in found]
        return f"{scale * statistics.median(values):5.1f} {scale * max(values):6.1f}{unit}"

    loses = sum(each["loses"] for each in found)
    regrets = f"{of('regret', 100, ' %')} {of('without', 100, ' %')}"
    return f"{regrets} {of('cost', 1, '')} {of('off', 100, ' %')} {loses:>5}"


if __name__ == "__main__":
    main()
