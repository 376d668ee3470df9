"""Medley compared with PyTorch in the testbed: `python -m testbed.compare cluster.yaml`. Model,
initial values, data and global batch are the same. For each workload it makes plans and tunes
PyTorch's methods by short runs. Then all contestants run in turn, several times. The figure of a
run is the median of its steps, that of a contestant the median of its runs. A contestant that
crashes is run again and named."""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from medley.cluster import load_cluster
from testbed import contestants
from testbed.comparators import timing, workloads
from testbed.contestants import Contestant, attempt

# Tolerances of the losses: at the first steps, and later, when AdamW has amplified the rounding.
FIRST_STEPS, FIRST_TOLERANCE, LAST_TOLERANCE = 3, 1e-5, 1e-2


@dataclasses.dataclass
class Result:
    """The results of the runs of one contestant."""

    name: str
    records: list[timing.Record] = dataclasses.field(default_factory=list)
    # load of the machine after each run
    loads: list[float] = dataclasses.field(default_factory=list)
    deaths: list[str] = dataclasses.field(default_factory=list)  # output of each crash

    @property
    def seconds(self) -> float:
        """Returns the median over the runs, or infinity without a complete run."""
        if not self.records:
            return math.inf
        return statistics.median(record.median for record in self.records)


class Chosen:
    """The choices of short runs, stored in a file for later comparisons on the same cluster."""

    def __init__(self, path: Path | None, cluster: Path) -> None:
        """Raises ValueError if the file is of another cluster."""
        self._path = path
        self._hash = load_cluster(cluster).hash
        self._found: dict[str, dict[str, Contestant]] = {}  # [workload][name]
        if path is not None and path.exists():
            raw = json.loads(path.read_text())
            if raw["cluster"] != self._hash:
                raise ValueError(f"{path}: found choices for another cluster than {cluster}")
            self._found = {
                workload: {name: _contestant(entry) for name, entry in chosen.items()}
                for workload, chosen in raw["chosen"].items()
            }

    def choose(
        self, workload: str, choices: contestants.Choices, cluster: Path, folder: Path
    ) -> Contestant:
        """Returns the fastest of the choices, from the file or from short runs."""
        name = choices[0][0].name
        known = self._found.setdefault(workload, {})
        if name not in known:
            known[name] = contestants.fastest(choices, cluster, folder)
            self._save()
        return known[name]

    def _save(self) -> None:
        if self._path is not None:
            chosen = {
                workload: {name: dataclasses.asdict(entry) for name, entry in known.items()}
                for workload, known in self._found.items()
            }
            self._path.write_text(json.dumps({"cluster": self._hash, "chosen": chosen}, indent=1))


def _contestant(entry: dict[str, Any]) -> Contestant:
    lists = {key: tuple(entry[key]) for key in ("testbed_options", "command")}
    return Contestant(**{**entry, **lists})


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
    """Returns the output of a command line. Raises ValueError with its error."""
    command = [sys.executable, "-m", "medley", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def interleave(
    everybody: Sequence[Contestant],
    cluster: Path,
    options: argparse.Namespace,
    folder: Path,
    keep: Callable[[Sequence[Result]], None],
) -> list[Result]:
    """Runs all contestants in turn, `options.runs` times, each time starting with another one. A
    crashed contestant is run again. One that takes more than `options.once_beyond` times as long as
    the best is run once. `keep` receives the results after each run."""
    results = [Result(contestant.name) for contestant in everybody]
    for turn in range(options.runs):
        best = min(result.seconds for result in results)
        for place in range(len(everybody)):
            which = (turn + place) % len(everybody)
            known = results[which]
            if known.records and known.seconds > options.once_beyond * best:
                continue
            record, deaths = attempt(everybody[which], cluster, options.steps, folder)
            known.deaths += deaths
            if record is not None:
                known.records.append(record)
                known.loads.append(os.getloadavg()[0])
                print(f"run {turn + 1}: {known.name}: {record.median * 1e3:.0f} ms", flush=True)
            keep(results)
    return results


def disagreements(results: Sequence[Result]) -> list[str]:
    """Returns a sentence for each contestant whose losses differ from those of the first."""
    found = []
    expected = next((result.records[0].losses for result in results if result.records), [])
    for result in results:
        for record in result.records:
            apart = [
                abs(loss - right) / abs(right)
                for loss, right in zip(record.losses, expected, strict=True)
            ]
            first = apart[:FIRST_STEPS]
            # The condition also fails for NaN.
            if not all(d <= FIRST_TOLERANCE for d in first) or not all(
                d <= LAST_TOLERANCE for d in apart
            ):
                found.append(
                    f"{result.name}: losses differ by {max(first):.1e}, later {max(apart):.1e}"
                )
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
        if not runs:
            lines.append(f"| {result.name} | died each time {'| ' * (1 + len(columns))}|")
            continue
        ratios = "".join(f"| {seconds / result.seconds:.2f}x " for _, seconds in columns)
        lines.append(
            f"| {result.name} | {result.seconds * 1e3:.0f} ms "
            f"| {runs[0] * 1e3:.0f} to {runs[-1] * 1e3:.0f} ms {ratios}|"
        )
    return "\n".join(lines)


def main() -> int:
    """Returns 1 if losses differ, or if a contestant crashed each time."""
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
        help="PyTorch's: DDP and FSDP2, rows even and in proportion to the speeds; 1F1B, and grids "
        "of 1F1B x DDP, with even and uneven stages (workload gpt). Each is tuned by short runs "
        "first",
    )
    parser.add_argument("--runs", type=int, default=5, help="of each (5); 0 only tunes")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument(
        "--once-beyond",
        type=float,
        default=math.inf,
        help="run those only once that take more than so many times as long as the best",
    )
    parser.add_argument(
        "--bucket-mb", nargs="+", type=float, default=contestants.BUCKETS_MB, help="for DDP"
    )
    parser.add_argument("--plan-option", nargs="+", default=[], help="more for `medley plan`")
    parser.add_argument("--output", type=Path, help="write all step times here, as JSON")
    parser.add_argument(
        "--tuned", type=Path, help="keep what short runs have chosen here; what it has is not tuned"
    )
    options = parser.parse_args()
    contestants.end_on_sigterm()
    cluster = options.cluster.resolve()
    chosen = Chosen(options.tuned, cluster)
    raw: dict[str, Sequence[Result]] = {}  # results of complete workloads, written after each run
    with tempfile.TemporaryDirectory(prefix="medley-compare-") as name:
        codes = [
            compare(workload, cluster, options, Path(name), chosen, raw)
            for workload in options.workloads
        ]
    return max(codes)


def compare(
    workload: str,
    cluster: Path,
    options: argparse.Namespace,
    folder: Path,
    chosen: Chosen,
    raw: dict[str, Sequence[Result]],
) -> int:
    """Compares all contestants on a workload. Returns 1 if losses differ or are missing."""

    def keep(results: Sequence[Result]) -> None:
        raw[workload] = results
        if options.output is not None:
            texts = {key: [dataclasses.asdict(one) for one in value] for key, value in raw.items()}
            options.output.write_text(json.dumps(texts))

    planned = plans(
        workload, cluster, folder, options.strategies, options.plans, options.plan_option
    )
    theirs, absent = [], []
    for choices in contestants.comparators(
        options.comparators, workload, cluster, options.bucket_mb
    ):
        try:
            theirs.append(chosen.choose(workload, choices, cluster, folder))
        except OSError as error:
            absent.append(f"{error}: not compared")
    results = interleave([*theirs, *planned], cluster, options, folder, keep)
    if options.runs > 0:
        print(f"\n{table(workload, results, len(theirs))}\n")
    for contestant in theirs:
        print(f"{contestant.name}: {contestant.tuned}" if contestant.tuned else contestant.name)
    loads = [load for result in results for load in result.loads]
    if loads:
        print(f"Load: {min(loads):.1f} to {max(loads):.1f}.")
    once = [
        f"{one.name}: run once, too slow for more"
        for one in results
        if options.once_beyond < math.inf and len(one.records) == 1 < options.runs
    ]
    deaths = [f"{one.name}: died {len(one.deaths)} times" for one in results if one.deaths]
    wrong = [*absent, *disagreements(results)]
    for sentence in [*once, *deaths, *wrong]:
        print(sentence)
    lost = options.runs > 0 and not all(result.records for result in results)
    return int(bool(wrong) or lost)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("stopped: what --output names has the workloads that were done")
