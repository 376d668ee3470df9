"""Plans over Sailor's layer tables on heterogeneous types, compared with other rules on the same
tables.

python benchmarks/planner/sailor_mixed.py build/release/bin/sailor_mixed [DATA]

DATA is the folder published with Sailor, or its part in the repository (tests/data/sailor). Options
of the program may follow it. Prints Markdown. Exits with 1 if another rule is faster, or if
planning exceeds its limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from convert_sailor import cluster, layer_table, print_table  # noqa: E402

BATCH = 2048
KINDS = {"a100": "A100-40", "v100": "V100-16", "gh": "GH-96"}
CLUSTERS = [  # devices by pool, in nodes of 4; limit of planning in seconds
    ({"a100": 16, "v100": 16}, 1),
    ({"a100": 64, "v100": 64}, 1),
    ({"a100": 32, "v100": 96}, 1),
    ({"a100": 128, "v100": 384}, 1),
    ({"a100": 64, "v100": 64, "gh": 64}, 3),
]
MODELS = ("OPT-350", "GPT-Neo-2.7")


def table_of(data: Path, model: str, pools: dict[str, int]) -> dict[str, Any]:
    """Returns the layer table of a model. That of GPT-Neo on GH200 is made of ops. Other rules know
    no tied layers, so there are none."""
    kinds = [KINDS[pool] for pool in pools]
    if model == "OPT-350" or "gh" not in pools:
        return layer_table(data, model, kinds, tied=())
    table = layer_table(data, model, [kind for kind in kinds if kind != "GH-96"], tied=())
    from_ops = layer_table(data, model, ["GH-96"], "OPT-350", ())
    # The layers of both, each by its place.
    names = [f"{a}/{b}" for a, b in zip(table["layers"], from_ops["layers"], strict=True)]
    both = {**table, "layers": names, "times": [], "bytes": []}
    for part, key in (("bytes", "layers"), ("times", "ns")):
        for source, which in ((table, 0), (from_ops, 1)):
            for entry in source[part]:
                if part == "bytes" and which == 1:
                    continue  # the same
                values = {name: entry[key][name.split("/")[which]] for name in names}
                both[part].append({**entry, key: values})
    return both


def main() -> int:
    program = sys.argv[1]
    data = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "tests" / "data" / "sailor"
    options = sys.argv[3:]
    failed = False
    print("| devices | model | step | planning, wall, CPU | equal replicas | Sailor's rules |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for pools, limit in CLUSTERS:
            for model in MODELS:
                table, yaml = Path(folder) / "table.json", Path(folder) / "cluster.yaml"
                table.write_text(print_table(table_of(data, model, pools)))
                nodes = [(pool, KINDS[pool], count // 4) for pool, count in pools.items()]
                yaml.write_text(cluster(data, nodes))
                command = [program, str(table), str(yaml), "--global-batch", str(BATCH), *options]
                done = subprocess.run(
                    command, capture_output=True, text=True, check=False, cwd=ROOT
                )
                if done.returncode not in (0, 1):
                    sys.exit(done.stderr)
                found = json.loads(done.stdout)
                failed = failed or done.returncode == 1 or found["planning_s"] > limit
                step = found["step_s"]
                print(
                    f"| {' + '.join(f'{count} {pool}' for pool, count in pools.items())} "
                    f"| {model} | {step:.2f} s "
                    f"| {found['planning_s']:.2f} s, {found['planning_cpu_s']:.2f} s "
                    f"| {found['equal_replicas']['step_s'] / step:.3f}x "
                    f"| {found['sailor_rules']['step_s'] / step:.3f}x |",
                    flush=True,
                )
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
