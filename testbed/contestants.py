"""Who takes part in a comparison: PyTorch's ways, each tuned by short runs, and Medley's plans."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from medley.cluster import load_cluster
from testbed.comparators import pipeline, rows, timing, workloads
from testbed.layout import speeds

TUNING_STEPS = 8
BUCKETS_MB = (0.5, 1.0, 2.0, 5.0, 25.0)
MICROBATCHES = (4, 8, 12, 16, 24)
MOST_CUTS = 4  # uneven ones that are tried


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A name for the table, and what the testbed is asked to run."""

    name: str
    testbed_options: tuple[str, ...]
    command: tuple[str, ...]  # takes the file for its record and the number of steps at its end
    tuned: str = ""  # what a short run has chosen


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


def fastest(choices: Sequence[Contestant], cluster: Path, folder: Path) -> Contestant:
    """Returns the one that was fastest in a short run; without a run if there is only one."""
    if len(choices) == 1:
        return choices[0]
    times = {}
    for choice in choices:
        times[choice] = run(choice, cluster, TUNING_STEPS, folder).median
        print(f"{choice.name}, {choice.tuned}: {times[choice] * 1e3:.0f} ms", flush=True)
    return min(choices, key=lambda choice: times[choice])


def ddp(workload: str, cluster: Path, split: str, buckets_mb: Sequence[float]) -> list[Contestant]:
    """Returns PyTorch DDP with a split of the rows, for each bucket size."""
    command = ("testbed.comparators.ddp", workload, str(cluster), "--split", split)
    return [
        Contestant(
            f"DDP {split}", (), (*command, "--bucket-mb", str(size)), f"buckets of {size:g} MB"
        )
        for size in buckets_mb
    ]


def fsdp(workload: str, cluster: Path, split: str) -> list[Contestant]:
    """Returns PyTorch FSDP2 with a split of the rows."""
    command = ("testbed.comparators.fsdp", workload, str(cluster), "--split", split)
    return [Contestant(f"FSDP2 {split}", (), command)]


def pipelines(workload: str, cluster: Path, uneven: bool) -> list[Contestant]:
    """Returns PyTorch's 1F1B with one stage per device, for each number of micro-batches: stages of
    as many blocks each, or of those numbers that fit the speeds best."""
    model, example = workloads.load(workload)
    batch, relative = len(example["labels"]), speeds(load_cluster(cluster))
    blocks = len(pipeline.blocks_of(model))
    counts = [pipeline.even(blocks, len(relative))]
    if uneven:
        counts = cuts(blocks, relative)[:MOST_CUTS]
    microbatches = [n for n in MICROBATCHES if batch % n == 0 and n >= len(relative)]
    name = f"1F1B {'uneven' if uneven else 'even'}"
    command = ("testbed.comparators.pipeline", workload, str(cluster))
    return [
        Contestant(
            name,
            (),
            (*command, "--microbatches", str(number), "--blocks", *map(str, each)),
            f"blocks {' '.join(map(str, each))}, {number} micro-batches",
        )
        for each in counts
        for number in microbatches
    ]


def cuts(blocks: int, relative: Sequence[float]) -> list[list[int]]:
    """Returns all ways to give every stage some blocks, those first whose slowest stage is fastest,
    the even one left out."""
    stages = len(relative)
    found = [
        [b - a for a, b in itertools.pairwise((0, *inner, blocks))]
        for inner in itertools.combinations(range(1, blocks), stages - 1)
    ]

    def slowest(counts: list[int]) -> list[float]:
        return sorted((n / speed for n, speed in zip(counts, relative, strict=True)), reverse=True)

    return sorted((c for c in found if c != pipeline.even(blocks, stages)), key=slowest)


def medley(workload: str, cluster: Path, name: str, plan: Path) -> Contestant:
    """Returns Medley with a plan."""
    module = "testbed.comparators.medley_job"
    options = ("--plan", str(plan))
    return Contestant(f"Medley {name}", options, (module, workload, str(cluster)))


# What `--comparators` may name.
COMPARATORS = ("ddp", "fsdp", "pipeline")


def comparators(
    names: Sequence[str], workload: str, cluster: Path, buckets_mb: Sequence[float]
) -> list[list[Contestant]]:
    """Returns PyTorch's ways, each with what there is to choose from."""
    found = []
    if "ddp" in names:
        found += [ddp(workload, cluster, split, buckets_mb) for split in rows.SPLITS]
    if "fsdp" in names:
        found += [fsdp(workload, cluster, split) for split in rows.SPLITS]
    if "pipeline" in names:
        found += [pipelines(workload, cluster, uneven) for uneven in (False, True)]
    return found
