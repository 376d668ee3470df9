"""The processes of test_loop.py: `loop.py FOLDER PLAN [STEPS [function]]`.

Trains with `Trainer.fit` on rows of different lengths that each process reads itself, evaluates,
and runs two steps on whole batches. Rank 0 writes its results to FOLDER/seen.json and the model to
FOLDER/model.

With STEPS its rows are a stream and it does not evaluate. Under `medley launch --elastic` the first
process is killed at the report of the last of these steps. With negative STEPS its rows are no
stream, it evaluates, and it is killed at the request of a row to evaluate after these steps. With
`function` it evaluates by a function.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import train
from torch import Tensor

import medley

EPOCHS, ROWS, HELD_OUT = 2, 19, 11


def rows_of(count: int, seed: int, longest: int, vocabulary: int) -> list[Tensor]:
    """Returns rows of tokens of different lengths."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, longest + 1, (count,), generator=draw).tolist()
    return [torch.randint(0, vocabulary, (length,), generator=draw) for length in lengths]


def collate(rows: list[Tensor]) -> dict[str, Tensor]:
    """Returns a batch as long as its longest row. The labels of other rows end early."""
    pad = torch.nn.utils.rnn.pad_sequence
    labels = [torch.cat([row[1:], row.new_full((1,), -100)]) for row in rows]
    return {
        "input_ids": pad(rows, batch_first=True),
        "labels": pad(labels, batch_first=True, padding_value=-100),
    }


class Stream:
    """Rows without a length."""

    def __init__(self, rows: list[Tensor]) -> None:
        self._rows = rows

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._rows)


class Killed(medley.Callback):
    """Kills the first process after a step. Another process is then the first."""

    def __init__(self, folder: Path, steps: int) -> None:
        self._mark = folder / "killed"
        self._steps = steps

    def step(self, metrics: medley.Metrics) -> None:
        if metrics.step + 1 == self._steps:
            self.end()

    def end(self) -> None:
        """Ends this process, if none was before."""
        if not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


class Rows(list[Tensor]):
    """The rows of a data set. The request of one may kill the process."""

    def __init__(self, rows: list[Tensor], asked: Callable[[], None]) -> None:
        super().__init__(rows)
        self._asked = asked

    def __getitem__(self, index: Any) -> Any:
        self._asked()
        return super().__getitem__(index)


class Evaluated(medley.Callback):
    """Stores the events that it receives."""

    def __init__(self) -> None:
        self.reported: list[tuple[int, float]] = []

    def evaluated(self, steps: int, found: Mapping[str, float]) -> None:
        self.reported.append((steps, next(iter(found.values()))))


def is_now(trainer: medley.Trainer, steps: int) -> bool:
    """Returns whether this process is the first, and all evaluate after this many steps."""
    return trainer.is_first and trainer.steps == steps


def main(folder: Path, plan: str, killed: int, by_function: bool) -> None:
    """Trains."""
    torch.set_num_threads(1)
    model, batch = train.make("gpt")
    longest, vocabulary = batch["input_ids"].shape[1], model.tokens.num_embeddings
    graph = medley.Graph.load(folder / "gpt.graph")
    chosen = medley.plan(graph, folder / "cluster.yaml", plan=folder / plan)
    trainer = medley.Trainer(
        model,
        graph,
        chosen,
        medley.AdamW(lr=1e-3),
        seed=3,
        lengths=medley.Lengths(buckets=[longest // 2, longest]),
    )
    data, held_out = (rows_of(n, n, longest, vocabulary) for n in (ROWS, HELD_OUT))
    evaluated = Evaluated()
    callbacks: list[medley.Callback] = [medley.Progress(every=2), evaluated]
    if killed and trainer.is_elastic:
        end = Killed(folder, killed)
        callbacks.append(end)
        if killed < 0:
            held_out = Rows(held_out, lambda: end.end() if is_now(trainer, -killed) else None)
    evaluate: Any = medley.Loader(chosen, held_out, collate=collate)
    if by_function:
        loader = evaluate

        def evaluate() -> dict[str, float]:
            return {f"eval_{name}": value for name, value in trainer.evaluate(loader).items()}

    trained: medley.Loader | medley.StreamLoader
    if killed > 0:
        trained = medley.StreamLoader(chosen, Stream(data), collate)
    else:
        trained = medley.Loader(chosen, data, shuffle=True, seed=5, collate=collate)
    fitted = trainer.fit(
        trained,
        epochs=EPOCHS,
        steps=EPOCHS * -(-ROWS // train.ROWS) if killed > 0 else None,
        evaluate=None if killed > 0 else evaluate,
        evaluate_every=0 if killed > 0 else 2,
        output=folder / "run",
        callbacks=callbacks,
    )
    seen: dict[str, Any] = {**dataclasses.asdict(fitted), "reported": evaluated.reported}
    # An elastic run takes short ones from a Loader only.
    short = [] if killed else [{name: value[:3] for name, value in batch.items()}]
    seen["steps of whole batches"] = [trainer.step(each).loss for each in (batch, *short)]
    if trainer.is_first:
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        seen["lines"] = [json.loads(line) for line in lines]
        (folder / "seen.json").write_text(json.dumps(seen))
    trainer.save_model(folder / "model")


if __name__ == "__main__":
    arguments = [*sys.argv[3:], "0"]
    main(Path(sys.argv[1]), sys.argv[2], int(arguments[0]), "function" in arguments)
