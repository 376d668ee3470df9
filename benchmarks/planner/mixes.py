"""Mixes of A100, H800 and H20 (AutoHet): Medley's plans beside the best uniform grid.

python benchmarks/planner/graphs.py build/graphs
python benchmarks/planner/mixes.py [--models gpt67b llama13b llama30b] [--batch 512]

By the simulator. `uniform` is the best grid of equal stages, data and tensor parallelism
(`megatron`) on all devices of the mix, or on those of any of its kinds; `one`, `several` are the
plans of `harp` and `autohet` on all devices.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import time
from pathlib import Path

CLUSTER = "benchmarks/clusters/mixes.yaml"
KINDS = {"a": "A100", "h": "H800", "w": "H20"}
MIXES = ["ah", "aw", "hw", "ahw"]


def step(asked: argparse.Namespace, model: str, kinds: str, strategy: str) -> float | None:
    """Returns seconds of a step, or nothing where no plan fits."""
    devices = [f"{kind}/{node}/{i}" for kind in kinds for node in range(2) for i in range(8)]
    command = [asked.binary, "compare", str(asked.graphs / f"{model}.graph"), CLUSTER, "--json"]
    command += ["--global-batch", str(asked.batch), "--strategies", strategy]
    command += ["--devices", ",".join(devices)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout:
        return None
    (row,) = json.loads(done.stdout)["strategies"]
    return float(row["step_ns"]) * 1e-9 if "step_ns" in row else None


def main() -> None:
    """Prints a row for each model and mix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--binary", default="build/torch/bin/medley")
    parser.add_argument("--graphs", type=Path, default=Path("build/graphs"))
    parser.add_argument("--models", nargs="+", default=["gpt67b", "llama13b", "llama30b"])
    parser.add_argument("--mixes", nargs="+", default=MIXES)
    parser.add_argument("--batch", type=int, default=512)
    asked = parser.parse_args()
    for model in asked.models:
        uniform: dict[str, float | None] = {}
        for mix in asked.mixes:
            for size in range(1, len(mix) + 1):
                for kinds in map("".join, itertools.combinations(mix, size)):
                    if kinds not in uniform:
                        uniform[kinds] = step(asked, model, kinds, "megatron")
            found = {kinds: uniform[kinds] for kinds in uniform if set(kinds) <= set(mix)}
            times = {kinds: seconds for kinds, seconds in found.items() if seconds is not None}
            start = time.monotonic()
            own = {name: step(asked, model, mix, name) for name in ("harp", "autohet")}
            took = time.monotonic() - start
            ours = min(seconds for seconds in own.values() if seconds is not None)
            best = min(times, key=lambda kinds: times[kinds])
            every = "-"
            if mix in times:
                every = f"{times[mix]:.2f} s ({times[mix] / ours:.2f}x)"
            texts = ["-" if seconds is None else f"{seconds:.2f} s" for seconds in own.values()]
            print(
                f"{model:9} {'+'.join(KINDS[kind] for kind in mix):14} one {texts[0]:>8}"
                f" several {texts[1]:>8} uniform on all {every:>16} on the best kinds"
                f" {'+'.join(KINDS[kind] for kind in best)} {times[best]:.2f} s"
                f" ({times[best] / ours:.2f}x), planned in {took:.0f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
