"""Medley trains by transformers' TrainingArguments as transformers' own trainer does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("transformers")

import medley
from medley_extras import hf
from medley_extras.models import hf as models

# Importing transformers' trainer takes longer than all else here.
pytestmark = pytest.mark.slow

ROWS, LENGTH = 44, 12


class Data:
    """Rows of tokens, with a column that the model is not called with."""

    def __init__(self) -> None:
        self._tokens = torch.randint(
            0, 64, (ROWS, LENGTH), generator=torch.Generator().manual_seed(3)
        )

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        tokens = self._tokens[row]
        return {"input_ids": tokens, "labels": tokens, "text": "not for the model"}


def model() -> nn.Module:
    """Returns a small model, the same each time. GPT-2 is excluded: transformers counts the first
    token of a row in its mean loss, although no position predicts it."""
    torch.manual_seed(0)
    return models.llama()[0].double()


def arguments(folder: Path, **more: Any) -> Any:
    """Returns TrainingArguments of two epochs with a short last batch."""
    from transformers import TrainingArguments

    given = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 8,
        "num_train_epochs": 2,
        "learning_rate": 1e-3,
        "weight_decay": 0.1,
        "warmup_steps": 3,
        "logging_steps": 2,
        "save_strategy": "no",
        "train_sampling_strategy": "sequential",
        "use_cpu": True,
        "report_to": "none",
        **more,
    }
    return TrainingArguments(**given)


SCHEDULES = ["linear", "cosine", "constant_with_warmup", "polynomial", "inverse_sqrt"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_it_trains_like_their_trainer(tmp_path: Path, schedule: str) -> None:
    from transformers import Trainer

    with exactness.double_precision():
        theirs = model()
        args = arguments(tmp_path / "theirs", lr_scheduler_type=schedule)
        Trainer(theirs, args, train_dataset=Data()).train()  # type: ignore[arg-type]
        args = arguments(tmp_path, lr_scheduler_type=schedule, per_device_train_batch_size=4)
        trainer = hf.train(model(), args, Data(), cluster=exactness.cluster(2))
        assert trainer.steps == 12
        found = trainer.parameters()
        for name, value in theirs.named_parameters():
            worst = (found[name] - value.detach()).abs().max().item()
            assert worst <= 1e-10 * value.abs().max().item(), (name, worst)


class Streamed:
    """The same rows without a length."""

    def __init__(self, data: Data) -> None:
        self._data = data

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self._data[row] for row in range(ROWS))


class TheirStream(Streamed, torch.utils.data.IterableDataset[Any]):
    """One that their trainer takes."""


def test_a_stream_trains_like_theirs(tmp_path: Path) -> None:
    from transformers import Trainer

    with exactness.double_precision():
        theirs = model()
        args = arguments(tmp_path / "theirs", max_steps=9)
        Trainer(theirs, args, train_dataset=TheirStream(Data())).train()
        args = arguments(tmp_path, max_steps=9, per_device_train_batch_size=4)
        trainer = hf.train(model(), args, Streamed(Data()), cluster=exactness.cluster(2))
        assert trainer.steps == 9
        found = trainer.parameters()
        for name, value in theirs.named_parameters():
            worst = (found[name] - value.detach()).abs().max().item()
            assert worst <= 1e-10 * value.abs().max().item(), (name, worst)


def test_a_stream_of_unlike_lengths_is_planned_for_what_is_said(tmp_path: Path) -> None:
    with exactness.double_precision():
        found = []
        for data, tokens in ((Sentences(), None), (Streamed(Sentences()), 2 * LENGTH)):
            args = arguments(tmp_path, max_steps=4, per_device_train_batch_size=4)
            cluster = exactness.cluster(2)
            trainer = hf.train(model(), args, data, padded, cluster=cluster, tokens=tokens)
            found.append(trainer.parameters())
        for name, value in found[0].items():
            worst = (found[1][name] - value).abs().max().item()
            assert worst <= 1e-10 * value.abs().max().item(), (name, worst)


def test_a_stream_is_refused_without_steps(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_steps: found none, expected one"):
        hf.train(model(), arguments(tmp_path), Streamed(Data()), cluster=exactness.cluster(2))


class Sentences(Data):
    """Rows of different lengths."""

    def __getitem__(self, row: int) -> dict[str, Any]:
        length = 3 + (5 * row) % (LENGTH - 3)
        return {name: value[:length] for name, value in super().__getitem__(row).items()}


def padded(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Returns a batch as long as the longest of its rows, with a mask."""
    fills = {"input_ids": 0, "labels": -100}
    batch = {
        name: nn.utils.rnn.pad_sequence([row[name] for row in rows], True, fill)
        for name, fill in fills.items()
    }
    return batch | {"attention_mask": (batch["labels"] != -100).long()}


def test_rows_of_unlike_lengths_train_like_theirs(tmp_path: Path) -> None:
    from transformers import Trainer

    with exactness.double_precision():
        theirs = model()
        args = arguments(tmp_path / "theirs", num_train_epochs=1)
        Trainer(theirs, args, train_dataset=Sentences(), data_collator=padded).train()  # type: ignore[arg-type]
        args = arguments(tmp_path, num_train_epochs=1, per_device_train_batch_size=4)
        trainer = hf.train(model(), args, Sentences(), padded, cluster=exactness.cluster(2))
        found = trainer.parameters()
        for name, value in theirs.named_parameters():
            worst = (found[name] - value.detach()).abs().max().item()
            assert worst <= 1e-10 * value.abs().max().item(), (name, worst)


class TimeFirst(nn.Module):
    """A model that takes [tokens, rows]."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, input_ids: Tensor, labels: Tensor) -> Any:
        """Returns the output of the model."""
        return self.inner(input_ids=input_ids.t(), labels=labels.t())


def time_first(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Returns a batch whose rows are dim 1."""
    return {name: torch.stack([row[name] for row in rows], 1) for name in ("input_ids", "labels")}


def test_rows_may_be_another_dim(tmp_path: Path) -> None:
    from transformers import Trainer

    with exactness.double_precision():
        theirs = model()
        Trainer(theirs, arguments(tmp_path / "theirs"), train_dataset=Data()).train()  # type: ignore[arg-type]
        trainer = hf.train(
            TimeFirst(),
            arguments(tmp_path, per_device_train_batch_size=4),
            Data(),
            time_first,
            cluster=exactness.cluster(2),
            row_dims={"input_ids": 1, "labels": 1},
        )
        found = trainer.parameters()
        for name, value in theirs.named_parameters():
            worst = (found[f"inner.{name}"] - value.detach()).abs().max().item()
            assert worst <= 1e-10 * value.abs().max().item(), (name, worst)


def test_a_collator_that_joins_texts_is_refused(tmp_path: Path) -> None:
    from transformers import DataCollatorWithFlattening

    with pytest.raises(ValueError, match="it joins texts into one row.*DataCollatorForSeq2Seq"):
        hf.train(
            model(),
            arguments(tmp_path),
            Data(),
            DataCollatorWithFlattening(),
            cluster=exactness.cluster(2),
        )


def test_gradients_may_be_accumulated(tmp_path: Path) -> None:
    args = arguments(tmp_path, gradient_accumulation_steps=2, max_steps=3)
    trainer = hf.train(model(), args, Data(), cluster=exactness.cluster(2))
    assert (trainer.plan.global_batch, trainer.steps) == (32, 3)


def test_it_saves_evaluates_and_goes_on(tmp_path: Path) -> None:
    def run(**more: Any) -> medley.Trainer:
        args = arguments(
            tmp_path,
            per_device_train_batch_size=4,
            save_strategy="steps",
            save_steps=2,
            save_total_limit=2,
            eval_strategy="epoch",
            **more,
        )
        return hf.train(model(), args, Data(), cluster=exactness.cluster(2), eval_dataset=Data())

    assert run(max_steps=6).steps == 6
    folders = sorted(each.name for each in tmp_path.iterdir() if each.is_dir())
    assert folders == ["step-00000004", "step-00000006"]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "eval_loss" in line] == [6]
    with pytest.raises(ValueError, match="found a checkpoint of step 6, expected resume=True"):
        run(max_steps=8)
    assert run(max_steps=8, resume_from_checkpoint="yes").steps == 8


def test_it_goes_on_from_the_checkpoint_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(folder: str, **more: Any) -> medley.Trainer:
        args = arguments(tmp_path / folder, per_device_train_batch_size=4, **more)
        return hf.train(model(), args, Data(), cluster=exactness.cluster(2))

    run("first", max_steps=2, save_strategy="steps")
    first = tmp_path / "first"
    for folder, word in (("second", str(first)), ("first", True)):  # no checkpoints of its own
        capsys.readouterr()
        assert run(folder, max_steps=3, resume_from_checkpoint=word).steps == 3
        lines = capsys.readouterr().out.splitlines()
        assert [line.partition(":")[0] for line in lines] == ["step 3/3"]
    with pytest.raises(ValueError, match="resume_from_checkpoint: found .*third, expected a"):
        run("second", max_steps=3, resume_from_checkpoint=str(tmp_path / "third"))


def test_answers_have_a_length_of_their_own(tmp_path: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration, Trainer

    def make() -> nn.Module:
        torch.manual_seed(0)
        config = T5Config(
            vocab_size=64, d_model=32, d_kv=8, d_ff=48, num_layers=1, num_heads=2, dropout_rate=0.0
        )
        config.decoder_start_token_id = 0
        return T5ForConditionalGeneration(config).double()

    class Pairs(Sentences):
        """Rows whose labels have the lengths of other rows."""

        def __len__(self) -> int:
            return 20

        def __getitem__(self, row: int) -> dict[str, Any]:
            answer = super().__getitem__((3 * row + 1) % ROWS)["labels"]
            return {**super().__getitem__(row), "labels": answer}

    def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        batch = padded([{**row, "labels": row["input_ids"]} for row in rows])
        pad = nn.utils.rnn.pad_sequence
        return {**batch, "labels": pad([row["labels"] for row in rows], True, -100)}

    with exactness.double_precision():
        theirs = make()
        args = arguments(tmp_path / "theirs", num_train_epochs=1)
        Trainer(theirs, args, train_dataset=Pairs(), data_collator=collate).train()  # type: ignore[arg-type]
        args = arguments(tmp_path, num_train_epochs=1, per_device_train_batch_size=4)
        found = hf.train(make(), args, Pairs(), collate, cluster=exactness.cluster(2)).parameters()
        for name, value in theirs.named_parameters():
            worst = (found[name] - value.detach()).abs().max().item()
            assert worst <= 1e-10 * value.abs().max().item(), (name, worst)


def test_choices_are_no_lengths() -> None:
    tokens = torch.zeros(2, 3, 10, dtype=torch.int64)
    assert hf.lengths_of({"input_ids": tokens, "attention_mask": tokens}, {}) == medley.Lengths()


def test_moments_of_eight_bits_have_two_names(tmp_path: Path) -> None:
    for name in ("adamw_8bit", "adamw_bnb_8bit"):
        rule = hf.optimizer_of(model(), arguments(tmp_path, optim=name), 1)
        assert isinstance(rule, medley.Groups)
        assert [type(each) for _, each in rule.groups] == [medley.AdamW8bit] * 2


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"label_smoothing_factor": 0.1},
            "found label_smoothing_factor=0.1, which medley_extras.hf.train",
        ),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha=5.0"),
        ({"load_best_model_at_end": False, "push_to_hub": True}, "push_to_hub=True"),
        ({"optim": "adafactor"}, "optim: found 'adafactor', expected one of adamw_torch"),
        ({"train_sampling_strategy": "group_by_length"}, "found 'group_by_length', expected 'ran"),
        (
            {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "epoch"},
            "lr_scheduler_type: found 'reduce_lr",
        ),
        ({"report_to": ["mlflow"]}, "report_to: found 'mlflow'"),
    ],
)
def test_unread_arguments_are_refused_by_name(
    tmp_path: Path, more: dict[str, Any], sentence: str
) -> None:
    args = arguments(tmp_path, **more)
    with pytest.raises(ValueError, match=sentence):
        hf.train(model(), args, Data(), cluster=exactness.cluster(2))


def test_columns_match_the_call_of_the_model() -> None:
    row = hf.Columns(Data(), hf.columns_of(model()))[0]
    assert row.keys() == {"input_ids", "labels"}
    assert isinstance(row["labels"], Tensor)
