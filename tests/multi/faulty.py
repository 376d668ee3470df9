"""The processes of test_faults.py: `faulty.py FOLDER`. FOLDER has plan.json, cluster.yaml and
model.graph. The process TROUBLED executes the Python code TROUBLE before the step AT (3), with
`trainer`, `folder`, `rank` and `step` defined. There are STEPS (6) steps in all."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import medley


class Model(nn.Module):
    """The smallest trainable model."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().mean()


def make() -> tuple[Model, dict[str, Tensor]]:
    """Returns the model and a global batch."""
    return Model(), {"x": torch.ones(8, 4)}


def main(folder: Path) -> None:
    """Trains, and gets into trouble."""
    rank = int(os.environ["RANK"])
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    torch.manual_seed(0)
    model, batch = make()
    graph = medley.Graph.load(folder / "model.graph")
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    trainer = medley.Trainer(model, graph, plan, medley.SGD(lr=0.01))
    for step in range(int(os.environ.get("STEPS", "6"))):
        troubled = rank == int(os.environ.get("TROUBLED", "1"))
        if troubled and step == int(os.environ.get("AT", "3")):
            exec(os.environ.get("TROUBLE", ""))
        trainer.step(batch)
        print(f"step {step} pid {os.getpid()}", flush=True)
        if "SLOWLY" in os.environ:
            time.sleep(0.05)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
