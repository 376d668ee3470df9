"""Predicted against measured iterations of Megatron-DeepSpeed on GH200 nodes (Sailor, SOSP'25).

python benchmarks/planner/sailor_measured.py build/release/bin/medley [DATA] [--defaults | --fit]

DATA is the folder published with Sailor, or what the repository has of it (tests/data/sailor).

--defaults, what it does unless told otherwise: tables say nothing of a run, so that all constants
(docs/formats/layers.md) are the program's own, one set for all campaigns. Also compares the time of
adding up gradients with what the network allows if the devices of a node do so all at once, or one
after the other (`flows`, docs/formats/cluster.md).

--fit: four constants of a run are fitted on OPT-350's first campaign: the least mean absolute
error. Its second campaign and GPT-Neo-2.7 are predicted.

Prints Markdown; exits with 1 if an error is above what is asked for.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from convert_sailor import cluster, layer_table, print_table  # noqa: E402

GIB = 2**30
FIRST = "OPT-350, first campaign"
MEGATRON = (FIRST, "OPT-350, second campaign", "GPT-Neo-2.7")
ACESO = "OPT-350, Aceso's runtime"  # whose layers nobody measured: those of Megatron-DeepSpeed
CAMPAIGNS = (*MEGATRON, ACESO)
CUTS = {"1": (26,), "2": (12, 14), "4": (5, 7, 7, 7)}  # of OPT-350: Aceso's are not published
ASKED = {campaign: (7, 10) for campaign in MEGATRON}  # of time and of memory, mean, %
ASKED_OF_FIT = {"OPT-350, second campaign": (7, 8), "GPT-Neo-2.7": (10, 8)}


@dataclasses.dataclass
class Run:
    """One measured iteration, as files for `medley simulate`."""

    campaign: str
    name: str
    model: str
    cluster: Path
    plan: Path
    seconds: float
    gib: float
    gradients: float | None  # seconds, if there are several replicas and the data are credible


def is_aceso(row: dict[str, str]) -> bool:
    return "Aceso" in row.get("framework", row["campaign"])


def campaign_of(row: dict[str, str]) -> str | None:
    if row["note"].startswith("misfiled"):  # an iteration of the first campaign again
        return None
    if row["model"] != "OPT-350":
        return row["model"]
    if is_aceso(row):
        return ACESO
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
            campaign = campaign_of(row)
            if campaign is None:
                continue
            if campaign == ACESO and "L:" not in row["plan"]:
                row["plan"] = " | ".join(f"{n}L:{row['dp']}xGH-96/tp4" for n in CUTS[row["pp"]])
            nodes = int(row["nodes"])
            where = folder / f"{nodes}.yaml"
            where.write_text(cluster(data, [("gh", "GH-96", nodes)]))
            plan = folder / f"{len(runs)}.json"
            plan.write_text(json.dumps(plan_of(row)))
            stages = row["plan"].count("|") + 1
            replicas = plan_of(row)["stages"][0]["replicas"]
            name = f"{nodes} nodes, {stages} x {replicas}, {row['mbs']} rows, batch {row['gbs']}"
            measured = float(row["iter_s"]), float(row["max_mem_GiB"])
            gradients = float(row["grad_sync_s"]) if replicas > 1 else None
            if gradients and gradients > 0.5 * measured[0]:  # a copy of the step's time
                gradients = None
            runs.append(Run(campaign, name, row["model"], where, plan, *measured, gradients))
    return runs


Constants = dict[str, float]


class Simulator:
    def __init__(self, medley: str, data: Path, folder: Path) -> None:
        self.medley, self.folder = medley, folder
        self.tables = {
            "OPT-350": layer_table(data, "OPT-350", ["GH-96"]),
            "GPT-Neo-2.7": layer_table(data, "GPT-Neo-2.7", ["GH-96"], "OPT-350"),
        }

    def simulate(self, table: dict[str, Any], cluster: Path, plan: Path) -> Any:
        place = self.folder / "table.json"
        place.write_text(print_table(table))
        files = [str(path) for path in (place, cluster, plan)]
        command = [self.medley, "simulate", "--json", "--layers", *files]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def predict(self, run: Run, constants: Constants | None) -> tuple[float, float]:
        """Returns seconds of a step and GiB of its fullest stage."""
        table = self.tables[run.model]
        if constants is not None:
            table = {**table, "run": constants}
        found = self.simulate(table, run.cluster, run.plan)
        most = max(stage["peak_bytes"] for stage in found["stages"])
        return 1e-9 * found["step_nanoseconds"], most / GIB

    def gradients(self, run: Run) -> float:
        """Returns seconds in which the slowest stage adds up its gradients."""
        table = self.tables[run.model]
        times = [
            {**entry, "ns": {name: [*ns[:2], 0] for name, ns in entry["ns"].items()}}
            for entry in table["times"]
        ]
        found = self.simulate({**table, "times": times}, run.cluster, run.plan)
        return 1e-9 * max(stage["update_nanoseconds"] for stage in found["stages"])


def errors(
    simulator: Simulator, runs: list[Run], constants: Constants | None
) -> list[tuple[float, float]]:
    both = [simulator.predict(run, constants) for run in runs]
    return [
        (time / run.seconds - 1, memory / run.gib - 1)
        for run, (time, memory) in zip(runs, both, strict=True)
    ]


def mean_error(found: list[tuple[float, float]], which: int) -> float:
    return statistics.mean(abs(each[which]) for each in found)


def fit(simulator: Simulator, runs: list[Run]) -> Constants:
    """Two constants of time, then two of memory, one after the other in shrinking steps."""
    constants: Constants = {
        "all_reduce": 2,
        "blocking": 0.5,
        "saved": 1,
        "fixed_bytes": 4_000_000_000,
    }
    for which, names, step in (
        (0, {"all_reduce": 1.0, "blocking": 0.25}, 1.0),
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


def print_campaign(campaign: str, runs: list[Run], found: list[tuple[float, float]]) -> None:
    print(f"**{campaign}**\n")
    print("| stages x replicas, each on 4 GPUs | measured | error | memory | error |")
    print("|---|---|---|---|---|")
    for run, (time, memory) in zip(runs, found, strict=True):
        print(
            f"| {run.name} | {run.seconds:.3f} s | {100 * time:+.1f} % "
            f"| {run.gib:.1f} GiB | {100 * memory:+.1f} % |"
        )
    print()


def with_flows(run: Run, flows: str, folder: Path) -> Run:
    place = folder / f"{flows}_{run.cluster.name}"
    text = run.cluster.read_text()
    place.write_text(text.replace("    bandwidth:", f"    flows: {flows}\n    bandwidth:"))
    return dataclasses.replace(run, cluster=place)


def print_flows(simulator: Simulator, runs: list[Run]) -> None:
    """How near each reading of `flows` comes to measured sums of gradients, and to steps."""
    print("\n| | runs | measured sums over predicted: all | one |", end="")
    print(" their error, of a step: all | one | error of a step: all | one |")
    print("|---|---|---|---|---|---|---|---|")
    for campaign in CAMPAIGNS:
        chosen = [run for run in runs if run.campaign == campaign]
        known = [run for run in chosen if run.gradients]
        ratios, shares, steps = [], [], []
        for flows in ("all", "one"):
            logs, misses = [], []
            for run in known:
                measured = run.gradients or 0.0
                predicted = simulator.gradients(with_flows(run, flows, simulator.folder))
                logs.append(math.log(measured / predicted))
                misses.append(abs(predicted - measured) / run.seconds)
            ratios.append(f"{math.exp(statistics.mean(logs)):.2f}")
            shares.append(f"{100 * statistics.mean(misses):.1f} %")
            again = [with_flows(run, flows, simulator.folder) for run in chosen]
            steps.append(f"{100 * mean_error(errors(simulator, again, None), 0):.1f} %")
        print(f"| {campaign} | {len(known)} | {' | '.join([*ratios, *shares, *steps])} |")


def unasked(campaign: str) -> str:
    return "fitted" if campaign == FIRST else "another program's layers"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("medley")
    parser.add_argument("data", type=Path, nargs="?", default=ROOT / "tests" / "data" / "sailor")
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--defaults", action="store_true", help="nothing is fitted; the default")
    modes.add_argument("--fit", action="store_true", help="constants of the first campaign")
    options = parser.parse_args()
    asked_of = ASKED_OF_FIT if options.fit else ASKED
    missed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = read_runs(options.data, folder)
        simulator = Simulator(options.medley, options.data, folder)
        constants = None
        if options.fit:
            constants = fit(simulator, [run for run in runs if run.campaign == FIRST])
            print("Constants, fitted on OPT-350's first campaign:", json.dumps(constants), "\n")
        else:
            print("Constants: those of the program.\n")
        summary = []
        for campaign in MEGATRON if options.fit else CAMPAIGNS:
            chosen = [run for run in runs if run.campaign == campaign]
            found = errors(simulator, chosen, constants)
            print_campaign(campaign, chosen, found)
            row = [100 * mean_error(found, which) for which in (0, 1)]
            asked = asked_of.get(campaign)
            missed = missed or (
                asked is not None and any(a > b for a, b in zip(row, asked, strict=True))
            )
            summary.append((campaign, len(chosen), row, asked))
        print("| mean absolute error | runs | time | asked | memory | asked |")
        print("|---|---|---|---|---|---|")
        for campaign, count, row, asked in summary:
            limits = [f"{limit} %" for limit in asked] if asked else [unasked(campaign)] * 2
            print(
                f"| {campaign} | {count} | {row[0]:.1f} % | {limits[0]} "
                f"| {row[1]:.1f} % | {limits[1]} |"
            )
        if not options.fit:
            print_flows(simulator, runs)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
