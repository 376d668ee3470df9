"""HAP's cluster and models at their real sizes, priced by the simulator.

    python benchmarks/hap_cluster.py [--json] [--keep DIR]

2 x 8 V100 and 6 x 8 P100 with 10.4 Gbit/s between machines, and 29 of them, irregularly spread over
the machines. Baselines are planned with the same collectives and the same overlap.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MEDLEY = [sys.executable, "-m", "medley"]
DATA_PARALLEL = "data-parallel-even,data-parallel-proportional,hap"
EXPERTS = "data-parallel-even,data-parallel-proportional,hap-even,hap"
CASES = [  # name, model, cluster, rows of a step, strategies
    ("vgg", "medley_extras.models:vgg?size=hap", "hap64", 2048, DATA_PARALLEL),
    (
        "vgg 224x224",
        "medley_extras.models:vgg?size=hap&image=224&pool=0",
        "hap64",
        2048,
        DATA_PARALLEL,
    ),
    ("vit", "medley_extras.models:vit?size=hap", "hap64", 2048, DATA_PARALLEL),
    ("bert", "medley_extras.models:bert?size=hap", "hap64", 2048, DATA_PARALLEL),
    ("bert-moe 128", "medley_extras.models:bert_moe?size=hap&experts=128", "hap64", 2048, EXPERTS),
    ("bert-moe 58", "medley_extras.models:bert_moe?size=hap&experts=58", "hap29", 928, EXPERTS),
    ("bert-moe 64", "medley_extras.models:bert_moe?size=hap&experts=64", "hap29", 928, EXPERTS),
    # Compute-bound: 2 V100 and 6 P100 on fast links.
    (
        "vgg 224x224",
        "medley_extras.models:vgg?size=hap&image=224&pool=0",
        "eight",
        256,
        DATA_PARALLEL,
    ),
    ("vit", "medley_extras.models:vit?size=hap", "eight", 2048, DATA_PARALLEL),
    ("bert", "medley_extras.models:bert?size=hap", "eight", 768, DATA_PARALLEL),
    # The same 64 experts, padded to three per device on 29 devices: as many tokens for each.
    (
        "bert-moe 87",
        "medley_extras.models:bert_moe?size=hap&experts=87&capacity=1.69",
        "hap29",
        928,
        EXPERTS,
    ),
]


def capture(model: str, path: Path) -> None:
    """Writes the graph of a model without its weights."""
    command = [*MEDLEY, "capture", model, "-o", str(path)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def compare(graph: Path, cluster: str, rows: int, strategies: str) -> dict[str, Any]:
    """Returns the result of `medley compare`."""
    file = HERE / "clusters" / f"{cluster}.yaml"
    command = [*MEDLEY, "compare", str(graph), str(file), "--global-batch", str(rows)]
    command += ["--strategies", strategies, "--json"]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    answer: dict[str, Any] = json.loads(out)
    return answer


def print_case(name: str, cluster: str, answer: dict[str, Any]) -> None:
    """Prints one line per strategy."""
    steps = {s["strategy"]: s.get("step_ns") for s in answer["strategies"]}
    for strategy in answer["strategies"]:
        if "infeasible" in strategy:
            print(f"{name:14} {cluster} {strategy['strategy']:27} does not fit into memory")
            continue
        print(
            f"{name:14} {cluster} {strategy['strategy']:27} {strategy['step_ns'] / 1e6:8.1f} ms  "
            f"{strategy['step_ns'] / steps['hap']:5.2f}x hap  gap {100 * strategy['gap']:5.0f} %",
            flush=True,
        )


def main() -> None:
    """Captures, compares, prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the answers as JSON")
    parser.add_argument("--keep", type=Path, help="keep the graphs in this folder")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for name, model, cluster, rows, strategies in CASES:
            graph = folder / f"{name.replace(' ', '_')}.graph"
            if not graph.exists():
                capture(model, graph)
            answer = compare(graph, cluster, rows, strategies)
            if options.json:
                print(json.dumps({"case": name, "cluster": cluster, **answer}))
            else:
                print_case(name, cluster, answer)


if __name__ == "__main__":
    main()
