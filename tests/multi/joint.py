"""The processes of test_joint_processes.py: `joint.py FOLDER CASE STEPS SHAPE...`. Resumes from
FOLDER/run if there is a checkpoint, trains to STEPS in all, and saves after every step. Dies in the
step whose number is in FOLDER/die. Rank 0 writes the losses and the final tensors."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import exactness
import torch
from joint_models import CASES
from test_joint import made, trainer_of


def main(folder: Path, name: str, steps: int, shapes: list[str]) -> None:
    """Trains."""
    torch.set_num_threads(1)
    with exactness.double_precision():
        trainer = trainer_of(name, shapes, local=False)
        trainer.resume(folder / "run")
        order, batches = CASES[name].order, made(CASES[name])[1]
        losses = []
        dies = int((folder / "die").read_text()) if (folder / "die").exists() else steps
        for i in range(sum(trainer.steps.values()), steps):
            if i == dies and os.environ["RANK"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
            losses.append(trainer.step(order[i % len(order)], batches[i]).loss)
            trainer.save(folder / "run", wait=i % 2 == 0)
        state = trainer.parameters() | trainer.buffers()
        trainer.save_model(folder / "model")
        trainer.finish()
        if os.environ["RANK"] == "0":
            torch.save(state, folder / "state.pt")
            (folder / "losses.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:])
