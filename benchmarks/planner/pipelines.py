"""How long `harp` plans: the whole command, from the graph's text to the plan.

python benchmarks/planner/graphs.py build/graphs
python benchmarks/planner/pipelines.py [--graphs build/graphs] [--runs 3]

GPT-2.6B on 8 + 2 + 2 devices is HARP's own case (64 micro-batches; 63 s with cached profiles), then
Llama-70B on 64 devices in three pools, 256 in four and 1,024 in four.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

CLUSTERS = Path("benchmarks/clusters")
CASES = [
    ("gpt26b", "harp12", 1024, 64),
    ("gpt26b", "harp12", 1024, 0),
    ("llama70b", "pools64", 1024, 256),
    ("llama70b", "pools256", 1024, 64),
    ("llama70b", "pools1024", 1024, 64),
]


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/torch/bin/medley")
    parser.add_argument("--graphs", type=Path, default=Path("build/graphs"))
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    print(f"{'graph':10} {'cluster':10} {'seconds':>8}  stages (layers' first ops left out)")
    for graph, cluster, batch, microbatches in CASES:
        command = [asked.binary, "plan", str(asked.graphs / f"{graph}.graph")]
        command += [str(CLUSTERS / f"{cluster}.yaml"), "--global-batch", str(batch)]
        command += ["--strategy", "harp"]
        if microbatches:
            command += ["--microbatches", str(microbatches)]
        times = []
        for _ in range(asked.runs):
            start = time.perf_counter()
            text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            times.append(time.perf_counter() - start)
        pipeline = json.loads(text)["pipelines"][0]
        meshes = [stage["mesh"]["devices"] for stage in pipeline["stages"]]
        stages = " ".join(f"{mesh[0].split('/')[0]}x{len(mesh)}" for mesh in meshes)
        count = len(pipeline["microbatches"])
        print(f"{graph:10} {cluster:10} {statistics.median(times):8.2f}  {count} mb: {stages}")


if __name__ == "__main__":
    main()
