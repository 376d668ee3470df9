"""Evaluation equals the model in eval mode on one device, under any plan. Other scalars are
metrics."""

from __future__ import annotations

import copy
from typing import Any

import exactness
import pytest
import test_pipelines as pipelines
import torch
import torch.nn.functional as F  # noqa: N812
from test_fewer_rows import ROWS, rows_of, trainer_of, whole_batches
from torch import Tensor, nn
from zoo import ZOO

import medley
from medley import _testing
from medley.ambient import in_eval_mode

NEAR = 1e-10


class Classifier(nn.Module):
    """A classifier with dropout and batch norm, which both differ in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(16, 5)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Returns loss, accuracy and a count."""
        found = self.last(self.drop(torch.relu(self.norm(self.first(x)))))
        right = found.argmax(-1) == labels
        return {
            "loss": F.cross_entropy(found, labels),
            "accuracy": right.to(x.dtype).mean(),
            "right": right.sum(),
            "logits": found,
        }


def classifier(rows: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model and a batch."""
    torch.manual_seed(0)
    batch = {"x": torch.randn(rows, 8).double(), "labels": torch.randint(0, 5, (rows,))}
    return Classifier().double(), batch


def eager(trainer: medley.Trainer, model: nn.Module, batch: Any) -> Any:
    """Returns the outputs of a copy of the model in eval mode with the trainer's parameters."""
    model = copy.deepcopy(model)
    values = dict(model.named_parameters()) | dict(model.named_buffers())
    with torch.no_grad():
        for name, value in (trainer.parameters() | trainer.buffers()).items():
            values[name].copy_(value)
    with in_eval_mode(model), torch.no_grad():
        return exactness.call(model, batch)


ONE_STAGE = [{"mesh": {"devices": ["a/0/0", "a/1/0"]}}]
PLANS = {
    "one device": whole_batches(1),
    "rows": medley.Plan.from_dict(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "pipelines": [
                {"microbatches": [{"rows": ROWS, "lengths": [4, 2]}], "stages": ONE_STAGE}
            ],
        }
    ).text,
    "shards": medley.Plan.from_dict(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "parts": [{"name": "part", "shares": [2, 1]}],
            "pipelines": [
                {
                    "microbatches": [{"rows": ROWS}],
                    "stages": [{**ONE_STAGE[0], "placements": {"*.weight": "S(0, part)"}}],
                }
            ],
        }
    ).text,
}


@pytest.mark.parametrize("name", PLANS)
def test_metrics_are_those_of_one_device(name: str) -> None:
    with exactness.double_precision():
        model, batch = classifier(ROWS)
        trainer = trainer_of(model, medley.capture(model, batch), PLANS[name])
        batches = [batch, rows_of(batch, 4), rows_of(batch, 1)]
        trainer.step(batch)
        for each in batches:
            want = eager(trainer, model, each)
            got = trainer.evaluate(each)
            assert got.keys() == {"loss", "accuracy", "right"}
            for key, value in got.items():
                assert value == pytest.approx(want[key].item(), rel=NEAR), key
        # Every row counts as much as any other.
        found = trainer.evaluate(iter(batches))
        seen = [eager(trainer, model, each)["loss"].item() for each in batches]
        assert found["loss"] == pytest.approx((6 * seen[0] + 4 * seen[1] + seen[2]) / 11, rel=NEAR)


def test_evaluation_does_not_change_training() -> None:
    with exactness.double_precision():
        model, batch = classifier(ROWS)
        graph = medley.capture(model, batch)
        one, other = (trainer_of(model, graph, PLANS["rows"]) for _ in range(2))
        for _ in range(3):
            loss = one.step(batch).loss
            one.evaluate(batch)
            assert other.step(batch).loss == loss
        assert all(module.training for module in model.modules())
        for name, value in one.parameters().items():
            assert torch.equal(value, other.parameters()[name])
        for name, value in one.buffers().items():
            assert torch.equal(value, other.buffers()[name])


def check(name: str, plans: list[str]) -> None:
    """Asserts that a model of the zoo is evaluated under plans as on one device."""
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        for plan in plans:
            trainer = trainer_of(model, graph, plan)
            trainer.step(batch)
            for rows in (ROWS, 4):
                part = rows_of(batch, rows)
                want = exactness.loss_of(eager(trainer, model, part)).item()
                assert trainer.evaluate(part)["loss"] == pytest.approx(want, rel=NEAR)


@pytest.mark.parametrize("name", ["gpt-dropout", pytest.param("hf-bert", marks=pytest.mark.slow)])
def test_random_plans(name: str) -> None:
    with exactness.double_precision():
        graph = exactness.captured(ZOO[name], ROWS)[2]
    devices = [f"a/{i}/0" for i in range(4)]
    check(
        name,
        [
            exactness.random_plan(graph, 1, ROWS, devices=3),
            _testing.random_pipelines(graph.core.text(), devices, ROWS, 2),
        ],
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_model(name: str) -> None:
    with exactness.double_precision():
        graph = exactness.captured(ZOO[name], ROWS)[2]
    plans = [exactness.random_plan(graph, seed, ROWS, devices=2 + seed % 3) for seed in range(4)]
    if name not in ("resnet", "vgg-bn", "hf-mixtral-balanced"):
        devices = [f"a/{i}/0" for i in range(5)]
        plans += [
            _testing.random_pipelines(graph.core.text(), devices, ROWS, seed)
            for seed in range(1, 5)
        ]
    check(name, plans)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in pipelines.CASES if name != "50 steps"])
def test_every_pipeline(name: str) -> None:
    case = pipelines.CASES[name]
    with exactness.double_precision():
        graph = exactness.captured(ZOO[case.model], ROWS)[2]
    check(case.model, [pipelines.plan_of(case, graph)])


class Detector(nn.Module):
    """Returns several losses, whose sum is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Returns them by name."""
        found = self.layer(x)
        return {"loss_box": (found**2).mean(), "loss_class": F.cross_entropy(found, labels)}


def test_losses_of_a_dict_are_added_up() -> None:
    with exactness.double_precision():
        model = Detector().double()
        batch = {"x": torch.randn(ROWS, 4), "labels": torch.randint(0, 3, (ROWS,))}
        trainer = trainer_of(model, medley.capture(model, batch), PLANS["rows"])
        want = {name: value.item() for name, value in model(**batch).items()}
        got = trainer.evaluate(batch)
        assert got == pytest.approx({"loss": sum(want.values()), **want}, rel=NEAR)
        assert trainer.step(batch).loss == pytest.approx(got["loss"], rel=NEAR)


class Bare(nn.Module):
    """Returns the loss and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Returns it."""
        return F.cross_entropy(self.layer(x), labels)


def test_a_loss_alone_has_no_metrics() -> None:
    model = Bare()
    batch = {"x": torch.randn(ROWS, 4), "labels": torch.randint(0, 3, (ROWS,))}
    trainer = trainer_of(model, medley.capture(model, batch), PLANS["rows"])
    assert list(trainer.evaluate(batch)) == ["loss"]


def test_a_list_of_batches_is_no_batch() -> None:
    model = Bare()
    batches = [(torch.randn(ROWS, 4), torch.randint(0, 3, (ROWS,))) for _ in range(2)]
    trainer = trainer_of(model, medley.capture(model, batches[0]), PLANS["rows"])
    found = [trainer.evaluate(list(each))["loss"] for each in batches]
    assert trainer.evaluate(batches)["loss"] == pytest.approx(sum(found) / 2)


class WithMetrics(nn.Module):
    """Returns the loss, and metrics that are no means over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 5)

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Returns them by name."""
        found = self.layer(x)
        right, counts = found.argmax(-1) == labels, labels > 0
        return {
            "loss": F.cross_entropy(found, labels),
            "of_some": (right & counts).sum() / counts.sum(),
            "of_all": right.sum() / len(x),
            "largest": found.max(),
        }


def test_metrics_of_several_micro_batches_are_those_of_the_batch() -> None:
    with exactness.double_precision():
        model, batch = WithMetrics().double(), classifier(ROWS)[1]
        trainer = trainer_of(model, medley.capture(model, batch), whole_batches(3))
        want = eager(trainer, model, batch)
        assert trainer.evaluate([batch]) == pytest.approx(
            {name: value.item() for name, value in want.items()}, rel=NEAR
        )


class Pair(WithMetrics):
    """Returns (loss, accuracy), which is no sum and its weight."""

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        """Returns both."""
        found = super().forward(x, labels)
        return found["loss"], found["of_all"]


def test_a_loss_and_an_accuracy_are_no_sum_and_normaliser() -> None:
    with exactness.double_precision():
        model, batch = Pair().double(), classifier(ROWS)[1]
        trainer = trainer_of(model, medley.capture(model, batch), PLANS["rows"])
        want = model(**batch)[0].item()
        assert trainer.evaluate(batch)["loss"] == pytest.approx(want, rel=NEAR)
        assert trainer.step(batch).loss == pytest.approx(want, rel=NEAR)


def test_a_loader_that_yields_nothing_is_refused() -> None:
    model, batch = ZOO["mlp"](batch=ROWS)
    trainer = trainer_of(model, medley.capture(model, batch), whole_batches(1))
    with pytest.raises(ValueError, match="evaluate: found no batch, expected one at least"):
        trainer.evaluate(iter([]))


LARGER = (ROWS + 1, 3 * ROWS, 3 * ROWS + 1)


@pytest.mark.parametrize("name", [*PLANS, "two pipelines"])
def test_larger_batches_than_the_plans_are_those_of_one_device(name: str) -> None:
    """Targets that are ignored weigh nothing, in whichever part they are."""
    with exactness.double_precision():
        model, batch = Ignoring().double(), classifier(3 * ROWS + 1)[1]
        batch["labels"][: ROWS + 2] = -100
        graph = medley.capture(model, rows_of(batch, ROWS))
        plan = two_pipelines() if name == "two pipelines" else PLANS[name]
        trainer = trainer_of(model, graph, plan)
        trainer.step({"x": batch["x"][-ROWS:], "labels": batch["labels"][-ROWS:]})
        for rows in (*LARGER[1:], ROWS):
            part = {key: value[-rows:] for key, value in batch.items()}
            want = eager(trainer, model, part)
            got = trainer.evaluate(part)
            assert got.keys() == want.keys()
            for key, value in got.items():
                assert value == pytest.approx(want[key].item(), rel=NEAR), (rows, key)


def test_a_loader_of_larger_batches_weighs_each_by_its_rows() -> None:
    with exactness.double_precision():
        model, batch = Bare().double(), classifier(2 * ROWS + 1)[1]
        batch = {"x": batch["x"][:, :4], "labels": batch["labels"] % 3}
        trainer = trainer_of(model, medley.capture(model, rows_of(batch, ROWS)), PLANS["rows"])
        found = trainer.evaluate([batch, rows_of(batch, 2)])["loss"]
        each = [eager(trainer, model, one).item() for one in (batch, rows_of(batch, 2))]
        rows = 2 * ROWS + 1
        assert found == pytest.approx((rows * each[0] + 2 * each[1]) / (rows + 2), rel=NEAR)


class Ignoring(WithMetrics):
    """Ignores some targets."""

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Returns the loss."""
        return {"loss": F.cross_entropy(self.layer(x), labels)}


def two_pipelines() -> str:
    """Returns a plan of unequal ones, of two micro-batches and one."""
    rows = [[2, 1], [ROWS - 3]]
    entries = {"format": "medley-plan", "version": 1, "global_batch": ROWS}
    pipelines = [
        {"microbatches": [{"rows": n} for n in each], "stages": [{"mesh": {"devices": [on]}}]}
        for each, on in zip(rows, ("a/0/0", "a/1/0"), strict=True)
    ]
    return medley.Plan.from_dict({**entries, "pipelines": pipelines}).text
