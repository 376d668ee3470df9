"""LoRA on two heterogeneous GPUs, scaled down and emulated: the plans that fit, and their step
times.

    python benchmarks/adapters.py [--json FILE]

A Llama of twelve layers with LoRA runs on two emulated devices with the memories and speeds of a 16
GB GPU and a 24 GB GPU. Both are divided by the ratio between a model of 8 billion parameters and
this one. Every strategy of `medley compare` is judged, and those that do not fit are named.
Emulated times are the same on every host. The commands of benchmarks/results/adapters_202611.md
plan the original model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import warnings
from pathlib import Path

import peft
import torch

import medley
from medley import _core
from medley.cluster import Cluster, parse_cluster
from medley.run import job
from medley_extras.models import hf

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: old, count: 1, device: sixteen, devices_per_node: 1}
  - {name: new, count: 1, device: twenty-four, devices_per_node: 1}
networks:
  - {name: lan, connects: [old, new], bandwidth: 100 Mbit/s, latency: 30 us}
devices:
  sixteen:
    sustained: {f32: 4 Gflop/s}
    memory: 12.5 MiB
    memory_bandwidth: 2 GB/s
    launch_latency: 2 us
  twenty-four:
    sustained: {f32: 6.4 Gflop/s}
    memory: 19 MiB
    memory_bandwidth: 6 GB/s
    launch_latency: 2 us
"""
ROWS = 16
STRATEGIES = ("data-parallel-even", "data-parallel-proportional", "hap", "megatron", "harp")


@dataclasses.dataclass(frozen=True)
class Row:
    """The result of one strategy; times in seconds, memory in bytes by device."""

    strategy: str
    refused: str = ""
    predicted: float = 0.0
    emulated: float = 0.0
    peaks: dict[str, int] = dataclasses.field(default_factory=dict)
    busy: float = 0.0  # share of the step in which the devices compute, their mean

    def line(self) -> str:
        """Returns it as a row of a table."""
        if self.refused:
            return f"| {self.strategy} | does not fit: {self.refused} | | | |"
        peaks = ", ".join(f"{name} {peak / 2**20:.1f}" for name, peak in self.peaks.items())
        return (
            f"| {self.strategy} | {self.predicted * 1e3:.0f} ms | {self.emulated * 1e3:.0f} ms "
            f"| {peaks} MiB | {self.busy:.0%} |"
        )


def judge(strategy: str, cluster: Cluster) -> Row:
    """Plans, predicts and emulates."""
    torch.manual_seed(0)
    base, batch = hf.llama(
        batch=ROWS,
        tokens=64,
        num_hidden_layers=12,
        hidden_size=128,
        intermediate_size=448,
        vocab_size=1024,
    )
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model = peft.get_peft_model(base, config)
    graph = medley.capture(model, batch, name="llama with LoRA")
    try:
        plan = medley.plan(graph, cluster, strategy, global_batch=ROWS)
    except ValueError as error:
        return Row(strategy, str(error).split(": ", 1)[-1].split(",")[0])
    found = _core.simulate(_core.Program(graph.core, plan.core, cluster), cluster)
    with job.emulated():
        trainer = medley.Trainer(model, graph, plan, local=True, keep_gradients=False)
        for _ in range(2):  # the second step is like all that follow
            metrics = trainer.step(batch)
    devices = found["devices"].values()
    return Row(
        strategy,
        predicted=found["step"] * 1e-9,
        emulated=metrics.step_seconds,
        peaks=trainer.peak_bytes(),
        busy=sum(device["computes"] for device in devices) / len(devices) / found["step"],
    )


def main() -> None:
    """Prints a table. Exits with 1 if `harp` does not fit, or takes longer than any other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the rows here")
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=FutureWarning)  # raised by transformers
    cluster = parse_cluster(CLUSTER, "cluster")
    print("| strategy | predicted | emulated | memory | computes |\n|---|---|---|---|---|")
    rows = []
    for strategy in STRATEGIES:
        rows.append(judge(strategy, cluster))
        print(rows[-1].line(), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([dataclasses.asdict(row) for row in rows], indent=1))
    fitting = {row.strategy: row.emulated for row in rows if not row.refused}
    sys.exit("harp" not in fitting or fitting["harp"] > min(fitting.values()))


if __name__ == "__main__":
    main()
