"""The processes of test_elastic_evaluation.py: `evaluator.py FOLDER STEPS FAULT`.

Trains as survivor.py does and evaluates after every step, on batches that can be read only once.
The last one has fewer rows. Fields of FAULT:
- `device` is killed, or receives `signal`, in an `evaluation` (counted from 0): at a `call` of the
  forward phase of a `batch`, or without `call` at the request of that batch.
- `second` is killed there too, in the next generation, or at the request of the next batch.
- `whom`: as in survivor.py.
- `loses`: process that ends the generation when the others know the result already.
- `generations`: the device ends this many generations, one per evaluation, without a loss.
- `own_rows`: each process passes its own rows. `pause`: seconds before each batch.

Each process writes its results to FOLDER/DEVICE.json, without slashes, and the first one of the
plan its parameters. The model in eval mode is read from FOLDER/forward.graph if it exists.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from survivor import ROWS, batch_of, end, make, optimizer, resources, whole, with_option
from torch import Tensor

import medley
from medley import _runtime
from medley.run import elastic
from medley.run.evaluations import Evaluations

BATCHES = 4
LAST_ROWS = 4


def held_out(example: dict[str, Tensor], evaluation: int, number: int) -> dict[str, Tensor]:
    """Returns a batch of an evaluation."""
    batch = batch_of(example, 50 + BATCHES * evaluation + number)
    last = number == BATCHES - 1
    return {name: value[:LAST_ROWS] if last else value for name, value in batch.items()}


@dataclasses.dataclass
class Captured:
    """A model's capture by another process."""

    text: str
    constants: dict[str, Tensor]


class Fault:
    """The fault of this process."""

    def __init__(self, fault: dict[str, Any], own: str) -> None:
        joins = "MEDLEY_JOINS" in os.environ
        self.asked = fault
        self.is_victim = own in (fault.get("device"), fault.get("second")) and not joins
        self.generation = int(own == fault.get("second"))
        self.trainer: medley.Trainer | None = None
        self.place = (-1, -1)
        # generations in which the batches of each evaluation were requested
        self.generations: list[list[int]] = []

    def is_now(self) -> bool:
        """Returns whether all processes are at the place of the fault."""
        batch = self.asked.get("batch", 0) + (self.generation if "call" not in self.asked else 0)
        wanted = (self.asked.get("evaluation"), batch)
        return (
            self.place == wanted
            and self.is_elastic
            and self.generation == elastic.member().generation
        )

    @property
    def is_elastic(self) -> bool:
        """Returns whether the trainer exists and continues after losses."""
        return self.trainer is not None and self.trainer.is_elastic

    def __call__(self, call: str, exchange: str) -> None:
        if self.is_now() and self.asked.get("call", "?") in call:
            self.end()

    def end(self) -> None:
        """Ends this process."""
        end(self.asked.get("signal", signal.SIGKILL), self.asked.get("whom", ""))

    def batches(self, example: dict[str, Tensor], evaluation: int) -> Iterator[dict[str, Tensor]]:
        """Yields the batches of an evaluation."""
        self.generations.append([])
        for number in range(BATCHES):
            self.place = (evaluation, number)
            if self.is_elastic:
                self.generations[-1].append(elastic.member().generation)
            if self.is_victim and self.is_now() and "call" not in self.asked:
                self.end()
            if self.is_victim and evaluation < self.asked.get("generations", 0) and number == 1:
                elastic.member().fail("a test ends the generation")
            time.sleep(self.asked.get("pause", 0))
            yield held_out(example, evaluation, number)
        self.place = (-1, -1)


def lose(evaluation: int) -> None:
    """Lets this process fail when it has made an evaluation."""
    make_means = Evaluations._means
    count = itertools.count()

    def failing(self: Evaluations, *arguments: Any) -> Any:
        made = make_means(self, *arguments)
        if next(count) == evaluation and elastic.member().generation == 0:
            time.sleep(0.2)  # until the others have continued
            raise OSError("a test ends the generation")
        return made

    Evaluations._means = failing  # type: ignore[method-assign]


def main(folder: Path, steps: int, asked: dict[str, Any]) -> None:
    """Trains and evaluates, and applies the fault."""
    torch.set_num_threads(1)
    own = os.environ.get("MEDLEY_DEVICE", "")
    fault = Fault(asked, own)
    if asked.get("loses") == own:
        lose(asked["evaluation"])
    if (folder / "forward.graph").exists():
        captured = Captured((folder / "forward.graph").read_text(), {})
        medley.graph._captured_as = lambda *_, **__: captured  # type: ignore[assignment,return-value]
    if fault.is_victim:
        _runtime.Run = with_option(_runtime.Run, "on_step", fault)  # type: ignore[misc,assignment]
    model, example = make()
    graph = medley.Graph.load(folder / "model.graph")
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    trainer = fault.trainer = medley.Trainer(model, graph, plan, optimizer())
    losses, found, had = [], [], []
    for step in range(steps):
        losses.append(trainer.step(batch_of(example, step)).loss)
        batches = fault.batches(example, step)
        if "own_rows" in asked:
            (rows,) = medley.BatchSampler(plan, range(ROWS))
            batches = ({n: v[rows] for n, v in batch.items()} for batch in batches)
        found.append(trainer.evaluate(batches)["loss"])
        had.append(resources())
    state = whole(trainer) if trainer.ranks is not None else {}
    seen = {"losses": losses, "evaluated": found, "had": had, "steps": trainer.steps}
    seen["generations"] = fault.generations
    (folder / f"{own.replace('/', '')}.json").write_text(json.dumps(seen))
    if own == trainer.plan.devices[0]:
        torch.save({**seen, "state": state}, folder / "seen.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
