"""The processes of test_elastic_scripts.py: `looper.py FOLDER FAULT`.

A usual script: it resumes from FOLDER/first if it exists, calls `fit` for three steps, then runs
its own loop up to STEPS over a Loader, and last saves a checkpoint in the background.

FAULT: `device` is killed before the `step`. Step -1 is after the resume, or at a `place` (of
LOADING) in it, or after the script; STEPS + 1 is after the end of all. `reads`: all read the
parameters last. `busy`: sleeps before the step. `lengthless`: fit receives a loader without a
length. The first process of the plan writes the losses of its own loop to FOLDER/seen.json.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from survivor import ROWS, batch_of, end, kill_in, make, optimizer

import medley
from medley import _runtime
from medley.run.elastic_session import ElasticSession

STEPS, FITTED = 6, 3
# A place in a load -> its function, and whether a process is killed after or before it.
LOADING: dict[str, tuple[Any, str, bool]] = {
    "matched": (_runtime, "match_state", True),  # before any process reads
    "read": (_runtime, "load_state", True),  # while other processes may read
    "loaded": (ElasticSession, "begin_at", False),  # after all have loaded
}
BUSY_SECONDS = 3.0


class Lengthless:
    """The first batches of a loader, without their number."""

    def __init__(self, loader: medley.Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._loader, FITTED)


def take_no_threads_at_the_end() -> None:
    """From now on the interpreter takes no new threads when it ends, as with Python 3.12."""
    start = threading.Thread.start

    def checked(thread: threading.Thread) -> None:
        if not threading.main_thread().is_alive():
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    threading.Thread.start = checked  # type: ignore[method-assign]


def main(folder: Path, fault: dict[str, Any]) -> None:
    """Trains, and applies the fault."""
    take_no_threads_at_the_end()
    torch.set_num_threads(1)
    own = os.environ.get("MEDLEY_DEVICE", "")
    is_victim = fault.get("device") == own and "MEDLEY_JOINS" not in os.environ
    if is_victim and fault["step"] > STEPS:
        atexit.register(end)  # runs after functions that are registered later
    model, example = make()
    data = []
    for step in range(STEPS):
        batch = batch_of(example, step)
        data += [{name: value[row] for name, value in batch.items()} for row in range(ROWS)]
    graph = medley.Graph.load(folder / "model.graph")
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    trainer = medley.Trainer(model, graph, plan, optimizer())
    if (folder / "first").exists():
        if is_victim and "place" in fault:
            kill_in(LOADING[fault["place"]], lambda: True)
        trainer.resume(folder / "first")
        if is_victim and fault["step"] < 0:
            end()
        assert trainer.steps == FITTED
    loader = medley.Loader(plan, data)
    if "lengthless" in fault:
        trainer.fit(Lengthless(loader), output=folder / "fitted")
    else:
        trainer.fit(loader, steps=FITTED, output=folder / "fitted")
    losses = []
    loader.set_epoch(0, FITTED)
    for step, batch in enumerate(loader, FITTED):
        if is_victim and fault["step"] == step:
            end()
        if fault.get("busy") == own and fault["step"] == step:
            time.sleep(BUSY_SECONDS)
        losses.append(trainer.step(batch).loss)
    if trainer.is_first:
        (folder / "seen.json").write_text(json.dumps(losses))
    trainer.save(folder / "saved", wait=False)
    if "reads" in fault:
        trainer.parameters()
    if is_victim and fault["step"] == STEPS:
        end()


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
