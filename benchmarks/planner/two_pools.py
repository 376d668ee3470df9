"""Two pools joined by a link of 1 to 100 Gbit/s: every strategy, and each pool alone.

python benchmarks/planner/graphs.py build/graphs python benchmarks/planner/two_pools.py [--models
gpt13b llama7b] [--gbits 1 3 5 10 25 100]

Steps are simulated. `uniform` is the better strategy of frameworks for equal devices, on all
devices: megatron and data-parallel-even. `single` is the better pool alone, by any strategy.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

CLUSTER = Path("benchmarks/clusters/two_pools.yaml")
STRATEGIES = ["data-parallel-even", "data-parallel-proportional", "hap", "harp", "megatron"]
UNIFORM = ["data-parallel-even", "megatron"]


def compare(asked: argparse.Namespace, model: str, cluster: str, devices: list[str]) -> Any:
    """Returns the answer of `medley compare --json`."""
    command = [asked.binary, "compare", str(asked.graphs / f"{model}.graph"), cluster, "--json"]
    command += ["--global-batch", str(asked.batch), "--strategies", ",".join(asked.strategies)]
    if devices:
        command += ["--devices", ",".join(devices)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def steps(answer: Any) -> dict[str, float]:
    """Returns seconds by strategy, of those that fit."""
    return {
        row["strategy"]: row["step_ns"] * 1e-9 for row in answer["strategies"] if "step_ns" in row
    }


def main() -> None:
    """Prints a table for each model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/torch/bin/medley")
    parser.add_argument("--graphs", type=Path, default=Path("build/graphs"))
    parser.add_argument("--models", nargs="+", default=["gpt13b", "llama7b"])
    parser.add_argument("--gbits", nargs="+", type=int, default=[1, 3, 5, 10, 25, 100])
    parser.add_argument("--devices", type=int, default=4, help="in each pool")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--strategies", nargs="+", default=STRATEGIES)
    asked = parser.parse_args()
    text = CLUSTER.read_text().replace("devices_per_node: 8", f"devices_per_node: {asked.devices}")
    pools = {pool: [f"{pool}/0/{i}" for i in range(asked.devices)] for pool in ("a", "v")}
    for model in asked.models:
        print(f"{model}, {asked.devices} + {asked.devices} devices, {asked.batch} rows: seconds")
        names = [name.replace("data-parallel", "dp") for name in asked.strategies]
        print("Gbit/s " + " ".join(f"{name:>15}" for name in [*names, "single"]), end="")
        print("  auto/uniform  auto/best other  bound/auto")
        with tempfile.TemporaryDirectory() as folder:
            cluster = str(Path(folder) / "cluster.yaml")
            single: float | None = None
            for gbits in asked.gbits:
                Path(cluster).write_text(text.replace("100 Gbit", f"{gbits} Gbit"))
                if single is None:  # the link between the pools makes no difference to one
                    single = min(
                        min(steps(compare(asked, model, cluster, devices)).values(), default=1e9)
                        for devices in pools.values()
                    )
                answer = compare(asked, model, cluster, [])
                found = steps(answer)
                auto = min(found.values())
                uniform = min(found.get(name, 1e9) for name in UNIFORM)
                other = min(uniform, single)
                cells = [
                    f"{found[n]:15.3f}" if n in found else f"{'-':>15}" for n in asked.strategies
                ]
                bound = answer["lower_bound_ns"] * 1e-9 / auto
                print(f"{gbits:6} " + " ".join(cells) + f" {single:15.3f}", end="")
                print(f"  {uniform / auto:11.2f}x  {other / auto:14.2f}x  {bound:10.2f}")


if __name__ == "__main__":
    main()
