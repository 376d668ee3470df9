"""The processes of test_unlike_types.py: `unlike_types.py FOLDER`. Each writes its results for
every plan to FOLDER/<plan>.<rank>.pt."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import torch
from torch import Tensor

import medley
from medley.cluster import parse_cluster

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
import test_compute_types as types

DEVICES = types.DEVICES[:2]  # bf16 and f16
KINDS = ("rows", "tensor", "stages")
CLUSTER = types.CLUSTER.replace(
    "  - {name: older, count: 1, device: pascal, devices_per_node: 1}\n", ""
)
CLUSTER = CLUSTER.replace(", older]", "]")
STATES = {"layers.0.*": "S(0, part)", "layers.1.weight": "S(1, part)"}


@dataclasses.dataclass
class Seen:
    """Metrics by step, the scale of the loss after each, gradients of the last, parameters."""

    losses: list[float]
    norms: list[float]
    scales: list[float]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


def train(kind: str, local: bool) -> Seen:
    """Trains four steps, the third with values that overflow f16; as threads if `local`."""
    model, batch = types.wide()
    graph = medley.capture(model, batch, autocast=torch.bfloat16)
    cut = next(name for name in graph.core.stable_names() if name.startswith("layers.1"))
    plan = types.plan_of(kind, (cut,), DEVICES, STATES)
    machines = parse_cluster(CLUSTER)
    optimizer = medley.AdamW(lr=1e-2, max_norm=0.5, loss_scale=256.0, loss_scale_steps=2)
    trainer = medley.Trainer(model, graph, plan, optimizer, local=local, cluster=machines)
    seen = Seen([], [], [], {}, {})
    for step in range(4):
        metrics = trainer.step(types.overflowing(batch) if step == 2 else batch)
        seen.losses.append(metrics.loss)
        seen.norms.append(metrics.grad_norm)
        seen.scales.append(trainer.loss_scale)
    seen.gradients, seen.parameters = trainer.gradients(), trainer.parameters()
    trainer.finish()
    return seen


def main(folder: Path) -> None:
    """Trains under each type of plan."""
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    for kind in KINDS:
        torch.save(vars(train(kind, False)), folder / f"{kind}.{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
