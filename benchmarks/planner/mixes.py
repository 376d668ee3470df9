"""Mixes of A100, H800 and H20 (AutoHet): Medley's plans compared with the best uniform grid.

python benchmarks/planner/graphs.py build/graphs
python benchmarks/planner/mixes.py [--models gpt67b llama13b llama30b] [--mixes a2h2 a2h1w4] \\
    [--batch 512] [--gbits 100]

Steps are simulated. A mix is a number of nodes per type: a2h1w4 is two of A100, one of H800 and
four of H20. `uniform` is the best grid of equal stages, data and tensor parallelism (`megatron`) on
all devices of the mix, or on those of any type. `one` and `several` are the plans of `harp` and
`autohet` on all devices. `bound` is `autohet`'s proven bound as a share of the better step.
"""

from __future__ import annotations

import argparse
import itertools
import json
import re
import subprocess
import tempfile
import time
from pathlib import Path

CLUSTER = "benchmarks/clusters/mixes.yaml"
KINDS = {"a": "A100", "h": "H800", "w": "H20"}
MIXES = ["a2h2", "a2w2", "h2w2", "a2h2w2", "a2h1", "a3h1", "a2h1w4", "a3h1w4"]
LINK = "bandwidth: 100 Gbit/s"


Nodes = dict[str, int]


def parsed(mix: str) -> Nodes:
    """Returns the number of nodes per device type."""
    return {kind: int(count) for kind, count in re.findall(r"([ahw])(\d+)", mix)}


def request(asked: argparse.Namespace, model: str, nodes: Nodes) -> list[str]:
    """Returns the arguments of all commands."""
    devices = [
        f"{kind}/{node}/{i}"
        for kind, count in nodes.items()
        for node in range(count)
        for i in range(8)
    ]
    graph = str(asked.graphs / f"{model}.graph")
    batch = str(asked.batch)
    return [graph, asked.cluster, "--global-batch", batch, "--devices", ",".join(devices)]


def step(asked: argparse.Namespace, model: str, nodes: Nodes, strategy: str) -> float | None:
    """Returns seconds of a step, or nothing where no plan fits."""
    command = [asked.binary, "compare", *request(asked, model, nodes), "--json"]
    command += ["--strategies", strategy]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        return None
    (row,) = json.loads(done.stdout)["strategies"]
    return float(row["step_ns"]) * 1e-9 if "step_ns" in row else None


def several(
    asked: argparse.Namespace, model: str, nodes: Nodes
) -> tuple[float | None, float | None]:
    """Returns the step of `autohet` and the bound that it proves, in seconds."""
    command = [asked.binary, "plan", *request(asked, model, nodes), "--strategy", "autohet"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    bound = json.loads(done.stdout).get("bound") if done.stdout else None
    if not bound:
        return None, None
    return bound["step_ns"] * 1e-9, bound["least_ns"] * 1e-9


def print_row(asked: argparse.Namespace, model: str, nodes: Nodes) -> None:
    """Prints the results of a mix."""
    uniform: dict[str, float] = {}
    for size in range(1, len(nodes) + 1):
        for kinds in itertools.combinations(nodes, size):
            seconds = step(asked, model, {kind: nodes[kind] for kind in kinds}, "megatron")
            if seconds is not None:
                uniform["+".join(KINDS[kind] for kind in kinds)] = seconds
    start = time.monotonic()
    one = step(asked, model, nodes, "harp")
    more, bound = several(asked, model, nodes)
    took = time.monotonic() - start
    ours = min(seconds for seconds in (one, more) if seconds is not None)
    everything = "+".join(KINDS[kind] for kind in nodes)
    texts = ["-" if seconds is None else f"{seconds:.2f} s" for seconds in (one, more)]
    every = f"{uniform[everything] / ours:.2f}x" if everything in uniform else "-"
    best = min(uniform, key=lambda kinds: uniform[kinds]) if uniform else ""
    on_best = f"{best} {uniform[best]:.2f} s ({uniform[best] / ours:.2f}x)" if best else "-"
    proved = "-" if bound is None else f"{bound / ours:.2f}"
    mix = "+".join(f"{count} {KINDS[kind]}" for kind, count in nodes.items())
    print(
        f"{model:9} {mix:22} one {texts[0]:>8} several {texts[1]:>8} bound {proved:>5}"
        f" uniform on all {every:>6}, on the best kinds {on_best}, planned in {took:.0f} s",
        flush=True,
    )


def main() -> None:
    """Prints a row for each model and mix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/torch/bin/medley")
    parser.add_argument("--graphs", type=Path, default=Path("build/graphs"))
    parser.add_argument("--models", nargs="+", default=["gpt67b", "llama13b", "llama30b"])
    parser.add_argument("--mixes", nargs="+", default=MIXES)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--gbits", type=float, default=100.0, help="between nodes")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster = Path(folder) / "mixes.yaml"
        text = Path(CLUSTER).read_text()
        cluster.write_text(text.replace(LINK, f"bandwidth: {asked.gbits:g} Gbit/s"))
        asked.cluster = str(cluster)
        for model in asked.models:
            for mix in asked.mixes:
                print_row(asked, model, parsed(mix))


if __name__ == "__main__":
    main()
