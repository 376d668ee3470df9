"""The processes of test_checkpoints.py: `save.py FOLDER PLAN STEPS`. Resumes from FOLDER/run if
there is a checkpoint, trains to STEPS in all, and saves in parallel with training after every step.
Rank 0 writes the losses to FOLDER/losses.json."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import train

import medley
from medley.run import job


def main(folder: Path, plan: str, steps: int) -> None:
    """Trains."""
    torch.set_num_threads(1)
    model, batch = train.make("gpt")
    graph = medley.Graph.load(folder / "gpt.graph")
    chosen = medley.plan(graph, folder / "cluster.yaml", plan=folder / plan)
    trainer = medley.Trainer(model, graph, chosen, medley.AdamW(lr=1e-3, max_norm=1.0), seed=3)
    trainer.resume(folder / "run")
    # A run restarted by torchrun dies only once.
    once = folder / "die"
    losses = []
    while trainer.steps < steps:
        losses.append(trainer.step(batch).loss)
        trainer.save(folder / "run", wait=trainer.steps % 2 == 0)
        if once.exists() and trainer.steps == 2 and os.environ["RANK"] == "1":
            once.unlink()
            os._exit(9)
    trainer.save(folder / "run", wait=False)  # ends with the script
    this = job.current()
    if this is None or this.rank == 0:
        (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
