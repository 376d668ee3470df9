"""The processes of test_elastic_joint.py: `joint_survivor.py FOLDER CASE STEPS [FAULT]`.

FOLDER has cluster.yaml, and for each objective of a case OBJECTIVE.graph and its plan
OBJECTIVE.json. FAULT is JSON as in survivor.py: `device`, `step`, `call` and `exchange`, `second`
and `during`, `save`, `reads`, `catches_up`, `signal`. Further fields:
- `in`: a method of SharedState or Evaluation in the step; the process is killed before it, or
  `behind` it.
- `evaluates`: the objective evaluated after each step. `resumes`: from FOLDER/saved.
- `kills`: faults of several devices.

The first process at the end writes its results to FOLDER/seen.pt.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

import medley
from medley import _runtime
from medley.evaluation import Evaluation
from medley.shared_state import SharedState

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
import survivor
from exactness import double_precision
from joint_models import CASES
from test_joint import made


def trainer_of(folder: Path, name: str) -> medley.JointTrainer:
    """Returns the trainer of the files in a folder."""
    objectives = {
        each: medley.Objective(
            medley.Graph.load(folder / f"{each}.graph", loss.method),
            folder / f"{each}.json",
            loss.optimizer,
        )
        for each, loss in CASES[name].losses.items()
    }
    return medley.JointTrainer(made(CASES[name])[0], objectives, cluster=folder / "cluster.yaml")


def main(folder: Path, name: str, steps: int, fault: dict[str, Any]) -> None:
    """Trains, and applies the fault."""
    torch.set_num_threads(1)
    own = os.environ["MEDLEY_DEVICE"]
    mine = [each for each in fault.get("kills", []) if each["device"] == own]
    fault = {**fault, **(mine[0] if mine else {})}
    trouble = survivor.Trouble(fault, own)
    is_victim = own == fault.get("device") and not trouble.joins
    if is_victim and "call" in fault:
        _runtime.Run = survivor.with_option(  # type: ignore[misc,assignment]
            _runtime.Run, "on_step", trouble
        )
    if fault.get("second") == own:
        survivor.kill_during(fault["during"])
    if is_victim and "in" in fault:
        owner = next(each for each in (SharedState, Evaluation) if hasattr(each, fault["in"]))
        place = owner, fault["in"], bool(fault.get("behind"))
        survivor.kill_in(place, lambda: trouble.step == fault["step"])
    if is_victim and "saving" in fault:
        survivor.kill_in(survivor.SAVING[fault["saving"]], lambda: trouble.step >= fault["step"])
    case = CASES[name]
    batches = made(case)[1]
    trainer = trainer_of(folder, name)
    for each in trainer._parts.values():
        each.first_step.leave_out()  # capture has checked the graph
    if fault.get("resumes"):
        trainer.resume(folder / "saved")
    if fault.get("catches_up"):
        trainer.catch_up()
    first = sum(trainer.steps.values())
    losses, found, seconds = [], [], []
    for step in range(first, steps):
        trouble.step = step
        is_now = is_victim and step == fault["step"]
        if is_now and not {"call", "in", "saving"} & fault.keys():
            survivor.end(fault.get("signal", signal.SIGKILL))
        begun = time.monotonic()
        losses.append(trainer.step(case.order[step % len(case.order)], batches[step]).loss)
        seconds.append(time.monotonic() - begun)
        if "evaluates" in fault:
            found.append(trainer.evaluate(fault["evaluates"], batches[-1])["loss"])
        if "save" in fault and (step + 1) % fault["save"] == 0:
            trainer.save(folder / "saved", wait=step % 4 != 1)
        if "reads" in fault:
            trainer.parameters()
        print(f"step {step} loss {losses[-1]!r}", flush=True)
    state = trainer.parameters() | trainer.buffers()
    devices = next(iter(trainer.engines.values())).plan.devices
    trainer.finish()
    if own == devices[0]:
        seen = {"first": first, "losses": losses, "evaluated": found, "state": state}
        torch.save({**seen, "steps": trainer.steps, "seconds": seconds}, folder / "seen.pt")


if __name__ == "__main__":
    with double_precision():
        main(
            Path(sys.argv[1]),
            sys.argv[2],
            int(sys.argv[3]),
            json.loads(sys.argv[4]) if len(sys.argv) > 4 else {"step": -1},
        )
