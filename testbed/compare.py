"""Medley against PyTorch in the testbed: `python -m testbed.compare cluster.yaml`.

Same model, initial values, data and global batch. For each workload: plans are made, PyTorch's ways
are tuned by short runs, then all contestants run in turn, several times; a run's figure is the
median of its steps, a contestant's the median of its runs.
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

from testbed import contestants
from testbed.comparators import timing, workloads
from testbed.contestants import Contestant, run

# Of the losses at the first steps, and later, when AdamW has amplified what rounding leaves.
FIRST_STEPS, FIRST_TOLERANCE, LAST_TOLERANCE = 3, 1e-5, 1e-2


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


def plans(
    workload: str,
    cluster: Path,
    folder: Path,
    strategies: Sequence[str],
    given: Sequence[Path] = (),
    more: Sequence[str] = (),
) -> list[Contestant]:
    """Returns Medley with the plan of each strategy, made by the command line with `more` options,
    and with the plans that are given."""
    graph = folder / f"{workload}.graph"
    medley_command("capture", workloads.full_name(workload), "-o", str(graph))
    rows = len(workloads.load(workload)[1]["labels"])
    result = []
    for strategy in strategies:
        plan = folder / f"{workload}.{strategy}.json"
        said = medley_command(
            *("plan", str(graph), str(cluster), "--strategy", strategy),
            *("--global-batch", str(rows), "-o", str(plan), *more),
        )
        predicted = [line for line in said.splitlines() if "redicted" in line]
        print(f"{workload}: {strategy}: {' '.join(predicted)}")
        result.append(contestants.medley(workload, cluster, strategy, plan))
    for plan in given:
        medley_command("check", str(plan), str(graph), str(cluster))
        result.append(contestants.medley(workload, cluster, plan.name, plan))
    return result


def medley_command(*arguments: str) -> str:
    """Returns what the command line says. Raises ValueError with its error."""
    command = [sys.executable, "-m", "medley", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def interleave(
    everybody: Sequence[Contestant], cluster: Path, options: argparse.Namespace, folder: Path
) -> list[Result]:
    """Runs all in turn, `options.runs` times, each time another one first."""
    results = [Result(contestant.name) for contestant in everybody]
    for turn in range(options.runs):
        for place in range(len(everybody)):
            which = (turn + place) % len(everybody)
            record = run(everybody[which], cluster, options.steps, folder)
            results[which].records.append(record)
            results[which].loads.append(os.getloadavg()[0])
            print(f"run {turn + 1}: {everybody[which].name}: {record.median * 1e3:.0f} ms")
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


def table(workload: str, results: Sequence[Result], others: int) -> str:
    """Returns the figures as Markdown. The first `others` results are PyTorch's: ratios are those
    of their times, and of the least of them, to the contestant's."""
    theirs = results[:others]
    columns = [(f"over {result.name}", result.seconds) for result in theirs]
    if len(theirs) > 1:
        columns.append(("over the best of these", min(result.seconds for result in theirs)))
    lines = [
        " | ".join([f"| {workload} | step | runs, least to most", *(name for name, _ in columns)])
        + " |",
        "|---" * (3 + len(columns)) + "|",
    ]
    for result in results:
        runs = sorted(record.median for record in result.records)
        ratios = "".join(f"| {seconds / result.seconds:.2f}x " for _, seconds in columns)
        lines.append(
            f"| {result.name} | {result.seconds * 1e3:.0f} ms "
            f"| {runs[0] * 1e3:.0f} to {runs[-1] * 1e3:.0f} ms {ratios}|"
        )
    return "\n".join(lines)


def main() -> int:
    """Returns 1 if somebody's losses differ."""
    parser = argparse.ArgumentParser(prog="python -m testbed.compare", description=__doc__)
    parser.add_argument("cluster", type=Path)
    parser.add_argument("--workloads", nargs="+", default=list(workloads.NAMES))
    parser.add_argument(
        "--strategies",
        nargs="*",
        default=["data-parallel-even", "data-parallel-proportional", "auto"],
    )
    parser.add_argument(
        "--plans", nargs="+", type=Path, default=[], help="plan.json of the workload, also those"
    )
    parser.add_argument(
        "--comparators",
        nargs="+",
        choices=contestants.COMPARATORS,
        default=["ddp"],
        help="PyTorch's: DDP and FSDP2, rows even and in proportion to the speeds; 1F1B with even "
        "and uneven stages (workload gpt). Each is tuned by short runs first",
    )
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--bucket-mb", nargs="+", type=float, default=contestants.BUCKETS_MB, help="for DDP"
    )
    parser.add_argument("--plan-option", nargs="+", default=[], help="more for `medley plan`")
    parser.add_argument("--output", type=Path, help="write all step times here, as JSON")
    options = parser.parse_args()
    cluster = options.cluster.resolve()
    code = 0
    raw: dict[str, object] = {}  # of the workloads that are done: written after each
    with tempfile.TemporaryDirectory(prefix="medley-compare-") as name:
        folder = Path(name)
        for workload in options.workloads:
            planned = plans(
                workload, cluster, folder, options.strategies, options.plans, options.plan_option
            )
            theirs = [
                contestants.fastest(choices, cluster, folder)
                for choices in contestants.comparators(
                    options.comparators, workload, cluster, options.bucket_mb
                )
            ]
            results = interleave([*theirs, *planned], cluster, options, folder)
            print(f"\n{table(workload, results, len(theirs))}\n")
            for chosen in theirs:
                print(f"{chosen.name}: {chosen.tuned}" if chosen.tuned else chosen.name)
            loads = [load for result in results for load in result.loads]
            print(f"Load: {min(loads):.1f} to {max(loads):.1f}.")
            for sentence in disagreements(results):
                print(sentence)
                code = 1
            raw[workload] = [dataclasses.asdict(result) for result in results]
            if options.output is not None:
                options.output.write_text(json.dumps(raw))
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped: what --output names has the workloads that were done")
