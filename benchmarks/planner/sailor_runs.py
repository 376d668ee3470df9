"""Iterations measured by the authors of Sailor, as files for `medley simulate`. They ran on nodes
of four GH200 (measured_iterations.csv), and on nodes of eight RTX GPUs of several types, if
DATA/measured/mit exists: the folder sailor/Planner/simulations/validation/mit of
github.com/eth-easl/sailor."""

from __future__ import annotations

import csv
import dataclasses
import json
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from convert_sailor import ZONE, cluster, curve, layer_table, network  # noqa: E402

GIB = 2**30
RTX = "OPT-350, RTX cards"
# its layers are unmeasured; those of Megatron-DeepSpeed are used
ACESO = "OPT-350, Aceso's runtime"
MEGATRON = ("OPT-350, first campaign", "OPT-350, second campaign", "GPT-Neo-2.7", RTX)
CAMPAIGNS = (*MEGATRON, ACESO)
CUTS = {"1": (26,), "2": (12, 14), "4": (5, 7, 7, 7)}  # cuts of OPT-350; Aceso's are not published
Table = dict[str, Any]


@dataclasses.dataclass
class Run:
    campaign: str
    name: str
    table: str  # a key of read_tables()
    cluster: Path
    plan: Path
    seconds: float
    gib: float
    gradients: float | None  # seconds, if there are several replicas and the data are credible


def is_aceso(row: dict[str, str]) -> bool:
    return "Aceso" in row.get("framework", row["campaign"])


def campaign_of(row: dict[str, str]) -> str | None:
    if row["note"].startswith("misfiled"):  # an iteration of the first campaign again
        return None
    if row["model"] != "OPT-350":
        return row["model"]
    if is_aceso(row):
        return ACESO
    which = "first" if row["campaign"].startswith("initial") else "second"
    return f"OPT-350, {which} campaign"


def plan_of(stages: Sequence[tuple[int, str, int, int]], batch: int, rows: int) -> dict[str, Any]:
    """1F1B over stages of (layers, pool, replicas, degree), `rows` on each replica."""
    count = batch // (rows * stages[0][2])
    ends = [sum(stage[0] for stage in stages[: i + 1]) for i in range(len(stages))]
    return {
        "format": "medley-layer-plan",
        "version": 1,
        "global_batch": batch,
        "microbatches": count,
        "schedule": "1f1b",
        "stages": [
            {
                "layers": [end - layers, end],
                "pool": pool,
                "replicas": replicas,
                "tensor_parallel": degree,
                "in_flight": min(count, len(stages) - i),
            }
            for i, ((layers, pool, replicas, degree), end) in enumerate(
                zip(stages, ends, strict=True)
            )
        ],
    }


def written_stages(text: str) -> list[tuple[int, str, int, int]]:
    """Reads "7L:4xGH-96/tp4 | 9L:4xGH-96/tp4"."""
    stages = []
    for stage in text.split(" | "):
        layers, _, rest = stage.partition("L:")
        replicas, _, degree = rest.partition("xGH-96/tp")
        stages.append((int(layers), "gh", int(replicas), int(degree)))
    return stages


def read_runs(data: Path, folder: Path) -> list[Run]:
    place = data / "measured_iterations.csv"
    if not place.exists():
        place = data / "measured" / "measured_iterations.csv"
    runs: list[Run] = []
    with place.open() as file:
        for row in csv.DictReader(file):
            campaign = campaign_of(row)
            if campaign is None:
                continue
            if campaign == ACESO and "L:" not in row["plan"]:
                row["plan"] = " | ".join(f"{n}L:{row['dp']}xGH-96/tp4" for n in CUTS[row["pp"]])
            nodes = int(row["nodes"])
            where = folder / f"{nodes}.yaml"
            where.write_text(cluster(data, [("gh", "GH-96", nodes)]))
            plan = folder / f"{len(runs)}.json"
            stages = written_stages(row["plan"])
            replicas = stages[0][2]
            plan.write_text(json.dumps(plan_of(stages, int(row["gbs"]), int(row["mbs"]))))
            name = (
                f"{nodes} nodes, {len(stages)} x {replicas}, {row['mbs']} rows, batch {row['gbs']}"
            )
            measured = float(row["iter_s"]), float(row["max_mem_GiB"])
            gradients = float(row["grad_sync_s"]) if replicas > 1 else None
            if gradients and gradients > 0.5 * measured[0]:  # a copy of the step's time
                gradients = None
            runs.append(Run(campaign, name, row["model"], where, plan, *measured, gradients))
    # N3_D1 has the time and memory of N6_D2, and sums of gradients without a second replica.
    mixed = sorted((data / "measured" / "mit").glob("N*/*.json"))
    runs += [read_mixed(data, each, folder) for each in mixed if "N3_D1" not in each.stem]
    return runs


def mixed_name(kinds: Iterable[str]) -> str:
    return "_".join(sorted(set(kinds)))


def slowest_curve(curves: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [min(curves, key=lambda each: float(each["most"]))]


def mixed_cluster(data: Path, stages: Sequence[Sequence[str]], degree: int) -> str:
    """Returns a cluster with a pool per stage, whose replicas are of these types, each on a node.
    Its devices are as slow as the slowest of them, its links as the slowest between two nodes. A
    node has one port: several GPUs have the speed of one, unlike the published values for two
    types."""
    between = json.loads((data / "network" / "multizone_bandwidths_het.json").read_text())[ZONE]
    inside = json.loads((data / "network" / "network_coeffs_all_homo.json").read_text())["intra"]

    def link(one: str, other: str) -> dict[str, Any]:
        known = [
            curve(degree, between[a][n][ZONE][b][n])
            for n in ("1", "2", "4", "8")
            for a, b in ((one, other), (other, one))
            if int(n) <= degree and between[a].get(n, {}).get(ZONE, {}).get(b)
        ]
        return max(known, key=lambda each: float(each["most"]))

    def slowest(pairs: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
        return slowest_curve(link(one, other) for one, other in pairs)

    text = "format: medley-cluster\nversion: 1\ndevices:\n"
    for kind in sorted({mixed_name(stage) for stage in stages}):
        text += (
            f"  {kind}: {{sustained: {{f32: 1 Tflop/s}}, memory: 24 GiB, "
            "memory_bandwidth: 1 GB/s, launch_latency: 0 us}\n"
        )
    text += "nodes:\n"
    networks = []
    for i, stage in enumerate(stages):
        text += (
            f"  - {{name: s{i}, count: {len(stage)}, device: {mixed_name(stage)}, "
            f"devices_per_node: {degree}}}\n"
        )
        fabric = slowest_curve(curve(1, inside[kind]["2"]) for kind in stage)
        networks.append(network(f"s{i}-node", f"inside: node\n    pools: [s{i}]", fabric))
        if len(stage) > 1:
            pairs = [(a, b) for j, a in enumerate(stage) for b in stage[j + 1 :]]
            networks.append(network(f"s{i}-lan", f"connects: [s{i}]", slowest(pairs)))
        if i > 0:
            pairs = list(zip(stages[i - 1], stage, strict=True))
            networks.append(
                network(f"s{i - 1}-s{i}", f"connects: [s{i - 1}, s{i}]", slowest(pairs))
            )
    return text + "networks:\n" + "\n".join(networks) + "\n"


def read_mixed(data: Path, place: Path, folder: Path) -> Run:
    found = json.loads(place.read_text())
    pipeline = found["pipeline_list"][0]
    stages = [[machines[0][0][0] for machines in stage] for stage in pipeline["tmp_per_stage"]]
    degree = pipeline["tmp_per_stage"][0][0][1]
    where = folder / f"mit_{place.stem}.yaml"
    where.write_text(mixed_cluster(data, stages, degree))
    written = [
        (len(layers), f"s{i}", len(stages[i]), degree)
        for i, layers in enumerate(pipeline["layers_per_stage"])
    ]
    plan = folder / f"mit_{place.stem}.json"
    plan.write_text(json.dumps(plan_of(written, found["gbs"], found["mbs"])))
    name = f"{len(written)} x {len(stages[0])} of {degree} cards, batch {found['gbs']}"
    return Run(RTX, name, RTX, where, plan, found["real"], found["max_mem"] / GIB, None)


def mixed_table(data: Path) -> Table:
    """Returns the table of OPT-350 on all sets of RTX GPUs, each layer as slow as on the slowest of
    the set."""
    cards = ["RTX-2080", "RTX-3090", "Titan-RTX"]
    table: Table = layer_table(data, "OPT-350", cards)
    own = {(t["device"], t["tensor_parallel"], t["rows"]): t["ns"] for t in table["times"]}
    for kinds in (cards[:2], cards[1:], cards[::2], cards):
        for degree, rows in sorted({key[1:] for key in own}):
            known = [own[kind, degree, rows] for kind in kinds if (kind, degree, rows) in own]
            if len(known) < len(kinds):
                continue
            slowest = {
                name: [max(times) for times in zip(*(ns[name] for ns in known), strict=True)]
                for name in known[0]
            }
            table["times"].append(
                {
                    "device": mixed_name(kinds),
                    "tensor_parallel": degree,
                    "rows": rows,
                    "ns": slowest,
                }
            )
    return table


def read_tables(data: Path) -> dict[str, Table]:
    tables = {
        "OPT-350": layer_table(data, "OPT-350", ["GH-96"]),
        "GPT-Neo-2.7": layer_table(data, "GPT-Neo-2.7", ["GH-96"], "OPT-350"),
    }
    if (data / "measured" / "mit").exists():
        tables[RTX] = mixed_table(data)
    return tables
