"""The emulation compared with the testbed: `python -m testbed.emulation cluster.yaml`.

For each workload it makes plans from cluster.yaml and profiles their ops in the testbed. Each plan
runs twice: emulated with these times, and in the testbed, as the median of at least 30 steps. An
existing profile in the folder is used.

An idle device starts with a whole share of its quota at full speed: each time it computes up to a
period ahead of a slow CPU. Choose enough rows and layers for many periods of computing between two
waits.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import medley
from medley.run import job
from testbed import compare, contestants
from testbed.comparators import workloads

EMULATED_STEPS = 4
WINDOW = "0.4s"  # twenty periods
WORKLOADS = ("vgg?rows=288&depth=4", "bert_moe?rows=288")


@dataclasses.dataclass(frozen=True)
class Pair:
    """The same plan, twice."""

    name: str
    emulated: float  # seconds
    real: float

    @property
    def difference(self) -> float:
        """Returns how much longer the emulated step is, as a share of the real one."""
        return self.emulated / self.real - 1


def emulated_seconds(workload: str, plan: Path, cluster: Path, profile: Path) -> float:
    """Returns the emulated time of a step once it has settled."""
    model, example = workloads.load(workload)
    graph = medley.capture(model, example)
    chosen = medley.plan(graph, cluster, plan=plan)
    optimizer = medley.AdamW(lr=workloads.LEARNING_RATE, weight_decay=0.01)
    with job.emulated(profile=str(profile.resolve())):
        trainer = medley.Trainer(model, graph, chosen, optimizer, local=True, keep_gradients=False)
    data = workloads.batches(example, 2)
    steps = [trainer.step(data[i % 2]).step_seconds for i in range(EMULATED_STEPS)]
    return statistics.median(steps[1:])


def profile(workload: str, cluster: Path, plans: list[Path], graph: Path, output: Path) -> None:
    """Measures the ops of the plans in the testbed. Raises OSError if that fails."""
    command = [
        *(sys.executable, "-m", "testbed", "--when-ready", "--quiet", "--timeout", "1200"),
        *(str(cluster), "--", sys.executable, "-m", "testbed.imported", "medley", "profile"),
        *(str(graph), str(cluster), "--plan", *map(str, plans), "--no-grid", "--no-collectives"),
        *("--window", WINDOW, "--budget", "never", "-o", str(output)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{workload}: {(done.stdout + done.stderr)[-3000:]}")


def table(pairs: list[Pair]) -> str:
    """Returns the figures as Markdown."""
    lines = ["| plan | emulated | testbed | difference |", "|---|---|---|---|"]
    for pair in pairs:
        lines.append(
            f"| {pair.name} | {pair.emulated * 1e3:.0f} ms | {pair.real * 1e3:.0f} ms "
            f"| {pair.difference:+.1%} |"
        )
    return "\n".join(lines)


def main() -> int:
    """Returns 1 if a step differs by more than the tolerance."""
    parser = argparse.ArgumentParser(prog="python -m testbed.emulation", description=__doc__)
    parser.add_argument("cluster", type=Path)
    parser.add_argument("--profiles", type=Path, required=True, help="folder: vgg.json, ...")
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS)
    parser.add_argument("--strategies", nargs="+", default=["data-parallel-proportional", "hap"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tolerance", type=float, default=0.05)
    options = parser.parse_args()
    contestants.end_on_sigterm()
    options.profiles.mkdir(parents=True, exist_ok=True)
    cluster = options.cluster.resolve()
    pairs = []
    with tempfile.TemporaryDirectory(prefix="medley-emulation-") as name:
        folder = Path(name)
        for workload in options.workloads:
            planned = compare.plans(workload, cluster, folder, options.strategies)
            plans = [folder / f"{workload}.{strategy}.json" for strategy in options.strategies]
            times = options.profiles / f"{workload}.json"
            if not times.exists():
                profile(workload, cluster, plans, folder / f"{workload}.graph", times)
                print(f"{workload}: profiled, load {os.getloadavg()[0]:.1f}", flush=True)
            for strategy, contestant, plan in zip(options.strategies, planned, plans, strict=True):
                emulated = emulated_seconds(workload, plan, cluster, times)
                record = contestants.run(contestant, cluster, options.steps, folder)
                pairs.append(Pair(f"{workload}, {strategy}", emulated, record.median))
                print(f"{pairs[-1]}, load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"\n{table(pairs)}")
    return int(any(abs(pair.difference) > options.tolerance for pair in pairs))


if __name__ == "__main__":
    sys.exit(main())
