"""The script of the processes of test_elastic_loads.py: `returner.py FOLDER FAULT`. A script that
returns to older states. SCRIPT lists its acts by number. FAULT: `device` is killed before the
`act`, or at a `place` (of looper.LOADING) in it; `catches_up`: starts at the state of the others.
Each process writes the results of its acts to FOLDER/DEVICE.json, without slashes, and the first
one of the plan its parameters to FOLDER/seen.pt."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from looper import LOADING
from survivor import batch_of, end, kill_in, make, optimizer

import medley

# Goes back twice, the second time from another step, and trains with other batches then.
TRAINS = ["step", "step", "evaluate", "save", "step", "step", "evaluate", "save"]
SCRIPT = [*TRAINS, "load 2", *TRAINS[2:], "step", "load 4", *TRAINS[2:]]


def life_of(act: int) -> int:
    """Returns how many loads there are before an act."""
    return sum(each.startswith("load") for each in SCRIPT[:act])


def batch_at(example: dict[str, torch.Tensor], step: int, life: int) -> dict[str, torch.Tensor]:
    """Returns another batch for every step of every life."""
    return batch_of(example, step + 17 * life)


def run(trainer: medley.Trainer, folder: Path, before: Any = lambda act: None) -> list[float]:
    """Runs the script. Returns the losses of steps and evaluations."""
    _, example = make()
    found = []
    for act, what in enumerate(SCRIPT):
        before(act)
        batch = batch_at(example, trainer.steps, life_of(act))
        if what == "step":
            found.append(trainer.step(batch).loss)
        elif what == "evaluate":
            found.append(trainer.evaluate(batch)["loss"])
        elif what == "save":
            trainer.save(folder / f"saved-{life_of(act)}")
        else:
            step = int(what.split()[1])
            where = folder / f"saved-{life_of(act)}" / f"step-{step:08d}"
            assert trainer.load(where).step == trainer.steps == step
    return found


def main(folder: Path, fault: dict[str, Any]) -> None:
    """Trains, and applies the fault."""
    torch.set_num_threads(1)
    own = os.environ["MEDLEY_DEVICE"]
    is_victim = fault.get("device") == own and "MEDLEY_JOINS" not in os.environ

    def before(act: int) -> None:
        if not is_victim or act != fault["act"]:
            return
        if "place" not in fault:
            end()
        kill_in(LOADING[fault["place"]], lambda: True)

    graph = medley.Graph.load(folder / "model.graph")
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    trainer = medley.Trainer(make()[0], graph, plan, optimizer())
    found = run(trainer, folder, before)
    state = trainer.parameters()
    (folder / f"{own.replace('/', '')}.json").write_text(json.dumps(found))
    if own == trainer.plan.devices[0]:
        torch.save(state, folder / "seen.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
