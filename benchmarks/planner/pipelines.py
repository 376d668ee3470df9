"""Planning time of `harp`: the whole command, from the graph's text to the plan.

python benchmarks/planner/graphs.py build/graphs python benchmarks/planner/pipelines.py [--graphs
build/graphs] [--runs 3] [--plot growth.html]

GPT-2.6B on 8 + 2 + 2 devices is HARP's own case (64 micro-batches; 63 s with cached profiles), then
Llama-70B on 64 devices in three pools, 256 in four and 1,024 in four. `--plot` draws seconds over
devices, both logarithmic, with a line of linear growth. The file needs no network.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from medley.cluster import load_cluster

CLUSTERS = Path("benchmarks/clusters")


@dataclasses.dataclass(frozen=True)
class Case:
    """A planning problem."""

    graph: str
    cluster: str
    batch: int
    microbatches: int  # 0: searched

    @property
    def path(self) -> Path:
        """The path of the cluster."""
        return CLUSTERS / f"{self.cluster}.yaml"

    @property
    def about(self) -> str:
        """The model, and the other parameters of the time."""
        return f"{self.graph}, {self.microbatches or 'searched'} micro-batches"


CASES = [
    Case("gpt26b", "harp12", 1024, 64),
    Case("gpt26b", "harp12", 1024, 0),
    Case("llama70b", "pools64", 1024, 256),
    Case("llama70b", "pools64", 1024, 64),
    Case("llama70b", "pools256", 1024, 64),
    Case("llama70b", "pools1024", 1024, 64),
]


def measure(asked: argparse.Namespace, case: Case) -> tuple[float, Any]:
    """Returns the median of the seconds, and the pipeline found."""
    command = [asked.binary, "plan", str(asked.graphs / f"{case.graph}.graph"), str(case.path)]
    command += ["--global-batch", str(case.batch), "--strategy", "harp"]
    if case.microbatches:
        command += ["--microbatches", str(case.microbatches)]
    times = []
    for _ in range(asked.runs):
        start = time.perf_counter()
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        times.append(time.perf_counter() - start)
    return statistics.median(times), json.loads(text)["pipelines"][0]


def plot(points: list[tuple[Case, int, float]], path: Path) -> None:
    """Writes a figure of seconds over devices: a line for each model and number of micro-batches,
    and a dotted line from its first point that grows with the devices."""
    from plotly import graph_objects

    lines: dict[str, list[tuple[int, float]]] = {}
    for case, devices, seconds in points:
        lines.setdefault(case.about, []).append((devices, seconds))
    figure = graph_objects.Figure()
    for about, line in lines.items():
        x, y = zip(*line, strict=True)
        text = [f"{seconds:.2f} s" for seconds in y]
        figure.add_scatter(
            x=x, y=y, name=about, mode="lines+markers+text", text=text, textposition="top center"
        )
        if len(line) > 1:
            linear = [y[0] * devices / x[0] for devices in x]
            figure.add_scatter(
                x=x, y=linear, name="with the devices", mode="lines", line={"dash": "dot"}
            )
    counts = sorted({devices for _, devices, _ in points})
    figure.update_layout(title="Planning a pipeline (harp)", template="plotly_white")
    figure.update_xaxes(type="log", title="devices", tickvals=counts)
    figure.update_yaxes(type="log", title="seconds", dtick=1)
    figure.write_html(path, include_plotlyjs=True, div_id="growth")


def main() -> None:
    """Prints a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/torch/bin/medley")
    parser.add_argument("--graphs", type=Path, default=Path("build/graphs"))
    parser.add_argument("--clusters", nargs="+", help="of these only: harp12 pools64")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--plot", type=Path, help="draw the growth here: growth.html")
    asked = parser.parse_args()
    print(f"{'graph':10} {'cluster':10} {'seconds':>8}  stages (layers' first ops left out)")
    points = []
    for case in CASES:
        if asked.clusters and case.cluster not in asked.clusters:
            continue
        seconds, pipeline = measure(asked, case)
        points.append((case, len(load_cluster(case.path).devices), seconds))
        meshes = [stage["mesh"]["devices"] for stage in pipeline["stages"]]
        stages = " ".join(f"{mesh[0].split('/')[0]}x{len(mesh)}" for mesh in meshes)
        count = len(pipeline["microbatches"])
        print(f"{case.graph:10} {case.cluster:10} {seconds:8.2f}  {count} mb: {stages}", flush=True)
    if asked.plot:
        plot(points, asked.plot)


if __name__ == "__main__":
    main()
