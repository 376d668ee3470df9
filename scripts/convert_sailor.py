"""Converts the measurements published with Sailor (SOSP'25, MIT licence, ETH Zurich) into layer
tables and clusters of Medley (docs/formats/layers.md, docs/formats/cluster.md).

    convert_sailor.py DATA table OPT-350 --devices A100-40,GH-96 -o table.json
    convert_sailor.py DATA table GPT-Neo-2.7 --devices GH-96 --ops-like OPT-350 -o table.json
    convert_sailor.py DATA cluster fast=A100-40:4 slow=V100-16:8 -o cluster.yaml

DATA has `profiles_layer`, `llm_info.json`, `network` and, for --ops-like, `aceso_op_profiles`.

--ops-like is for GPT-Neo-2.7 on GH-96, whose published layer table is a copy of that of OPT-350.
The time of its blocks is that of a block's ops in `aceso_op_profiles`, times a factor. The factor
is the ratio of layer time to op time of a block of the other model, separately for forward and
backward. The embedding is that of the other model by bytes of its output, updates by parameters,
and the head is its ops, with the logits.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
from pathlib import Path
from typing import Any

KINDS = {  # names of our catalogue
    "A100-40": "A100-40GB",
    "A100-80": "A100-80GB",
    "GH-96": "GH200-96GB",
    "V100-16": "V100-16GB",
}
SOURCE = "Sailor (SOSP'25), MIT licence, ETH Zurich"
DEVICES_PER_NODE = 4
MESSAGE_SIZES_MIB = [2**n for n in range(11)]
ZONE = "us-central1-a"
# Embedding and head are one matrix with a copy in each (Megatron's default). The published table of
# GPT-Neo's head lacks it.
TIED = ("GPT-Neo-2.7", "OPT-30", "OPT-350")
OPS_OF_NO_BLOCK = ("encoder-embedding", "final-layernorm", "gpt-post-process")

Times = dict[
    int, dict[int, list[list[float]]]
]  # [degree][rows][layer]: forward, backward, update, s


def read_times(data: Path, model: str, device: str) -> Times:
    profile = json.loads((data / "profiles_layer" / model / device / "profile.json").read_text())
    times: Times = {}
    for rows, by_degree in profile.items():
        for degree, layers in by_degree.items():
            in_order = [layers[key] for key in sorted(layers, key=int)]
            times.setdefault(int(degree), {})[int(rows)] = in_order
    return times


def read_info(data: Path, model: str) -> dict[int, list[dict[str, int]]]:
    info = json.loads((data / "llm_info.json").read_text())[model]
    return {int(d): [layers[key] for key in sorted(layers, key=int)] for d, layers in info.items()}


def growing(by_rows: dict[int, list[list[float]]]) -> dict[int, list[list[float]]]:
    """Fewer rows take no longer than more."""
    result: dict[int, list[list[float]]] = {}
    least: list[list[float]] = []
    for rows in sorted(by_rows, reverse=True):
        layers = by_rows[rows]
        least = [
            [min(now[0], then[0]), min(now[1], then[1]), now[2]]
            for now, then in zip(layers, least or layers, strict=True)
        ]
        result[rows] = least
    return result


def read_ops(data: Path, model: str, device: str, degree: int, rows: int) -> dict[str, Any]:
    folder = data / "aceso_op_profiles" / device / "profiled-data-fp32"
    with (folder / f"{model}_mbs{rows}_tp{degree}_algo0.csv").open() as file:
        return {
            row["op_name"]: [1e-6 * float(row[f"{way}-compute"]) for way in ("forward", "backward")]
            for row in csv.DictReader(file)
        }


def sum_ops(ops: dict[str, Any], names: list[str]) -> list[float]:
    return [sum(ops[name][way] for name in names) for way in (0, 1)]


def times_from_ops(data: Path, model: str, other: str, device: str) -> Times:
    info, other_info = read_info(data, model), read_info(data, other)
    times: Times = {}
    for degree, by_rows in read_times(data, other, device).items():
        mine, others = info[degree], other_info[degree]
        for rows, layers in growing(by_rows).items():
            try:
                ops = read_ops(data, model, device, degree, rows)
                other_ops = read_ops(data, other, device, degree, rows)
            except FileNotFoundError:
                continue
            in_block = [name for name in ops if name not in OPS_OF_NO_BLOCK]
            here, there = sum_ops(ops, in_block), sum_ops(other_ops, in_block)
            like = layers[2]  # a block, not the first
            size = mine[0]["act_output_bytes"] / others[0]["act_output_bytes"]
            update = like[2] * mine[2]["params_bytes"] / others[2]["params_bytes"]
            block = [like[0] * here[0] / there[0], like[1] * here[1] / there[1], update]
            embedding = [layers[0][0] * size, layers[0][1] * size, update]
            head = [*sum_ops(ops, ["final-layernorm", "gpt-post-process"]), update]
            blocks = [block] * (len(mine) - 2)
            times.setdefault(degree, {})[rows] = [embedding, *blocks, head]
    return times


def name_kinds(all_times: dict[str, Times], info: dict[int, list[dict[str, int]]]) -> list[str]:
    """Layers that are equal in everything have one name."""
    count = len(next(iter(info.values())))
    names: list[str] = []
    known: dict[str, str] = {}
    for layer in range(count):
        about = repr(
            [by_rows[rows][layer] for times in all_times.values() for by_rows in times.values()
             for rows in by_rows]
        ) + repr([layers[layer] for layers in info.values()])  # fmt: skip
        if about not in known:
            what = "embedding" if layer == 0 else "head" if layer == count - 1 else "block"
            known[about] = what if what not in known.values() else f"{what}-{layer}"
        names.append(known[about])
    return names


def layer_bytes(layers: list[dict[str, int]], layer: int, tied: bool) -> dict[str, int]:
    parameters = layers[layer]["params_bytes"]
    found = {
        "parameters": parameters,
        "saved": layers[layer]["act_mem_bytes"],
        "output": layers[layer]["act_output_bytes"],
    }
    if tied and layer in (0, len(layers) - 1):
        # The embedding without the positions, which are as large as its output.
        matrix = layers[0]["params_bytes"] - layers[0]["act_output_bytes"]
        found["parameters"] += 0 if parameters >= matrix else matrix
        found["tied"] = matrix
    return found


def layer_table(
    data: Path,
    model: str,
    devices: list[str],
    ops_like: str | None = None,
    tied: tuple[str, ...] = TIED,
) -> dict[str, Any]:
    info = read_info(data, model)
    all_times = {
        device: times_from_ops(data, model, ops_like, device)
        if ops_like
        else read_times(data, model, device)
        for device in devices
    }
    for device, times in all_times.items():
        for degree in list(times):
            if degree not in info:
                del times[degree]  # times without bytes
            elif any(len(layers) != len(info[degree]) for layers in times[degree].values()):
                sys.exit(f"{model} on {device}: layers of another model: see --ops-like")
    names = name_kinds(all_times, info)
    first = {name: names.index(name) for name in names}
    degrees = sorted({degree for times in all_times.values() for degree in times})
    ops_source = f", from ops and the layers of {ops_like}" if ops_like else ""
    return {
        "format": "medley-layers",
        "version": 1,
        "model": model,
        "source": f"{SOURCE}: {', '.join(devices)}{ops_source}",
        "layers": names,
        "bytes": [
            {
                "tensor_parallel": degree,
                "layers": {
                    name: layer_bytes(info[degree], layer, model in tied)
                    for name, layer in first.items()
                },
            }
            for degree in degrees
        ],
        "times": [
            {
                "device": KINDS.get(device, device),
                "tensor_parallel": degree,
                "rows": rows,
                "ns": {
                    name: [round(1e9 * s) for s in times[degree][rows][layer]]
                    for name, layer in first.items()
                },
            }
            for device, times in all_times.items()
            for degree in sorted(times)
            for rows in sorted(times[degree])
        ],
    }


def print_table(table: dict[str, Any]) -> str:
    """One entry in a line."""
    lines = []
    for key, value in table.items():
        if key in ("bytes", "times"):
            entries = ",\n    ".join(json.dumps(entry) for entry in value)
            lines.append(f'  "{key}": [\n    {entries}\n  ]')
        else:
            lines.append(f'  "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def curve(devices: int, fitted: Any) -> dict[str, Any]:
    """Returns GB/s = a x^2 + b x + c at x = log2(MiB), at most max bytes/s; never falling."""
    (a, b, c), most = fitted
    points = []
    rate = 0.0
    for size in MESSAGE_SIZES_MIB:
        x = math.log2(size)
        rate = max(rate, min(1e9 * (a * x * x + b * x + c), most))
        points.append(f"[{size} MiB, {rate / 1e9:.4g} GB/s]")
    return {"devices": devices, "points": points, "most": rate}


def network(name: str, where: str, curves: list[dict[str, Any]]) -> str:
    lines = [
        f"  - name: {name}",
        f"    {where}",
        f"    bandwidth: {curves[-1]['most'] / 1e9:.4g} GB/s",
        "    latency: 0 us  # in the curves",
        "    curves:",
    ]
    for each in curves:
        points = ", ".join(each["points"])
        lines.append(f"      - {{devices: {each['devices']}, points: [{points}]}}")
    return "\n".join(lines)


def cluster(data: Path, pools: list[tuple[str, str, int]]) -> str:
    """Returns a cluster of pools of (name, type, nodes)."""
    same = json.loads((data / "network" / "network_coeffs_all_homo.json").read_text())
    unlike = json.loads((data / "network" / "multizone_bandwidths_het.json").read_text())[ZONE]
    together = [n for n in (1, 2, 4) if n <= DEVICES_PER_NODE]
    networks = []
    for name, kind, nodes in pools:
        inside = [curve(1, same["intra"][kind]["2"])]
        networks.append(network(f"{name}-node", f"inside: node\n    pools: [{name}]", inside))
        if nodes > 1:
            between = [curve(n, same["inter"][kind][str(n)]) for n in together]
            networks.append(network(f"{name}-lan", f"connects: [{name}]", between))
    for i, (name, kind, _) in enumerate(pools):
        for other, other_kind, _ in pools[i + 1 :]:
            fitted = [unlike[kind][str(n)][ZONE][other_kind][str(n)] for n in together]
            curves = [curve(n, each) for n, each in zip(together, fitted, strict=True)]
            networks.append(network(f"{name}-{other}", f"connects: [{name}, {other}]", curves))
    nodes_text = "\n".join(
        f"  - {{name: {name}, count: {nodes}, device: {KINDS.get(kind, kind)}, "
        f"devices_per_node: {DEVICES_PER_NODE}}}"
        for name, kind, nodes in pools
    )
    return (
        f"# {SOURCE}: network/*.json; between unlike kinds modelled by its authors.\n"
        f"format: medley-cluster\nversion: 1\nnodes:\n{nodes_text}\nnetworks:\n"
        + "\n".join(networks)
        + "\n"
    )


def parse_pool(text: str) -> tuple[str, str, int]:
    name, _, rest = text.partition("=")
    kind, _, nodes = rest.partition(":")
    if not name or not kind or not nodes.isdigit() or int(nodes) < 1:
        raise argparse.ArgumentTypeError(f"found {text}, expected name=KIND:NODES")
    return name, kind, int(nodes)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("data", type=Path)
    verbs = parser.add_subparsers(dest="verb", required=True)
    of_table = verbs.add_parser("table")
    of_table.add_argument("model")
    of_table.add_argument("--devices", required=True)
    of_table.add_argument("--ops-like", metavar="MODEL")
    of_cluster = verbs.add_parser("cluster")
    of_cluster.add_argument("pools", type=parse_pool, nargs="+")
    for verb in (of_table, of_cluster):
        verb.add_argument("-o", "--output", type=Path, required=True)
    options = parser.parse_args()
    try:
        if options.verb == "table":
            devices = options.devices.split(",")
            text = print_table(layer_table(options.data, options.model, devices, options.ops_like))
        else:
            text = cluster(options.data, options.pools)
    except (FileNotFoundError, KeyError) as error:
        sys.exit(f"{options.data}: found no {error}, expected it as published with Sailor")
    options.output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
