"""Two interleaved micro-batches of a stage compared with a sequence, in processes that share a GPU.

    python benchmarks/interleave.py [--kind H100-80GB] [--case NAME] [--devices 2] [--rounds 10]
                                 [--rows 16] [--type f32] [--set width=1024 ...] [--json FILE]
                                 [--traces FOLDER]

One process per device, over Gloo through host memory; with `--kind CPU` on CPUs. The same plan
trains with and without `interleave`, step by step in turn. The results are medians, and the saved
share of a step. "alone" is the same step on one device without exchanges; the remaining time of a
step is exposed communication. If GPU and network were both always busy, a step would last as long
as the longer of both.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import medley
from medley.cluster import parse_cluster
from medley_extras import models

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: COUNT, device: KIND, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 50 us}
"""
WARM_UP = 3  # steps of each side
TYPES = {"f32": None, "bf16": torch.bfloat16}


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, its sizes, and the decisions of its stage."""

    make: Any
    sizes: dict[str, int]
    stage: dict[str, Any]
    divides_rows: bool


CASES = {
    "tensors": Case(
        models.gpt,
        {"width": 6144, "layers": 2, "heads": 48, "positions": 256, "vocabulary": 1024},
        {
            "placements": {
                "*.attention.qkv.*": "S(0.1, even)",
                "*.attention.out.weight": "S(1, even)",
                "*.mlp.up.*": "S(0, even)",
                "*.mlp.down.weight": "S(1, even)",
            }
        },
        False,
    ),
    "experts": Case(
        models.bert_moe,
        {
            "width": 1024,
            "hidden": 16384,
            "layers": 2,
            "heads": 16,
            "positions": 128,
            "vocabulary": 1024,
            "experts": 8,
        },
        {
            "placements": {"*.experts.up": "S(0, even)", "*.experts.down": "S(0, even)"},
            "ops": {"*.experts/bmm#1": "b even", "*.experts/bmm#2": "b even"},
        },
        True,
    ),
}


def plan_of(case: Case, rows: int, devices: int, interleave: int) -> dict[str, Any]:
    """Returns a plan of four micro-batches; on one device a plan without exchanges."""
    microbatches: list[dict[str, Any]] = [{"rows": rows // 4} for _ in range(4)]
    if case.divides_rows:
        for each in microbatches:
            each["lengths"] = [rows // 4 // devices] * devices
    mesh = {"axes": ["x"], "shape": [devices], "devices": [f"a/{i}/0" for i in range(devices)]}
    stage = {"mesh": mesh, **(case.stage if devices > 1 else {})}
    pipeline: dict[str, Any] = {"microbatches": microbatches, "stages": [stage]}
    if interleave > 1:
        pipeline["interleave"] = interleave
    return {
        "format": "medley-plan",
        "version": 1,
        "global_batch": rows,
        "pipelines": [pipeline],
    }


def train(given: dict[str, Any], folder: Path) -> None:
    """Trains both sides in turn, as one of the processes. The first writes the seconds."""
    case = CASES[given["case"]]
    devices, rows = given["devices"], given["rows"]
    alone = "RANK" not in os.environ
    torch.manual_seed(0)
    model, batch = case.make(batch=rows, **{**case.sizes, **given["sizes"]})
    graph = medley.Graph.load(folder / "model.graph")
    count = 1 if alone else devices
    text = CLUSTER.replace("COUNT", str(devices)).replace("KIND", given["kind"])
    cluster = parse_cluster(text)
    sides = {}
    counts = {"in turn": 1} if alone else {"in turn": 1, "at once": 2}
    for name, interleave in counts.items():
        plan = medley.Plan.from_dict(plan_of(case, rows, count, interleave))
        sides[name] = medley.Trainer(
            model,
            graph,
            medley.plan(graph, cluster, plan=plan),
            medley.AdamW(lr=1e-4, report_norm=False),
            local=alone,
            keep_gradients=False,
            trace=bool(given["traces"]),
        )
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    losses: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-WARM_UP, given["rounds"]):
        for name, trainer in sides.items():
            begin = time.perf_counter()
            losses[name].append(trainer.step(batch).loss)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - begin)
    if alone or os.environ["RANK"] == "0":
        found = {"seconds": seconds, "losses": losses}
        (folder / f"{'alone' if alone else 'sides'}.json").write_text(json.dumps(found))
    for name, trainer in sides.items():
        if given["traces"] and not alone:
            who = f"{name.replace(' ', '_')}-{os.environ['RANK']}.json"
            trainer.save_trace(Path(given["traces"], who))
        trainer.finish()


def measure(given: dict[str, Any]) -> dict[str, Any]:
    """Starts the processes. Returns their times."""
    case = CASES[given["case"]]
    found = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with torch.device("meta"):
            model, batch = case.make(batch=given["rows"], **{**case.sizes, **given["sizes"]})
        graph = medley.capture(model, batch, autocast=TYPES[given["type"]])
        (folder / "model.graph").write_text(graph.text())
        own = [__file__, "--child", json.dumps(given), name]
        several = ["-m", "torch.distributed.run", "--standalone"]
        for file, launch in {
            "alone": [],
            "sides": [*several, f"--nproc-per-node={given['devices']}"],
        }.items():
            environment = {**os.environ, "MEDLEY_BACKEND": "gloo"}
            subprocess.run([sys.executable, *launch, *own], env=environment, check=True)
            found[file] = json.loads((folder / f"{file}.json").read_text())
    return found


def main() -> int:
    """Measures and prints."""
    if sys.argv[1:2] == ["--child"]:
        train(json.loads(sys.argv[2]), Path(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", default="H100-80GB")
    parser.add_argument("--case", choices=CASES, default="tensors")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--type", choices=TYPES, default="f32")
    parser.add_argument("--set", nargs="*", default=[], metavar="SIZE=NUMBER")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--traces", help="a folder for what each process did, and when")
    options = parser.parse_args()
    sizes = {name: int(value) for name, value in (each.split("=") for each in options.set)}
    given = {**vars(options), "sizes": sizes, "json": None}
    found = measure(given)
    sides, losses = found["sides"]["seconds"], found["sides"]["losses"]
    alone = statistics.median(found["alone"]["seconds"]["in turn"])
    before, after = (statistics.median(sides[name]) for name in ("in turn", "at once"))
    best = before / max(alone, before - alone)
    identical = "the same losses" if losses["in turn"] == losses["at once"] else "other losses"
    print(
        f"{options.case}, {options.devices} devices, {options.rows} rows, {options.type} "
        f"{' '.join(options.set)}: alone {alone * 1e3:.1f} ms; in turn {before * 1e3:.1f} ms, two "
        f"at once {after * 1e3:.1f} ms ({before / after:.2f}x; at best {best:.2f}x); {identical}",
        flush=True,
    )
    for name, each in sides.items():
        print(f"  {name}: {min(each) * 1e3:.1f} to {max(each) * 1e3:.1f} ms")
    if options.json:
        options.json.write_text(json.dumps({**found, "given": given}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
