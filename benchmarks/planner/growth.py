"""Growth of synthesis with layers and with devices: labels, tables and one exact search, CPU time.

python benchmarks/planner/growth.py build/release/bin/planner_times build/graphs

Prints two tables in Markdown, medians of several runs. The graphs are those of graphs.py.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

RUNS = 7
STAGES = ("labels", "tables", "search")
BAR_MS = 4  # per mark of the plot


def measure(program: str, graph: Path, *options: str) -> dict[str, float]:
    """Returns the median milliseconds of each stage and of their sum, and the model's cost."""
    runs: list[dict[str, Any]] = []
    for _ in range(RUNS):
        done = subprocess.run(
            [program, *options, str(graph)], check=True, capture_output=True, text=True
        )
        found = json.loads(done.stdout.splitlines()[0])
        times = {stage: 1e3 * found[f"{stage}_cpu_s"] for stage in STAGES}
        runs.append({**times, "sum": sum(times.values()), "ops": found["ops"]})
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def print_table(title: str, rows: dict[str, dict[str, float]]) -> None:
    """Prints a row per entry, with the ratio of its sum to that of the first."""
    first = next(iter(rows.values()))["sum"]
    print(f"| {title} | {' | '.join(f'{stage}, ms' for stage in STAGES)} | sum | | plot |")
    print("|" + "---|" * (len(STAGES) + 4))
    for name, row in rows.items():
        figures = " | ".join(f"{row[stage]:.1f}" for stage in STAGES)
        bar = "#" * round(row["sum"] / BAR_MS)
        print(f"| {name} | {figures} | {row['sum']:.1f} | {row['sum'] / first:.2f}x | `{bar}` |")
    print()


def main() -> None:
    """Measures and prints."""
    program, graphs = sys.argv[1], Path(sys.argv[2])
    for node in (1, 8):
        rows = {}
        for devices in (8, 64, 128, 256, 512):
            fast = max(node, devices // 4) if devices > node else 0
            options = ["--batch", "4096", "--node", str(node), "--fast", str(fast)]
            options += ["--slow", str(devices - fast)]
            rows[str(devices)] = measure(program, graphs / "bert12.graph", *options)
        print_table(f"devices, {node} per node", rows)
    for different in (False, True):
        rows = {}
        for layers in (12, 24, 48):
            options = ["--different"] if different else []
            rows[str(layers)] = measure(program, graphs / f"bert{layers}.graph", *options)
        print_table("layers, all different" if different else "layers that repeat", rows)


if __name__ == "__main__":
    main()
