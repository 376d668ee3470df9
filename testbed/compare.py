"""Medley against PyTorch DDP in the testbed: `python -m testbed.compare cluster.yaml`.

Same model, initial values, data and global batch. For each workload: plans are made, DDP's bucket
size is tuned, then all contestants run in turn, several times; a run's figure is the median of its
steps, a contestant's the median of its runs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.comparators import timing, workloads

BUCKETS_MB = (0.5, 1.0, 2.0, 5.0, 25.0)
# Of the losses at the first steps, and later, when AdamW has amplified what rounding leaves.
FIRST_STEPS, FIRST_TOLERANCE, LAST_TOLERANCE = 3, 1e-5, 1e-2


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A name for the table, and what the testbed is asked to run."""

    name: str
    testbed_options: tuple[str, ...]
    command: tuple[str, ...]  # takes the file for its record and the number of steps at its end


@dataclasses.dataclass
class Result:
    """What the runs of one contestant gave."""

    name: str
    records: list[timing.Record] = dataclasses.field(default_factory=list)
    loads: list[float] = dataclasses.field(default_factory=list)  # of the machine, after each run

    @property
    def seconds(self) -> float:
        """Returns the median over the runs."""
        return statistics.median(record.median for record in self.records)


def ddp(workload: str, cluster: Path, split: str, bucket_mb: float) -> Contestant:
    """Returns PyTorch DDP with a split of the rows and a bucket size."""
    options = ("--split", split, "--bucket-mb", str(bucket_mb))
    module = "testbed.comparators.ddp"
    return Contestant(f"DDP {split}", (), (module, workload, str(cluster), *options))


def medley(workload: str, cluster: Path, strategy: str, plan: Path) -> Contestant:
    """Returns Medley with a plan."""
    module = "testbed.comparators.medley_job"
    options = ("--plan", str(plan))
    return Contestant(f"Medley {strategy}", options, (module, workload, str(cluster)))


def run(contestant: Contestant, cluster: Path, steps: int, folder: Path) -> timing.Record:
    """Runs a contestant once. Raises OSError with the end of its output if it fails."""
    output = folder / "record.json"
    output.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "testbed", "--when-ready", "--quiet", *contestant.testbed_options),
        *(str(cluster), "--", sys.executable, "-m", *contestant.command),
        *("--output", str(output), "--steps", str(steps)),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{contestant.name}: {(done.stdout + done.stderr)[-3000:]}")
    return timing.Record.load(output)


def tuned(
    workload: str, cluster: Path, split: str, sizes: Sequence[float], folder: Path
) -> tuple[Contestant, float]:
    """Returns DDP with the bucket size that was fastest in a short run, and that size."""
    if len(sizes) == 1:
        return ddp(workload, cluster, split, sizes[0]), sizes[0]
    times = {}
    for size in sizes:
        record = run(ddp(workload, cluster, split, size), cluster, 8, folder)
        times[size] = record.median
        print(f"{workload}: DDP {split}, buckets of {size:g} MB: {record.median * 1e3:.0f} ms")
    best = min(times, key=lambda size: times[size])
    return ddp(workload, cluster, split, best), best


def plans(
    workload: str, cluster: Path, options: argparse.Namespace, folder: Path
) -> list[Contestant]:
    """Returns Medley with the plan of each strategy, made by the command line."""
    graph = folder / f"{workload}.graph"
    medley_command("capture", workloads.full_name(workload), "-o", str(graph))
    rows = len(workloads.load(workload)[1]["labels"])
    result = []
    for strategy in options.strategies:
        plan = folder / f"{workload}.{strategy}.json"
        said = medley_command(
            *("plan", str(graph), str(cluster), "--strategy", strategy),
            *("--global-batch", str(rows), "-o", str(plan), *options.plan_option),
        )
        predicted = [line for line in said.splitlines() if "redicted" in line]
        print(f"{workload}: {strategy}: {' '.join(predicted)}")
        result.append(medley(workload, cluster, strategy, plan))
    return result


def medley_command(*arguments: str) -> str:
    """Returns what the command line says. Raises ValueError with its error."""
    command = [sys.executable, "-m", "medley", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def interleave(
    contestants: Sequence[Contestant], cluster: Path, options: argparse.Namespace, folder: Path
) -> list[Result]:
    """Runs all in turn, `options.runs` times, each time another one first."""
    results = [Result(contestant.name) for contestant in contestants]
    for turn in range(options.runs):
        for place in range(len(contestants)):
            which = (turn + place) % len(contestants)
            record = run(contestants[which], cluster, options.steps, folder)
            results[which].records.append(record)
            results[which].loads.append(os.getloadavg()[0])
            print(f"run {turn + 1}: {contestants[which].name}: {record.median * 1e3:.0f} ms")
    return results


def disagreements(results: Sequence[Result]) -> list[str]:
    """Returns a sentence for each contestant whose losses are not those of the first one."""
    found = []
    expected = results[0].records[0].losses
    for result in results:
        for record in result.records:
            apart = [
                abs(loss - right) / abs(right)
                for loss, right in zip(record.losses, expected, strict=True)
            ]
            first, last = max(apart[:FIRST_STEPS]), max(apart)
            if first > FIRST_TOLERANCE or last > LAST_TOLERANCE:
                found.append(f"{result.name}: losses differ by {first:.1e}, later {last:.1e}")
    return found


def table(workload: str, results: Sequence[Result]) -> str:
    """Returns the figures as Markdown; ratios are those of DDP's time to the contestant's."""
    even, proportional = results[0].seconds, results[1].seconds
    lines = [
        f"| {workload} | step | runs, least to most | over DDP even | over DDP proportional |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        runs = sorted(record.median for record in result.records)
        lines.append(
            f"| {result.name} | {result.seconds * 1e3:.0f} ms "
            f"| {runs[0] * 1e3:.0f} to {runs[-1] * 1e3:.0f} ms "
            f"| {even / result.seconds:.2f}x | {proportional / result.seconds:.2f}x |"
        )
    return "\n".join(lines)


def main() -> int:
    """Returns 1 if somebody's losses differ."""
    parser = argparse.ArgumentParser(prog="python -m testbed.compare", description=__doc__)
    parser.add_argument("cluster", type=Path)
    parser.add_argument("--workloads", nargs="+", default=list(workloads.NAMES))
    parser.add_argument(
        "--strategies",
        nargs="+",
        default=["data-parallel-even", "data-parallel-proportional", "auto"],
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--bucket-mb", nargs="+", type=float, default=BUCKETS_MB, help="that DDP may choose from"
    )
    parser.add_argument("--plan-option", nargs="+", default=[], help="more for `medley plan`")
    parser.add_argument("--output", type=Path, help="write all step times here, as JSON")
    options = parser.parse_args()
    cluster = options.cluster.resolve()
    code = 0
    raw: dict[str, object] = {}
    with tempfile.TemporaryDirectory(prefix="medley-compare-") as name:
        folder = Path(name)
        for workload in options.workloads:
            planned = plans(workload, cluster, options, folder)
            tunings = [
                tuned(workload, cluster, split, options.bucket_mb, folder)
                for split in ("even", "proportional")
            ]
            contestants = [contestant for contestant, _ in tunings] + planned
            results = interleave(contestants, cluster, options, folder)
            print(f"\n{table(workload, results)}\n")
            buckets = ", ".join(f"{size:g}" for _, size in tunings)
            loads = [load for result in results for load in result.loads]
            print(f"DDP's buckets, MB: {buckets}. Load: {min(loads):.1f} to {max(loads):.1f}.")
            for sentence in disagreements(results):
                print(sentence)
                code = 1
            raw[workload] = [dataclasses.asdict(result) for result in results]
            if options.output is not None:
                options.output.write_text(json.dumps(raw))
    return code


if __name__ == "__main__":
    sys.exit(main())
