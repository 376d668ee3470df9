"""`racer.py FOLDER STEPS [DEVICE [step]]` trains gpt as one process of a job, with the batches of a
loader. DEVICE has no memory for the state of the first other plan, or for a step under it. `own` as
DEVICE: batches have only the rows of their process. The first process writes losses and the last
strategy to FOLDER/raced.json."""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

import medley
from medley.run import devices
from medley.run.objectives import Objectives
from medley_extras import models

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
import change_faults
from exactness import double_precision

ROWS = 12


def make() -> tuple[nn.Module, Any]:
    """Returns the model and a global batch. Called in double_precision()."""
    torch.manual_seed(0)
    return models.gpt(batch=ROWS)


def dataset(batch: Any, steps: int) -> list[Any]:
    """Returns the rows of all steps."""
    rows = [{name: value[row] for name, value in batch.items()} for row in range(ROWS)]
    return [
        {name: (value + 7 * step) % 50 for name, value in row.items()}
        for step in range(steps)
        for row in rows
    ]


def fail_once(owner: Any, name: str) -> None:
    """Lets the first call of a function lack memory."""
    do = getattr(owner, name)

    def failed(*arguments: Any) -> None:
        setattr(owner, name, do)
        raise torch.OutOfMemoryError("CUDA out of memory")

    setattr(owner, name, failed)


def main(folder: Path, steps: int, lacks: str = "", place: str = "state") -> None:
    """Trains."""
    torch.set_num_threads(1)
    fault: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if lacks == os.environ["MEDLEY_DEVICE"] and place == "step":
        fault = change_faults.faulty({"state": "stepping", "raises": "CUDA out of memory"})
    elif lacks == os.environ["MEDLEY_DEVICE"]:
        fail_once(devices, "require_memory")
        fail_once(Objectives, "make_runs")  # in an elastic run
    with double_precision(), fault:
        model, batch = make()
        graph = medley.capture(model, batch)
        plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
        trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=1e-3))
        data: Any = dataset(batch, steps)
        loader: Any = medley.Loader(plan, data)
        if lacks == "own":
            loader = DataLoader(data, batch_sampler=medley.BatchSampler(plan, data))
        losses = []
        for batch in loader:
            losses.append(trainer.step(batch).loss)
            for tuner in trainer.observers:  # its search may take longer than all steps
                tuner._searches.wait(math.inf)
        last = trainer.plan.strategy
        trainer.finish()
    if trainer.is_first:
        (folder / "raced.json").write_text(json.dumps([losses, last]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
