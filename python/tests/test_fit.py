"""The loop around steps: epochs, evaluation, saving, stopping and resuming."""

from __future__ import annotations

import json
import os
import signal
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from test_evaluation import PLANS, Classifier
from test_fewer_rows import ROWS, trainer_of
from torch import Tensor

import medley
from medley.callbacks import Callback, Progress, holds_up
from medley.metrics import Metrics
from medley.metrics_file import MetricsFile
from medley_extras.trackers import TensorBoard, WandB


class Noted(Callback):
    """Records the events that it receives."""

    def __init__(self, stop_after: int = 0) -> None:
        self.events: list[Any] = []
        self._stop_after = stop_after

    def begin(self, trainer: medley.Trainer, steps: int | None) -> None:
        self.events.append(("begin", steps))

    def step(self, metrics: Metrics) -> None:
        self.events.append(metrics.step)
        if metrics.step + 1 == self._stop_after:
            os.kill(os.getpid(), signal.SIGTERM)

    def evaluated(self, steps: int, found: Mapping[str, float]) -> None:
        self.events.append((steps, sorted(found)))

    def end(self) -> None:
        self.events.append("end")


def rows(count: int) -> list[dict[str, Tensor]]:
    """Returns a data set."""
    torch.manual_seed(1)
    return [{"x": torch.randn(8), "labels": torch.randint(0, 5, ())} for _ in range(count)]


def trainer() -> medley.Trainer:
    """Returns a trainer on two threads, the same each time."""
    torch.manual_seed(0)
    model = Classifier()
    batch = torch.utils.data.default_collate(rows(ROWS))
    return trainer_of(model, medley.capture(model, batch), PLANS["rows"])


DATA, HELD_OUT = rows(15), rows(8)


def loader_of(made: medley.Trainer) -> medley.Loader:
    """Returns a loader of three batches, the last with three rows."""
    return medley.Loader(made.plan, DATA, shuffle=True, seed=3)


def state(made: medley.Trainer) -> dict[str, Tensor]:
    """Returns the state of training."""
    return {**made.parameters(), **made.buffers()}


def test_steps_are_reported_once_and_saved(tmp_path: Path) -> None:
    made, noted = trainer(), Noted()
    fitted = made.fit(
        loader_of(made),
        epochs=2,
        evaluate=medley.Loader(made.plan, HELD_OUT),
        evaluate_every=4,
        save_every=2,
        output=tmp_path,
        callbacks=[noted],
    )
    found = ["accuracy", "loss", "right"]
    assert noted.events == [("begin", 6), 0, 1, 2, 3, (4, found), 4, 5, (6, found), "end"]
    assert (fitted.steps, fitted.interrupted) == (6, False)
    assert fitted.evaluated == made.evaluate(medley.Loader(made.plan, HELD_OUT))
    assert sorted(each.name for each in tmp_path.iterdir() if each.is_dir()) == [
        "step-00000002",
        "step-00000004",
        "step-00000006",
    ]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "eval_loss" in line] == [4, 6]


# In an elastic run that has lost it.
def test_substitute_writer_finds_no_folder(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path / "out")
    file.write({"step": 1, "loss": 2.0}, is_first=False)
    file.write({"step": 2, "loss": 1.0}, is_first=True)
    lines = (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


def test_one_that_is_stopped_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = trainer()
    whole.fit(loader_of(whole), epochs=2)
    stopped = trainer()
    fitted = stopped.fit(
        loader_of(stopped), epochs=2, output=tmp_path, callbacks=[Noted(stop_after=4)]
    )
    assert (fitted.steps, fitted.interrupted) == (4, True)
    again, noted = trainer(), Noted()
    held_out = {"held_out_loss": 1.5}
    fitted = again.fit(
        loader_of(again), epochs=2, output=tmp_path, evaluate=lambda: held_out, callbacks=[noted]
    )
    assert (fitted.steps, fitted.interrupted, fitted.evaluated) == (6, False, held_out)
    assert noted.events == [("begin", 6), 4, 5, (6, ["held_out_loss"]), "end"]
    for name, value in state(whole).items():
        assert torch.equal(value, state(again)[name]), name
    done = trainer()
    fitted = done.fit(loader_of(done), epochs=2, output=tmp_path, evaluate=lambda: held_out)
    assert (fitted.steps, fitted.evaluated, fitted.last) == (6, held_out, None)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4, 5, 6]
    assert [line["step"] for line in lines if "held_out_loss" in line] == [6]
    for data, seed, options, sentence in (
        (DATA, 3, {"resume": False}, "found a checkpoint of step 6, expected resume=True or an"),
        (DATA, 3, {"steps": 5}, "found 6 steps, expected at most 5"),
        (DATA, 4, {}, "found seed 3, expected 4"),
        (DATA[:9], 3, {}, "expected batch 0 of epoch 3: the data have changed"),
    ):
        other = trainer()
        with pytest.raises(ValueError, match=sentence):
            other.fit(
                medley.Loader(other.plan, data, shuffle=True, seed=seed),
                epochs=2,
                output=tmp_path,
                **options,  # type: ignore[arg-type]
            )


class Streamed:
    """Rows without a length: an iterable gives the same ones each time."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(DATA)


def test_a_stream_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = trainer()
    whole.fit(medley.Loader(whole.plan, DATA), epochs=2)
    stopped = trainer()
    stopped.fit(medley.StreamLoader(stopped.plan, Streamed()), steps=4, output=tmp_path)
    again = trainer()
    fitted = again.fit(medley.StreamLoader(again.plan, Streamed()), steps=6, output=tmp_path)
    assert fitted.steps == 6
    for name, value in state(whole).items():
        assert torch.equal(value, state(again)[name]), name


class Unsized(torch.utils.data.IterableDataset[Any]):
    """The same rows with a length that DataLoader does not know."""

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return iter(DATA)


def test_a_loader_without_a_length_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = trainer()
    whole.fit(medley.Loader(whole.plan, DATA), epochs=3)
    stopped, again = trainer(), trainer()
    plain: Any = torch.utils.data.DataLoader(Unsized(), batch_size=ROWS)
    stopped.fit(plain, steps=4, output=tmp_path)  # in its second epoch
    fitted = again.fit(plain, epochs=3, output=tmp_path)
    assert fitted.steps == 9
    for name, value in state(whole).items():
        assert torch.equal(value, state(again)[name]), name


def test_training_that_is_shorter_than_asked_for_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = trainer()
    data: Any = DATA
    batches = list(torch.utils.data.DataLoader(data, batch_size=ROWS))
    assert made.fit(iter(batches), steps=9).steps == 3
    assert "the loader has no more batches: training ends after 3 steps" in capsys.readouterr().err
    assert made.fit(batches, epochs=1).steps == 3
    assert "found 3 steps that are done already, of 3: nothing to" in capsys.readouterr().err
    shuffled: Any = torch.utils.data.DataLoader(data, batch_size=ROWS, shuffle=True)
    made.save(tmp_path)
    trainer().fit(shuffled, epochs=2, output=tmp_path)
    assert "found a DataLoader with shuffle=True, whose order" in capsys.readouterr().err


def test_any_loader_will_do() -> None:
    one, other = trainer(), trainer()
    plain = torch.utils.data.DataLoader(DATA, batch_size=ROWS)  # type: ignore[arg-type]
    one.fit(plain, epochs=2)
    other.fit(medley.Loader(other.plan, DATA), steps=6)
    for name, value in state(one).items():
        assert torch.equal(value, state(other)[name]), name


def test_impossible_settings_are_refused(tmp_path: Path) -> None:
    made = trainer()
    loader = loader_of(made)
    for options, sentence in (
        ({"epochs": 0}, "epochs: found 0"),
        ({"save_every": 2}, "save_every: found no output"),
        ({"evaluate_every": 2}, "evaluate_every: found nothing to evaluate"),
        ({"evaluate": loader}, "evaluate: found the loader that is trained on"),
        ({"evaluate": iter([]), "evaluate_every": 2}, "evaluate: found an iterator, which can be"),
        ({"callbacks": [print]}, "expected a medley.Callback"),
    ):
        with pytest.raises(ValueError, match=sentence):
            made.fit(loader, **options)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="found an iterator, which can be read once"):
        made.fit(iter([]), epochs=2)
    with pytest.raises(ValueError, match="found a loader of no batches"):
        made.fit([])


def test_lines_name_kinds_and_stragglers(capsys: pytest.CaptureFixture[str]) -> None:
    made = trainer()
    made.fit(loader_of(made), callbacks=[Progress(every=3)])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[1].startswith("step 3/3: loss ")
    assert "tokens/s: CPU " in lines[1]
    line = "straggler: b, the others wait 30 % of the step"
    assert holds_up({"a": 0.4, "b": 0.01, "c": 0.2}) == line
    assert holds_up({"a": 0.04, "b": 0.01}) == holds_up({"a": 0.9}) == ""


def test_tensorboard_and_wandb_get_scalars(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Writer:
        def __init__(self, folder: str) -> None:
            seen.append(folder)

        def add_scalar(self, name: str, value: float, step: int) -> None:
            seen.append((name, step))

        def close(self) -> None:
            seen.append("closed")

    class Run:
        def log(self, values: dict[str, float], step: int) -> None:
            seen.append((sorted(values), step))

        def finish(self) -> None:
            seen.append("finished")

    tensorboard = types.ModuleType("torch.utils.tensorboard")
    tensorboard.SummaryWriter = Writer  # type: ignore[attr-defined]
    wandb = types.ModuleType("wandb")
    wandb.init = lambda **_: Run()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", tensorboard)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    made = trainer()
    held_out = torch.utils.data.default_collate(HELD_OUT[:ROWS])
    made.fit(
        loader_of(made),
        steps=1,
        evaluate=held_out,
        callbacks=[TensorBoard("runs"), WandB(project="medley")],
    )
    assert seen[0] == "runs" and seen[-2:] == ["closed", "finished"]
    assert ("train/loss", 0) in seen and ("eval/accuracy", 1) in seen
    assert (["eval/accuracy", "eval/loss", "eval/right"], 0) in seen


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ValueError, match="WandB: needs a package: pip install wandb"):
        WandB()
