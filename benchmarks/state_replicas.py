"""The cost of state replicas on other nodes.

    python -m benchmarks.replicas [--workload gpt?layers=12] [--rounds 5] [--steps 60]

A GPT trains as a pipeline without data parallelism (`--strategy`), with one process per device, so
that its state is unreplicated. It runs in turn with replicas, at Medley's own interval, and without
them. Prints the medians of the rounds: seconds of a step without replicas, and the additional time
of all steps with them. The additional CPU time is also valid while other programs use the machine.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed import recovery

WARM_UP = 5  # steps


def train(
    prepared: Path, devices: Sequence[str], options: argparse.Namespace, every: Sequence[str]
) -> tuple[float, float]:
    """Returns the seconds of a step, as wall time and as CPU time."""
    with tempfile.TemporaryDirectory(prefix="medley-replicas-") as name:
        folder = Path(name)
        for file in prepared.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        job = recovery.Job(folder, devices, options.workload, options.steps, every)
        try:
            job.finish()
        finally:
            job.end()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        at = [line["at"] for line in job.steps(devices[0])]
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (at[-1] - at[WARM_UP]) / (len(at) - 1 - WARM_UP), used / len(at)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="gpt?layers=12")
    parser.add_argument("--devices", type=int, default=3)
    parser.add_argument("--strategy", default="harp", help="of the plan")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = []
    with tempfile.TemporaryDirectory(prefix="medley-prepared-") as name:
        devices = recovery.prepare(options.workload, options.devices, options.strategy, Path(name))
        for number in range(options.rounds):
            found = {}
            turns = [("without", ["--replicate-every", "0"]), ("with", [])]
            for which, every in turns if number % 2 == 0 else reversed(turns):
                found[which] = train(Path(name), devices, options, every)
            rounds.append(
                {
                    "step_seconds": found["without"][0],
                    "longer": found["with"][0] / found["without"][0] - 1,
                    "processor_longer": found["with"][1] / found["without"][1] - 1,
                }
            )
            print(rounds[-1], file=sys.stderr, flush=True)
    medians = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
    result = {"devices": devices, **medians, "rounds": rounds}
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
