"""The script of the jobs of test_deploy.py: `deployed.py FOLDER STEPS [PAUSE]`.

FOLDER has plan.json, cluster.yaml and model.graph. The process that is first at the end writes
losses and parameters to FOLDER/seen.pt. Each process appends its rank, its number on the node and
its device to FOLDER/places. FOLDER/trains is there after the first step. PAUSE are seconds before
each step.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import medley
from medley_extras import models

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
from exactness import double_precision

ROWS = 8


def make() -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a model in fp64 and a global batch, the same everywhere."""
    torch.manual_seed(0)
    with double_precision():
        return models.gpt(batch=ROWS)


def train(folder: Path, steps: int, pause: float = 0.0, local: bool = False) -> dict[str, Any]:
    """Returns the losses and parameters of a run; {} in processes that are not the first."""
    torch.set_num_threads(1)
    model, batch = make()
    graph = medley.Graph.load(folder / "model.graph")
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=1e-3), local=local)
    losses = []
    for _ in range(steps):
        time.sleep(pause)
        losses.append(trainer.step(batch).loss)
        (folder / "trains").touch()
    state = trainer.parameters()
    return {"losses": losses, "state": state} if trainer.is_first else {}


def main(folder: Path, steps: int, pause: float) -> None:
    names = ("RANK", "LOCAL_RANK", "MEDLEY_DEVICE")
    with (folder / "places").open("a") as file:
        file.write(" ".join(os.environ[name] for name in names) + "\n")
    if seen := train(folder, steps, pause):
        torch.save(seen, folder / "seen.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float([*sys.argv, "0"][3]))
