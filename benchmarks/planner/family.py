"""Plans a family of clusters, drawn by seed, for four models: time, plans, gaps.

python benchmarks/planner/graphs.py build/graphs python benchmarks/planner/family.py [--seeds
100-123] [--other OLD/medley] [--models gpt26b t5]

A seed draws a cluster: 8 to 1,024 devices (a power of two by the seed), 1 to 5 types, nodes of 1,
2, 4 or 8 devices, links of 1 to 400 Gbit/s, one switch or one for each pool and one between them.
Seeds below 100 are for setting constants; 100 and above are those that are reported.

With `--other` both programs plan each case in turn, and this program simulates both plans. It
prints a line per case. Then follows Markdown: CPU seconds (median, worst), optimality gaps, and the
ratio of the other's step to this one's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

SMALL = 64  # devices
KINDS = [  # from the catalogue, with a link inside a node in GB/s
    ("V100-16GB", 150),
    ("V100-32GB", 150),
    ("A100-40GB", 300),
    ("A100-80GB", 300),
    ("A800-80GB", 200),
    ("H100-80GB", 450),
    ("H800-80GB", 200),
    ("H20-96GB", 450),
    ("H200-141GB", 450),
    ("MI250X-64GB", 50),
    ("MI300X-192GB", 448),
    ("RTX3090-24GB", 24),
    ("RTX4090-24GB", 24),
    ("RTXA6000-48GB", 24),
    ("L40S-48GB", 24),
    ("A10G-24GB", 24),
]
GBITS = [1, 5, 10, 25, 50, 100, 200, 400]
MODELS = ["gpt26b", "llama70b", "mixtral12", "t5"]


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A cluster of the family, as the text of a file."""

    seed: int
    devices: int
    pools: int
    text: str

    @property
    def rows(self) -> int:
        """Rows of a step: four a device, 64 at least."""
        return max(64, 4 * self.devices)


def draw(seed: int) -> Cluster:
    """Returns the cluster of a seed, the same on every machine."""
    drawn = random.Random(f"family {seed}")
    devices = 8 << seed % 8
    sizes = split(drawn, devices, drawn.randint(1, 5))
    nodes, networks = [], []
    for number, (size, (kind, link)) in enumerate(
        zip(sizes, drawn.sample(KINDS, len(sizes)), strict=True)
    ):
        nodes_of = [n for n in (1, 2, 4, 8) if size % n == 0]
        if devices > SMALL:  # larger clusters are made of larger nodes
            nodes_of = nodes_of[-2:]
        per_node = drawn.choice(nodes_of)
        pool = f"p{number}"
        nodes.append(
            f"  - {{name: {pool}, count: {size // per_node}, device: {kind}, "
            f"devices_per_node: {per_node}}}"
        )
        if per_node > 1:
            networks.append(
                f"  - {{name: in{number}, inside: node, pools: [{pool}], "
                f"bandwidth: {link} GB/s, latency: 5 us}}"
            )
    pools = ", ".join(f"p{number}" for number in range(len(sizes)))
    bandwidth = drawn.choice(GBITS)
    if drawn.random() < 0.5:
        for number in range(len(sizes)):
            networks.append(
                f"  - {{name: sw{number}, connects: [p{number}], "
                f"bandwidth: {drawn.choice(GBITS)} Gbit/s, latency: 10 us}}"
            )
    networks.append(
        f"  - {{name: net, connects: [{pools}], bandwidth: {bandwidth} Gbit/s, "
        f"latency: {drawn.choice([10, 50, 1000])} us}}"
    )
    head = ["format: medley-cluster", "version: 1", "nodes:"]
    text = "\n".join([*head, *nodes, "networks:", *networks, ""])
    return Cluster(seed, devices, len(sizes), text)


def split(drawn: random.Random, devices: int, most: int) -> list[int]:
    """Returns sizes of pools, powers of two except one, whose sum is `devices`."""
    sizes = [devices]
    while len(sizes) < most:
        largest = max(sizes)
        if largest < 2:
            break
        sizes.remove(largest)
        part = largest // drawn.choice([2, 2, 4]) or 1
        sizes += [part, largest - part]
    drawn.shuffle(sizes)
    return sizes


@dataclasses.dataclass
class Planned:
    """The plan of a program, or only its planning time."""

    seconds: float  # CPU time
    strategy: str = ""
    step: float = math.nan  # seconds, by the simulator of the program at hand
    gap: float = math.nan  # share of the step that another plan could be shorter at most


def processor_seconds() -> float:
    """Returns the CPU time of all ended children in seconds, with the kernel's."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def plan(binary: Path, judge: Path, graph: Path, cluster: Cluster, limit: int) -> Planned:
    """Plans with `binary`, and simulates the plan with `judge`."""
    with tempfile.TemporaryDirectory() as folder:
        described, found = Path(folder) / "cluster.yaml", Path(folder) / "plan.json"
        described.write_text(cluster.text)
        command = [binary, "plan", graph, described, "--global-batch", str(cluster.rows)]
        before = processor_seconds()
        try:
            done = subprocess.run(
                [*command, "-o", found], capture_output=True, text=True, timeout=limit, check=False
            )
        except subprocess.TimeoutExpired:
            return Planned(processor_seconds() - before, "no end")
        planned = Planned(processor_seconds() - before)
        if done.returncode not in (0, 3) and "no plan fits" not in done.stderr:
            sys.exit(f"{' '.join(map(str, command))}: {done.stderr}")
        if not found.exists():
            planned.strategy = "none"
            return planned
        text = json.loads(found.read_text())
        planned.strategy = text["strategy"]
        if bound := text.get("bound"):
            planned.gap = 1 - bound["least_ns"] / bound["step_ns"]
        simulated = subprocess.run(
            [judge, "simulate", graph, described, found, "--json"], capture_output=True, check=True
        )
        planned.step = json.loads(simulated.stdout)["step_nanoseconds"] / 1e9
        return planned


def median_and_worst(values: list[float], form: str) -> str:
    """Returns both as Markdown cells, or a dash without values."""
    if not values:
        return "- | -"
    return f"{format(statistics.median(values), form)} | {format(max(values), form)}"


def table(cases: list[dict[str, Any]], other: bool) -> str:
    """Returns a line for each model, one for clusters of few devices, and one for all."""
    groups = [(model, [c for c in cases if c["model"] == model]) for model in MODELS]
    groups.append((f"at most {SMALL} devices", [c for c in cases if c["devices"] <= SMALL]))
    groups.append(("all", cases))
    head = "| | cases | without a plan | CPU-s, median | worst | gap, median | worst |"
    lines = [head, "|---" * 7 + "|"]
    if other:
        lines = [head + " CPU-s over other's, mean | other's step over own, mean | worst |"]
        lines.append("|---" * 10 + "|")
    for name, some in groups:
        own = [Planned(**case["own"]) for case in some]
        if not own:
            continue
        line = f"| {name} | {len(own)} | {sum(math.isnan(p.step) for p in own)} "
        line += f"| {median_and_worst([p.seconds for p in own], '.1f')} "
        line += f"| {median_and_worst([p.gap for p in own if p.gap == p.gap], '.1%')} |"
        if other:
            others = [Planned(**case["other"]) for case in some]
            both = list(zip(own, others, strict=True))
            times = [a.seconds / b.seconds for a, b in both]
            steps = [b.step / a.step for a, b in both if a.step == a.step and b.step == b.step]
            line += f" {statistics.geometric_mean(times):.3f} |"
            line += f" {statistics.geometric_mean(steps):.4f} | {min(steps):.4f} |" if steps else ""
        lines.append(line)
    return "\n".join(lines)


def seeds_of(text: str) -> list[int]:
    """Returns the numbers of "3", "3-7" or "3,5-7"."""
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def main() -> None:
    """Plans all cases. Writes each as a line of JSON if requested."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", type=Path, default=Path("build/torch/bin/medley"))
    parser.add_argument("--other", type=Path, help="a program to compare with")
    parser.add_argument("--graphs", type=Path, default=Path("build/graphs"))
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--seeds", type=seeds_of, default=seeds_of("100-123"))
    parser.add_argument(
        "--most-devices", type=int, default=1024, help="larger clusters are left out"
    )
    parser.add_argument("--limit", type=int, default=1800, help="seconds of a plan, by the clock")
    parser.add_argument("--json", type=Path, help="append each case here; those there are not run")
    asked = parser.parse_args()
    cases: list[dict[str, Any]] = []
    if asked.json and asked.json.exists():
        cases = [json.loads(line) for line in asked.json.read_text().splitlines()]
    known = {(case["model"], case["seed"]) for case in cases}
    for cluster in map(draw, asked.seeds):
        for model in asked.models:
            if cluster.devices > asked.most_devices or (model, cluster.seed) in known:
                continue
            graph = asked.graphs / f"{model}.graph"
            case: dict[str, Any] = {"model": model, "seed": cluster.seed}
            case |= {"devices": cluster.devices, "pools": cluster.pools}
            programs = {"own": asked.binary} | ({"other": asked.other} if asked.other else {})
            for name, binary in programs.items():
                case[name] = dataclasses.asdict(
                    plan(binary, asked.binary, graph, cluster, asked.limit)
                )
            cases.append(case)
            if asked.json:
                with asked.json.open("a") as file:
                    file.write(json.dumps(case) + "\n")
            print(json.dumps(case), file=sys.stderr, flush=True)
    print(table(cases, bool(asked.other)))


if __name__ == "__main__":
    main()
