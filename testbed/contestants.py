"""The contestants of a comparison: PyTorch's methods, each tuned by short runs, and Medley's
plans."""

from __future__ import annotations

import dataclasses
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from medley.cluster import load_cluster
from testbed import grids
from testbed.comparators import pipeline, rows, timing

TUNING_STEPS = 5
BUCKETS_MB = (0.5, 1.0, 2.0, 5.0, 25.0)
ATTEMPTS = 2  # for a contestant that crashes
WORTH_A_TRY = 1.5  # times the estimate of the best one: slower grids are named, not run


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A name for the table, and the command for the testbed."""

    name: str
    testbed_options: tuple[str, ...]
    command: tuple[str, ...]  # takes the file for its record and the number of steps at its end
    tuned: str = ""  # choice of the short runs


# Lists of alternatives, best guess first in each.
Choices = Sequence[Sequence[Contestant]]


def end_on_sigterm() -> None:
    """Lets SIGTERM raise SystemExit, so that `subprocess` ends the command that it waits for."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


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


def attempt(
    contestant: Contestant, cluster: Path, steps: int, folder: Path
) -> tuple[timing.Record | None, list[str]]:
    """Runs a contestant, and again after a crash. Returns its record, None if it always crashed,
    and the output of the crashes."""
    deaths: list[str] = []
    while len(deaths) < ATTEMPTS:
        try:
            return run(contestant, cluster, steps, folder), deaths
        except OSError as error:
            deaths.append(str(error))
            print(f"died, {len(deaths)} of {ATTEMPTS} attempts: {error}", flush=True)
    return None, deaths


def fastest(choices: Choices, cluster: Path, folder: Path) -> Contestant:
    """Returns the fastest contestant in short runs: of the first of each list, then of the rest of
    the best list. A single contestant is not run, and crashed ones are left out. Raises OSError if
    all of them crash."""
    if len(choices) == 1 and len(choices[0]) == 1:
        return choices[0][0]
    times: dict[Contestant, float] = {}

    def measure(choice: Contestant) -> None:
        record, _ = attempt(choice, cluster, TUNING_STEPS, folder)
        if record is not None:
            times[choice] = record.median
            print(f"{choice.name}, {choice.tuned}: {times[choice] * 1e3:.0f} ms", flush=True)

    for group in choices:
        measure(group[0])
    for choice in min(choices, key=lambda group: times.get(group[0], math.inf))[1:]:
        measure(choice)
    if not times:
        raise OSError(f"{choices[0][0].name}: every choice died")
    return min(times, key=lambda choice: times[choice])


def ddp(workload: str, cluster: Path, split: str, buckets_mb: Sequence[float]) -> Choices:
    """Returns PyTorch DDP with a split of the rows, for each bucket size."""
    command = ("testbed.comparators.ddp", workload, str(cluster), "--split", split)
    return [
        [
            Contestant(
                f"DDP {split}", (), (*command, "--bucket-mb", str(size)), f"buckets of {size:g} MB"
            )
            for size in buckets_mb
        ]
    ]


def fsdp(workload: str, cluster: Path, split: str) -> Choices:
    """Returns PyTorch FSDP2 with a split of the rows."""
    command = ("testbed.comparators.fsdp", workload, str(cluster), "--split", split)
    return [[Contestant(f"FSDP2 {split}", (), command)]]


def grids_of(
    name: str,
    workload: str,
    cluster: Path,
    replicas: Sequence[int],
    uneven: bool,
    buckets_mb: Sequence[float],
) -> Choices:
    """Returns PyTorch's 1F1B grids with these replicas of each stage and equal or uneven stages, as
    a list for each useful order of devices. Prints the others. Raises ValueError if there is
    none."""
    machines, sizes = load_cluster(cluster), pipeline.sizes_of(workload)
    found = [group for n in replicas for group in grids.choices(machines, sizes, n, uneven)]
    if not found:
        raise ValueError(f"{name}: no grid divides {sizes.rows} rows of {workload} and the devices")
    seconds = [grids.estimate(machines, sizes, group[0]) for group in found]
    name = f"{name} {'uneven' if uneven else 'even'}"
    result = []
    for group, each in sorted(zip(found, seconds, strict=True), key=lambda pair: pair[1]):
        ratio = each / min(seconds)
        if ratio > WORTH_A_TRY:
            print(f"{name}: not run, {ratio:.1f}x the best estimate: {group[0].describe()}")
            continue
        first, *more = [_grid(name, workload, cluster, grid, buckets_mb[0]) for grid in group]
        more += [_grid(name, workload, cluster, group[0], size) for size in buckets_mb[1:]]
        result.append([first, *more])
    return result


def _grid(
    name: str, workload: str, cluster: Path, grid: grids.Grid, bucket_mb: float
) -> Contestant:
    names = load_cluster(cluster).devices
    options = ("--devices", ",".join(names[device] for device in grid.devices))
    command = (
        *("testbed.comparators.pipeline", workload, str(cluster)),
        *("--replicas", str(grid.replicas), "--bucket-mb", str(bucket_mb)),
        *("--microbatches", str(grid.microbatches), "--blocks", *map(str, grid.blocks)),
    )
    buckets = f", buckets of {bucket_mb:g} MB" if grid.replicas > 1 else ""
    return Contestant(name, options, command, grid.describe() + buckets)


def medley(workload: str, cluster: Path, name: str, plan: Path) -> Contestant:
    """Returns Medley with a plan."""
    module = "testbed.comparators.medley_job"
    options = ("--plan", str(plan))
    return Contestant(f"Medley {name}", options, (module, workload, str(cluster)))


# Allowed values of `--comparators`.
COMPARATORS = ("ddp", "fsdp", "pipeline", "3d")


def comparators(
    names: Sequence[str], workload: str, cluster: Path, buckets_mb: Sequence[float]
) -> list[Choices]:
    """Returns PyTorch's methods, each with its choices."""
    found = []
    if "ddp" in names:
        found += [ddp(workload, cluster, split, buckets_mb) for split in rows.SPLITS]
    if "fsdp" in names:
        found += [fsdp(workload, cluster, split) for split in rows.SPLITS]
    count = len(load_cluster(cluster).devices)
    for uneven in (False, True):
        if "pipeline" in names:
            found.append(grids_of("1F1B", workload, cluster, (1,), uneven, buckets_mb[:1]))
        if "3d" in names:
            several = range(2, count + 1)
            found.append(grids_of("3D", workload, cluster, several, uneven, buckets_mb))
    return found
