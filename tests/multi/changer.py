"""`changer.py FOLDER MODEL STEPS` trains as one process of a job under several plans in turn, one
step each, with an evaluation and a checkpoint. Rank 0 writes the curve to FOLDER/curve.pt."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import medley

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
import exactness
from zoo import ZOO

DEVICES = 3


def plans_of(graph: medley.Graph) -> list[str]:
    """Returns three plans of the same devices in several orders."""
    devices = [f"a/{number}/0" for number in range(DEVICES)]
    found: list[str] = []
    for seed in range(100):
        plan = exactness.random_plan(graph, seed, exactness.ROWS, DEVICES)
        if sorted(medley.Plan(plan).devices) == devices and len(found) < 3:
            found.append(plan)
    return found


def main(folder: Path, name: str, steps: int) -> None:
    """Trains, and saves after half of the steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], exactness.ROWS)
        plans = [medley.Plan(plan) for plan in plans_of(graph)]
        machines = exactness.cluster(4)
        optimizer = medley.AdamW(lr=1e-3, weight_decay=0.01)
        trainer = medley.Trainer(model, graph, plans[0], optimizer, cluster=machines)
        losses = []
        for step in range(steps):
            if step:
                trainer.change_plan(plans[step % len(plans)])
            losses.append(trainer.step(batch).loss)
            if step == steps // 2:
                evaluated = trainer.evaluate(batch)["loss"]
                trainer.save(folder / "checkpoint", wait=False)
        curve = exactness.Curve(losses, trainer.gradients(), trainer.parameters())
        trainer.finish()
    if torch.distributed.get_rank() == 0:
        torch.save({**vars(curve), "evaluated": evaluated}, folder / "curve.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
