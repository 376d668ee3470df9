"""Predicted against measured iterations of Megatron-DeepSpeed on GH200 nodes (Sailor, SOSP'25).

python benchmarks/planner/sailor_measured.py build/release/bin/medley [DATA]

DATA is the folder published with Sailor, or what the repository has of it (tests/data/sailor). Four
constants of a run (docs/formats/layers.md) are fitted on OPT-350's first campaign: the least mean
absolute error. Its second campaign and GPT-Neo-2.7 are predicted. Prints Markdown; exits with 1 if
an error is above what is asked for.
"""

from __future__ import annotations

import csv
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from convert_sailor import cluster, layer_table, print_table  # noqa: E402

GIB = 2**30
ASKED = {  # mean absolute error of time and of memory, %
    "OPT-350, second campaign": (7, 8),
    "GPT-Neo-2.7": (10, 8),
}
FIRST = "OPT-350, first campaign"


@dataclass
class Run:
    """One measured iteration, as files for `medley simulate`."""

    campaign: str
    name: str
    model: str
    cluster: Path
    plan: Path
    seconds: float
    gib: float


def campaign_of(row: dict[str, str]) -> str | None:
    if row["note"].startswith("misfiled"):  # an iteration of the first campaign again
        return None
    if row["model"] != "OPT-350":
        return row["model"]
    which = "first" if row["campaign"].startswith("initial") else "second"
    return f"OPT-350, {which} campaign"


def plan_of(row: dict[str, str]) -> dict[str, Any]:
    """1F1B over stages written as "7L:4xGH-96/tp4 | 9L:4xGH-96/tp4"."""
    stages: list[dict[str, Any]] = []
    texts = row["plan"].split(" | ")
    for i, text in enumerate(texts):
        layers, _, rest = text.partition("L:")
        replicas, _, degree = rest.partition("xGH-96/tp")
        begin = stages[-1]["layers"][1] if stages else 0
        stages.append(
            {
                "layers": [begin, begin + int(layers)],
                "pool": "gh",
                "replicas": int(replicas),
                "tensor_parallel": int(degree),
                "in_flight": len(texts) - i,
            }
        )
    batch, replicas = int(row["gbs"]), stages[0]["replicas"]
    count = batch // (int(row["mbs"]) * replicas)
    return {
        "format": "medley-layer-plan",
        "version": 1,
        "global_batch": batch,
        "microbatches": count,
        "schedule": "1f1b",
        "stages": [{**stage, "in_flight": min(count, stage["in_flight"])} for stage in stages],
    }


def read_runs(data: Path, folder: Path) -> list[Run]:
    place = data / "measured_iterations.csv"
    if not place.exists():
        place = data / "measured" / "measured_iterations.csv"
    runs: list[Run] = []
    with place.open() as file:
        for row in csv.DictReader(file):
            if row.get("framework", "Megatron-DeepSpeed").startswith("Aceso"):
                continue
            campaign = campaign_of(row)
            if campaign is None:
                continue
            nodes = int(row["nodes"])
            where = folder / f"{nodes}.yaml"
            where.write_text(cluster(data, [("gh", "GH-96", nodes)]))
            plan = folder / f"{len(runs)}.json"
            plan.write_text(json.dumps(plan_of(row)))
            stages = row["plan"].count("|") + 1
            replicas = plan_of(row)["stages"][0]["replicas"]
            name = f"{nodes} nodes, {stages} x {replicas}, {row['mbs']} rows, batch {row['gbs']}"
            measured = float(row["iter_s"]), float(row["max_mem_GiB"])
            runs.append(Run(campaign, name, row["model"], where, plan, *measured))
    return runs


class Simulator:
    def __init__(self, medley: str, data: Path, folder: Path) -> None:
        self.medley, self.folder = medley, folder
        self.tables = {
            "OPT-350": layer_table(data, "OPT-350", ["GH-96"]),
            "GPT-Neo-2.7": layer_table(data, "GPT-Neo-2.7", ["GH-96"], "OPT-350"),
        }

    def predict(self, run: Run, constants: dict[str, float]) -> tuple[float, float]:
        """Returns seconds of a step and GiB of its fullest stage."""
        table = self.folder / f"{run.model}.table"
        table.write_text(print_table({**self.tables[run.model], "run": constants}))
        files = [str(path) for path in (table, run.cluster, run.plan)]
        command = [self.medley, "simulate", "--json", "--layers", *files]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found = json.loads(done.stdout)
        most = max(stage["peak_bytes"] for stage in found["stages"])
        return 1e-9 * found["step_nanoseconds"], most / GIB


def errors(
    simulator: Simulator, runs: list[Run], constants: dict[str, float]
) -> list[tuple[float, float]]:
    both = [simulator.predict(run, constants) for run in runs]
    return [
        (time / run.seconds - 1, memory / run.gib - 1)
        for run, (time, memory) in zip(runs, both, strict=True)
    ]


def mean_error(found: list[tuple[float, float]], which: int) -> float:
    return statistics.mean(abs(each[which]) for each in found)


def fit(simulator: Simulator, runs: list[Run]) -> dict[str, float]:
    """Two constants of time, then two of memory, one after the other in shrinking steps."""
    constants: dict[str, float] = {
        "all_reduce": 2,
        "blocking": 1,
        "saved": 1,
        "fixed_bytes": 4_000_000_000,
    }
    for which, names, step in (
        (0, {"all_reduce": 1.0, "blocking": 1.0}, 1.0),
        (1, {"saved": 0.1, "fixed_bytes": 1e9}, 1.0),
    ):
        least = mean_error(errors(simulator, runs, constants), which)
        while step > 0.02:
            before = least
            for name, width in names.items():
                for way in (-1, 1):
                    moved = {**constants, name: max(0.0, constants[name] + way * step * width)}
                    moved["fixed_bytes"] = round(moved["fixed_bytes"])
                    found = mean_error(errors(simulator, runs, moved), which)
                    if found < least:
                        least, constants = found, moved
            if least == before:
                step /= 2
    return constants


def main() -> int:
    medley = sys.argv[1]
    data = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "tests" / "data" / "sailor"
    missed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = read_runs(data, folder)
        simulator = Simulator(medley, data, folder)
        constants = fit(simulator, [run for run in runs if run.campaign == FIRST])
        print("Constants, fitted on OPT-350's first campaign:", json.dumps(constants), "\n")
        summary = []
        for campaign in (FIRST, *ASKED):
            chosen = [run for run in runs if run.campaign == campaign]
            found = errors(simulator, chosen, constants)
            print(f"**{campaign}**\n")
            print("| stages x replicas, each on 4 GPUs | measured | error | memory | error |")
            print("|---|---|---|---|---|")
            for run, (time, memory) in zip(chosen, found, strict=True):
                print(
                    f"| {run.name} | {run.seconds:.3f} s | {100 * time:+.1f} % "
                    f"| {run.gib:.1f} GiB | {100 * memory:+.1f} % |"
                )
            print()
            row = [100 * mean_error(found, which) for which in (0, 1)]
            asked = ASKED.get(campaign)
            missed = missed or (
                asked is not None and any(a > b for a, b in zip(row, asked, strict=True))
            )
            summary.append((campaign, len(chosen), row, asked))
        print("| mean absolute error | runs | time | asked | memory | asked |")
        print("|---|---|---|---|---|---|")
        for campaign, count, row, asked in summary:
            limits = [f"{limit} %" for limit in asked] if asked else ["fitted", "fitted"]
            print(
                f"| {campaign} | {count} | {row[0]:.1f} % | {limits[0]} "
                f"| {row[1]:.1f} % | {limits[1]} |"
            )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
