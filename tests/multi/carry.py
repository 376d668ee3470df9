"""The processes of test_carry_processes.py: `carry.py FOLDER STEPS`. Resumes from FOLDER/run if
there is a checkpoint, trains to STEPS in all, and saves after every step except in an elastic run.
The process of rank 1 dies in the step whose number is in FOLDER/die. Each process writes its
results to FOLDER/<rank>.pt."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import medley

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
import exactness
import test_carry

RESET = 4  # before this step


def main(folder: Path, steps: int) -> None:
    """Trains."""
    torch.set_num_threads(1)
    rank = os.environ["RANK"]
    with exactness.double_precision():
        torch.manual_seed(0)
        model = test_carry.Reader()
        graph = medley.Graph.load(folder / "reader.graph", carry=test_carry.CARRY)
        plan = medley.plan(graph, exactness.cluster(7), plan=folder / "plan.json")
        optimizer = medley.AdamW(lr=test_carry.LEARNING_RATE, weight_decay=0.01)
        trainer = medley.Trainer(model, graph, plan, optimizer)
        if not trainer.is_elastic:
            trainer.resume(folder / "run")
        batches = test_carry.pieces(1, steps)
        losses, logits, evaluated = [], [], []
        for step in range(trainer.steps, steps):
            die = folder / "die"
            if rank == "1" and die.exists() and step == int(die.read_text()):
                die.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
            if step == RESET:
                trainer.reset_carried()
            found = trainer.step(batches[step])
            losses.append(found.loss)
            logits.append(found.outputs["logits"])
            evaluated.append(trainer.evaluate(test_carry.pieces(2, 2))["loss"])
            if not trainer.is_elastic:
                trainer.save(folder / "run", wait=step % 2 == 0)
        carried = trainer.carried()
        trainer.finish()
        seen = {"losses": losses, "logits": logits, "evaluated": evaluated, "carried": carried}
        torch.save(seen, folder / f"{rank}.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
