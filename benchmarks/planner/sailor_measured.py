"""Predicted compared with measured iterations of Megatron-DeepSpeed and Aceso (Sailor, SOSP'25).

python benchmarks/planner/sailor_measured.py build/release/bin/medley [DATA] [--fit]

DATA is the folder published with Sailor, or its part in the repository (tests/data/sailor).
sailor_runs.py lists the iterations that it reads.

Tables name only the runtime `megatron-deepspeed` (docs/formats/layers.md): no figure is fitted on
any campaign. The figures of Medley's own runtime for the same plans are listed too. It also
compares the time of summing gradients with the limit of the network, if the devices of a node do so
together or in sequence (`flows`, docs/formats/cluster.md).

--fit: also four constants of a run, for each campaign those with the least mean absolute error on
all other campaigns of Megatron-DeepSpeed.

Prints Markdown. Exits with 1 if an error of the runtime exceeds its limit.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from sailor_runs import (
    CAMPAIGNS,
    GIB,
    MEGATRON,
    ROOT,
    Run,
    read_runs,
    read_tables,
)

# %: mean and worst error; limit of predicted below measured memory.
ASKED_MEAN, ASKED_WORST, ASKED_UNDER = 8, 20, 5
Constants = dict[str, Any]
BY_SOURCE: Constants = {"runtime": "megatron-deepspeed"}
OWN: Constants = {"runtime": "medley"}
# The authors' value for GH200 instead of their planner's, chosen with these campaigns in sight.
PLATFORM: Constants = {**BY_SOURCE, "fixed_bytes": 5_060_000_000}


class Simulator:
    def __init__(self, medley: str, data: Path, folder: Path) -> None:
        self.medley, self.folder = medley, folder
        self.tables = read_tables(data)

    def simulate(self, table: dict[str, Any], cluster: Path, plan: Path) -> Any:
        place = self.folder / "table.json"
        place.write_text(json.dumps(table))
        files = [str(path) for path in (place, cluster, plan)]
        command = [self.medley, "simulate", "--json", "--layers", *files]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)

    def predict(self, run: Run, constants: Constants) -> tuple[float, float]:
        """Returns seconds of a step and GiB of its fullest stage."""
        table = {**self.tables[run.table], "run": constants}
        found = self.simulate(table, run.cluster, run.plan)
        most: int = max(stage["peak_bytes"] for stage in found["stages"])
        return 1e-9 * found["step_nanoseconds"], most / GIB

    def gradients(self, run: Run) -> float:
        """Returns seconds in which the slowest stage adds up its gradients."""
        table = self.tables[run.table]
        times = [
            {**entry, "ns": {name: [*ns[:2], 0] for name, ns in entry["ns"].items()}}
            for entry in table["times"]
        ]
        found = self.simulate({**table, "times": times}, run.cluster, run.plan)
        longest: int = max(stage["update_nanoseconds"] for stage in found["stages"])
        return 1e-9 * longest


Errors = list[tuple[float, float]]  # relative errors of time and of memory


def errors(simulator: Simulator, runs: list[Run], constants: Constants) -> Errors:
    both = [simulator.predict(run, constants) for run in runs]
    return [
        (time / run.seconds - 1, memory / run.gib - 1)
        for run, (time, memory) in zip(runs, both, strict=True)
    ]


def mean_error(found: Errors, which: int) -> float:
    return statistics.mean(abs(each[which]) for each in found)


def worst_error(found: Errors, which: int) -> float:
    return max((each[which] for each in found), key=abs)


def fit(simulator: Simulator, runs: list[Run]) -> Constants:
    """Two constants of time, then two of memory, one after the other in shrinking steps."""
    constants: Constants = {
        **BY_SOURCE,
        "all_reduce": 1.0,
        "blocking": 1.0,
        "saved": 1.0,
        "fixed_bytes": 4_000_000_000,
    }
    for which, widths in (
        (0, {"all_reduce": 1.0, "blocking": 0.5}),
        (1, {"saved": 0.1, "fixed_bytes": 1_000_000_000}),
    ):
        least = mean_error(errors(simulator, runs, constants), which)
        step = 1.0
        while step > 0.1:
            before = least
            for name, width in widths.items():
                for way in (-1, 1):
                    moved = {**constants, name: max(0, constants[name] + way * step * width)}
                    moved["fixed_bytes"] = round(moved["fixed_bytes"])
                    found = mean_error(errors(simulator, runs, moved), which)
                    if found < least:
                        least, constants = found, moved
            if least == before:
                step /= 2
    return constants


def print_campaign(campaign: str, runs: list[Run], found: Errors) -> None:
    print(f"**{campaign}**\n")
    print("| stages x replicas | measured | error | memory | error |")
    print("|---|---|---|---|---|")
    for run, (time, memory) in zip(runs, found, strict=True):
        print(
            f"| {run.name} | {run.seconds:.3f} s | {100 * time:+.1f} % "
            f"| {run.gib:.1f} GiB | {100 * memory:+.1f} % |"
        )
    print()


def summary(campaign: str, what: str, found: Errors) -> str:
    cells = [
        f"{100 * error:{sign}.1f} %"
        for which in (0, 1)
        for sign, error in (("", mean_error(found, which)), ("+", worst_error(found, which)))
    ]
    under = min(memory for _, memory in found)
    cells.append(f"{100 * under:+.1f} %")
    return f"| {campaign} | {what} | {' | '.join(cells)} |"


def is_missed(found: Errors) -> bool:
    return min(memory for _, memory in found) < -ASKED_UNDER / 100 or any(
        100 * mean_error(found, which) > ASKED_MEAN
        or 100 * abs(worst_error(found, which)) > ASKED_WORST
        for which in (0, 1)
    )


def with_flows(run: Run, flows: str, folder: Path) -> Run:
    place = folder / f"{flows}_{run.cluster.name}"
    text = run.cluster.read_text()
    place.write_text(text.replace("    bandwidth:", f"    flows: {flows}\n    bandwidth:"))
    return dataclasses.replace(run, cluster=place)


def print_flows(simulator: Simulator, runs: list[Run]) -> None:
    """Prints the deviation of each reading of `flows` from measured sums of gradients, and from
    steps."""
    print("\n| | runs | measured sums over predicted: all | one |", end="")
    print(" their error, of a step: all | one | error of a step: all | one |")
    print("|---|---|---|---|---|---|---|---|")
    for campaign in CAMPAIGNS:
        chosen = [run for run in runs if run.campaign == campaign]
        known = [run for run in chosen if run.gradients]
        if not known:
            continue
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
            steps.append(f"{100 * mean_error(errors(simulator, again, BY_SOURCE), 0):.1f} %")
        print(f"| {campaign} | {len(known)} | {' | '.join([*ratios, *shares, *steps])} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("medley")
    parser.add_argument("data", type=Path, nargs="?", default=ROOT / "tests" / "data" / "sailor")
    parser.add_argument("--fit", action="store_true", help="leave one campaign out, fit the others")
    options = parser.parse_args()
    missed = False
    rows: list[str] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        runs = read_runs(options.data, folder)
        simulator = Simulator(options.medley, options.data, folder)
        for campaign in CAMPAIGNS:
            chosen = [run for run in runs if run.campaign == campaign]
            if not chosen:
                continue
            found = errors(simulator, chosen, BY_SOURCE)
            missed = missed or is_missed(found)
            print_campaign(campaign, chosen, found)
            rows.append(summary(campaign, "runtime by its source", found))
            for what, constants in (
                ("its fixed bytes on GH200", PLATFORM),
                ("Medley's runtime", OWN),
            ):
                rows.append(summary(campaign, what, errors(simulator, chosen, constants)))
            if options.fit:
                rest = [run for run in runs if run.campaign in {*MEGATRON} - {campaign}]
                constants = fit(simulator, rest)
                print(f"Fitted on all but {campaign}: {json.dumps(constants)}\n", flush=True)
                rows.append(
                    summary(campaign, "fit on others", errors(simulator, chosen, constants))
                )
        print("| campaign | constants | time: mean | worst | memory: mean | worst | least |")
        print("|---|---|---|---|---|---|---|")
        print("\n".join(rows))
        print_flows(simulator, runs)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
