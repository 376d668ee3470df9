"""The script of the processes of test_elastic_predictions.py: `predictor.py FOLDER FAULT`. Trains a
model that returns rows, and predicts after every step. FAULT: `device` is killed before the `step`,
or before the prediction after it if it `predicts`. Each process writes its predictions to
FOLDER/DEVICE.pt, without slashes, and the reason for missing rows."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from survivor import end
from torch import Tensor, nn

import medley
from medley.run import journal

STEPS, ROWS = 5, 6


class Scored(nn.Module):
    """Returns the loss, a scalar and rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4, dtype=torch.float64)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """Returns them."""
        scores = self.layer(x)
        return {"loss": scores.pow(2).mean(), "most": scores.mean(), "scores": scores}


def made() -> tuple[nn.Module, list[dict[str, Tensor]]]:
    """Returns the model and a batch for each step."""
    torch.manual_seed(0)
    model = Scored()
    return model, [{"x": torch.randn(ROWS, 3, dtype=torch.float64)} for _ in range(STEPS)]


def main(folder: Path, fault: dict[str, Any]) -> None:
    """Trains and predicts, and applies the fault."""
    torch.set_num_threads(1)
    own = os.environ["MEDLEY_DEVICE"]
    is_victim = fault.get("device") == own and "MEDLEY_JOINS" not in os.environ
    if "most" in fault:
        journal.MOST_BYTES[journal.Kind.PREDICTION] = fault["most"]
    model, batches = made()
    graph = medley.Graph.load(folder / "model.graph")
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=1e-2))
    found, lacks = [], []
    for step, batch in enumerate(batches):
        if is_victim and step == fault["step"] and "predicts" not in fault:
            end()
        metrics = trainer.step(batch)
        assert "most" in metrics.outputs
        try:
            assert metrics.outputs["scores"].shape == (ROWS, 4)
        except KeyError as error:
            lacks.append((step, str(error)))
        if is_victim and step == fault["step"]:
            end()
        found.append(dict(trainer.predict(batches[-1])))
    torch.save({"found": found, "lacks": lacks}, folder / f"{own.replace('/', '')}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
