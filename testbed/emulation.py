"""The emulation against the testbed: `python -m testbed.emulation cluster.yaml --profiles FOLDER`.

For each workload and strategy: the step as emulated, op times from FOLDER/<workload>.json (made by
`medley profile` in the testbed), and as it is in the testbed, median of at least 30 steps.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
from pathlib import Path

import medley
from medley import job
from testbed import compare
from testbed.comparators import workloads

EMULATED_STEPS = 4


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
    model, example = workloads.WORKLOADS[workload]()
    graph = medley.capture(model, example)
    chosen = medley.plan(graph, cluster, plan=plan)
    optimizer = medley.AdamW(lr=workloads.LEARNING_RATE, weight_decay=0.01)
    with job.emulated(profile=str(profile.resolve())):
        trainer = medley.Trainer(model, graph, chosen, optimizer, local=True, keep_gradients=False)
    data = workloads.batches(example, 2)
    steps = [trainer.step(data[i % 2]).step_seconds for i in range(EMULATED_STEPS)]
    return statistics.median(steps[1:])


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
    parser.add_argument("--workloads", nargs="+", default=list(workloads.WORKLOADS))
    parser.add_argument("--strategies", nargs="+", default=["hap"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--tolerance", type=float, default=0.05)
    options = parser.parse_args()
    cluster = options.cluster.resolve()
    pairs = []
    with tempfile.TemporaryDirectory(prefix="medley-emulation-") as name:
        folder = Path(name)
        for workload in options.workloads:
            profile = options.profiles / f"{workload}.json"
            options.plan_option = ["--profile", str(profile)]
            contestants = compare.plans(workload, cluster, options, folder)
            for strategy, contestant in zip(options.strategies, contestants, strict=True):
                plan = folder / f"{workload}.{strategy}.json"
                emulated = emulated_seconds(workload, plan, cluster, profile)
                record = compare.run(contestant, cluster, options.steps, folder)
                pairs.append(Pair(f"{workload}, {strategy}", emulated, record.median))
                print(pairs[-1], flush=True)
    print(f"\n{table(pairs)}")
    return int(any(abs(pair.difference) > options.tolerance for pair in pairs))


if __name__ == "__main__":
    sys.exit(main())
