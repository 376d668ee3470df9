"""Common divisors of a loss, divided into micro-batches, compared with plain PyTorch."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any

import exactness
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley

ROWS = 12
CLASSES = 5
Batch = dict[str, Tensor]
Way = Callable[["Net", Tensor, Batch], Tensor]


def each(x: Tensor, b: Batch) -> Tensor:
    """Returns the loss of each row, 0 where its target is ignored."""
    return F.cross_entropy(x, b["y"], reduction="none")


def kept(x: Tensor, b: Batch) -> Tensor:
    """Returns the sum of the losses of rows that the mask keeps."""
    return (each(x, b) * b["k"]).sum()


def histogram(y: Tensor) -> Tensor:
    """Returns how many rows each class has."""
    return F.one_hot(y.clamp(min=0), CLASSES).masked_fill((y < 0)[:, None], 0).sum(0)


def balanced(y: Tensor) -> Tensor:
    """Returns a weight of each class, the larger the rarer it is in the batch."""
    return (y >= 0).sum() / (CLASSES * histogram(y).clamp(min=1))


def sigmoid_focal(x: Tensor, t: Tensor) -> Tensor:
    """Returns the focal loss of each element."""
    p = x.sigmoid()
    hit = p * t + (1 - p) * (1 - t)
    return F.binary_cross_entropy_with_logits(x, t, reduction="none") * (1 - hit) ** 2


def mean_of_classes(x: Tensor, b: Batch) -> Tensor:
    """Returns the mean over the classes that there are of the means over their rows."""
    counts = histogram(b["y"])
    sums = (each(x, b)[:, None] * F.one_hot(b["y"].clamp(min=0), CLASSES)).sum(0)
    return (sums / counts.clamp(min=1)).sum() / (counts > 0).sum()


def standardized(t: Tensor) -> Tensor:
    """Returns targets of mean 0 and variance 1 in each column over the batch."""
    centred = t - t.mean(0)
    return centred / (centred.pow(2).mean(0) + 1e-6).sqrt()


def positives(t: Tensor) -> Tensor:
    """Returns the number of negatives per positive of each class."""
    found = t.round().sum(0)
    return (t.shape[0] - found) / (found + 1.0)


def guarded(x: Tensor, b: Batch) -> Tensor:
    """Returns the mean of the kept elements, or 0 without any."""
    return torch.where(b["k"].sum() > 0, kept(x, b) / b["k"].sum(), torch.zeros(()))


def dice(x: Tensor, t: Tensor) -> Tensor:
    """Returns the dice loss of each row."""
    p = x.sigmoid()
    return 1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)


def in_place(x: Tensor, b: Batch) -> Tensor:
    """Returns the mean of the kept elements, by a count that is changed in place."""
    count = b["k"].sum()
    count += 1e-8
    return kept(x, b) / count.clamp_(min=1)


def both(x: Tensor, b: Batch) -> Tensor:
    """Returns two losses, each divided by a count of its own."""
    second = ((x - b["t"]).abs().sum(1) * b["u"]).sum()
    return kept(x, b) / b["k"].sum().clamp(min=1) + 0.5 * second / (b["u"].sum() + 1)


def rescaled(x: Tensor, b: Batch) -> Tensor:
    """Returns a loss with row weights normalised to a mean of 1."""
    return (each(x, b) * b["u"] / b["u"].mean()).mean()


WAYS: dict[str, Way] = {
    "sum by sum": lambda m, x, b: kept(x, b) / b["k"].sum(),
    "clamp": lambda m, x, b: kept(x, b) / b["k"].sum().clamp(min=1),
    "a little": lambda m, x, b: kept(x, b) / (b["k"].sum() + 1e-8),
    "less padding": lambda m, x, b: kept(x, b) / (b["k"].numel() - (1 - b["k"]).sum()),
    "weights of classes": lambda m, x, b: F.cross_entropy(x, b["y"], m.weight),
    "nll, weights of classes": lambda m, x, b: F.nll_loss(x.log_softmax(-1), b["y"], m.weight),
    "weights, smoothing": lambda m, x, b: F.cross_entropy(x, b["y"], m.weight, label_smoothing=0.1),
    "ignored targets": lambda m, x, b: F.cross_entropy(x, b["y"]),
    "items of the batch": lambda m, x, b: each(x, b).sum() / b["items"],
    "valid targets": lambda m, x, b: each(x, b).sum() / (b["y"] != -100).sum().clamp(min=1).float(),
    "mean by mean": lambda m, x, b: (each(x, b) * b["k"]).mean() / b["k"].mean(),
    "reciprocal": lambda m, x, b: kept(x, b) * b["k"].sum().reciprocal(),
    "one by sum": lambda m, x, b: kept(x, b) * (1.0 / b["k"].sum()),
    "maximum": lambda m, x, b: kept(x, b) / torch.maximum(b["k"].sum(), torch.ones(())),
    "max": lambda m, x, b: kept(x, b) / torch.max(b["k"].sum(), b["u"].sum()),
    "where": lambda m, x, b: guarded(x, b),
    "root": lambda m, x, b: kept(x, b) / b["k"].sum().sqrt(),
    "power": lambda m, x, b: kept(x, b) / b["k"].sum() ** 0.75,
    "product": lambda m, x, b: kept(x, b) / (b["k"].sum() * b["u"].sum()),
    "rows by sum": lambda m, x, b: each(x, b).mean() * (x.shape[0] / b["k"].sum()),
    "nan to num": lambda m, x, b: kept(x, b) / torch.nan_to_num(b["k"].sum(), nan=1.0),
    "in place": lambda m, x, b: in_place(x, b),
    "two counts": lambda m, x, b: both(x, b),
    "weighted errors": lambda m, x, b: F.mse_loss(x, b["t"], weight=b["w"]),
    "rescaled weights": lambda m, x, b: rescaled(x, b),
    "mean of rows": lambda m, x, b: (
        ((x - b["t"]).pow(2) * b["w"]).sum(1) / b["w"].sum(1).clamp(min=1)
    ).mean(),
    "variance of targets": lambda m, x, b: F.mse_loss(x, b["t"]) / b["t"].var(),
    "power of targets": lambda m, x, b: F.mse_loss(x, b["t"]) / b["t"].pow(2).mean(),
    "standardized targets": lambda m, x, b: F.mse_loss(x, standardized(b["t"])),
    "balanced": lambda m, x, b: (
        (each(x, b) * balanced(b["y"])[b["y"].clamp(min=0)]).sum() / (b["y"] >= 0).sum()
    ),
    "balanced cross entropy": lambda m, x, b: F.cross_entropy(x, b["y"], balanced(b["y"])),
    "mean of classes": lambda m, x, b: mean_of_classes(x, b),
    "weight of positives": lambda m, x, b: F.binary_cross_entropy_with_logits(
        x, b["t"].round(), pos_weight=positives(b["t"])
    ),
    "focal": lambda m, x, b: (
        sigmoid_focal(x, b["t"].round()).sum() / (b["t"] > 0.5).sum().clamp(min=1)
    ),
    "dice of rows": lambda m, x, b: dice(x, b["t"]).mean(),
    "temperature": lambda m, x, b: F.cross_entropy(x / m.temperature, b["y"]) * m.temperature**2,
    "penalty": lambda m, x, b: kept(x, b) / b["k"].sum() + 0.1 * m.a.weight.pow(2).sum(),
    "penalty and root": lambda m, x, b: (
        kept(x, b) / (b["k"].sum() + 1) + 0.1 * m.b.weight.norm() + m.a.weight.pow(2).mean() + 0.5
    ),
}


class Net(nn.Module):
    """Two layers and a way to divide their loss."""

    weight: Tensor
    temperature: Tensor

    def __init__(self, way: Way) -> None:
        super().__init__()
        self.a, self.b, self.way = nn.Linear(6, 8), nn.Linear(8, CLASSES), way
        self.register_buffer("weight", torch.linspace(0.5, 2, CLASSES))
        self.register_buffer("temperature", torch.tensor(2.0))

    def forward(self, x: Tensor, **batch: Tensor) -> Tensor:
        return self.way(self, self.b(self.a(x).tanh()), batch)


def made(way: Way) -> Net:
    """Returns the model, the same each time."""
    torch.manual_seed(0)
    return Net(way)


def batch_of(rows: int, seed: int = 1) -> Batch:
    """Returns a batch with unevenly distributed ignored rows."""
    made = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (rows,), generator=made)
    y[1::4] = -100
    k = (torch.arange(rows) % 5 != 2).to(torch.get_default_dtype())
    return {
        "x": torch.randn(rows, 6, generator=made),
        "y": y,
        "k": k,
        "t": torch.rand(rows, CLASSES, generator=made),
        "u": torch.rand(rows, generator=made) + 0.5,
        "w": torch.rand(rows, CLASSES, generator=made) + 0.1,
        "items": (y >= 0).sum(),
    }


CAPTURED: dict[str, medley.Graph] = {}


def captured(name: str, way: Way) -> medley.Graph:
    """Returns the graph of a way."""
    if name not in CAPTURED:
        CAPTURED[name] = medley.capture(made(way), batch_of(ROWS, 7))
    return CAPTURED[name]


# Plans: the rows of each pipeline's micro-batches, and its number of stages.
SHAPES: dict[str, list[tuple[list[int], int]]] = {
    "one stage": [([6, 1, 5], 1)],
    "two stages": [([6, 1, 5], 2)],
    "two pipelines": [([4, 1], 1), ([5, 2], 1)],
    "two pipelines of two stages": [([4, 1], 2), ([5, 2], 2)],
}


def plan_of(shape: str, **fields: Any) -> str:
    """Returns the plan's text. The second stage begins at the second layer."""
    pipelines: list[dict[str, Any]] = []
    device = 0
    for rows, stages in SHAPES[shape]:
        made: list[dict[str, Any]] = []
        for stage in range(stages):
            made.append({"mesh": {"devices": [f"a/{device}/0"]}})
            if stage:
                made[-1]["first"] = "b/mm#0"
            device += 1
        pipelines.append({"microbatches": [{"rows": each} for each in rows], "stages": made})
    plan = {"format": "medley-plan", "version": 1, "global_batch": ROWS, "pipelines": pipelines}
    return json.dumps(plan | fields)


@functools.cache
def cluster() -> Any:
    return exactness.cluster()


def trainer_of(model: nn.Module, graph: medley.Graph, plan: str) -> medley.Trainer:
    return medley.Trainer(
        model, graph, medley.Plan(plan), medley.SGD(lr=0.1), local=True, cluster=cluster()
    )


def compare(trainer: medley.Trainer, way: Way, batch: Batch, parts: list[int]) -> None:
    """Asserts that a step equals that of a PyTorch loop that accumulates over `parts`."""
    model = made(way)
    loss, row = 0.0, 0
    for rows in parts:
        part = {n: t[row : row + rows] if t.dim() else t for n, t in batch.items()}
        term = model(**part) / len(parts)
        term.backward()
        loss, row = loss + term.item(), row + rows
    found = trainer.step(batch).loss
    assert abs(found - loss) <= 1e-10 * abs(loss)
    for name, gradient in trainer.gradients().items():
        want = dict(model.named_parameters())[name].grad
        assert want is not None
        assert (gradient - want).abs().max() <= 1e-10 * want.abs().max(), name


def check(name: str, shape: str, rows: int = ROWS) -> None:
    """Asserts that a way trains as on the whole batch."""
    with exactness.double_precision():
        graph = captured(name, WAYS[name])
        trainer = trainer_of(made(WAYS[name]), graph, plan_of(shape))
        compare(trainer, WAYS[name], batch_of(rows), [rows])


# These run always, all of them nightly.
OFTEN = (
    "clamp",
    "less padding",
    "weights of classes",
    "mean by mean",
    "balanced cross entropy",
    "standardized targets",
    "penalty and root",
)


@pytest.mark.parametrize("name", OFTEN)
def test_two_pipelines_of_two_stages(name: str) -> None:
    check(name, "two pipelines of two stages")
    check(name, "two pipelines of two stages", rows=7)


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", WAYS)
def test_unequal_microbatches(name: str, shape: str) -> None:
    check(name, shape)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [2, 7])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", WAYS)
def test_fewer_rows(name: str, shape: str, rows: int) -> None:
    check(name, shape, rows)


# --- the mean of the losses of micro-batches ------------------------------------------------------


def meeting(x: Tensor, b: Batch) -> Tensor:
    """Returns a loss of pairs of rows."""
    scores = x @ x.T / 0.3
    return F.cross_entropy(scores, torch.arange(x.shape[0]))


ACCUMULATED: dict[str, Way] = {
    name: WAYS[name]
    for name in ("clamp", "weights of classes", "balanced", "less padding", "penalty and root")
} | {
    "root of a mean": lambda m, x, b: F.mse_loss(x, b["t"]).sqrt() + 0.1 * m.a.weight.norm(),
    "dice": lambda m, x, b: dice(x.T, b["t"].T).mean(),
    "balance": lambda m, x, b: (
        F.cross_entropy(x, b["y"]) + (x.softmax(-1).mean(0) * x.sigmoid().mean(0)).sum()
    ),
    "rows meet": lambda m, x, b: meeting(x, b),
    "a constant": lambda m, x, b: F.mse_loss(x, b["t"]) + 1.5,
}


def accumulate(name: str, shape: str, rows: int = ROWS) -> None:
    """Asserts that a way trains as in a loop that accumulates the micro-batches of a plan."""
    way = ACCUMULATED[name]
    parts = [each for microbatches, _ in SHAPES[shape] for each in microbatches]
    with exactness.double_precision():
        graph = captured(name, way)
        trainer = trainer_of(made(way), graph, plan_of(shape, loss_over="microbatches"))
        compare(trainer, way, batch_of(rows), parts)


@pytest.mark.parametrize("name", ["balanced", "penalty and root", "root of a mean", "balance"])
def test_the_loss_over_microbatches_is_that_of_a_loop(name: str) -> None:
    accumulate(name, "two pipelines of two stages")


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ACCUMULATED)
def test_the_loss_over_microbatches_of_every_shape(name: str, shape: str) -> None:
    accumulate(name, shape)


@pytest.mark.parametrize("name", ["root of a mean", "rows meet"])
def test_a_loss_that_is_not_linear_in_sums_has_one_microbatch(name: str) -> None:
    with exactness.double_precision():
        graph = captured(name, ACCUMULATED[name])
        with pytest.raises(ValueError, match=r"expected 1, because rows meet in [/\w#]+$"):
            trainer_of(made(ACCUMULATED[name]), graph, plan_of("one stage"))


def test_a_plan_says_what_the_loss_is_over() -> None:
    with exactness.double_precision():
        graph = captured("root of a mean", ACCUMULATED["root of a mean"])
        plan = medley.plan(
            graph, cluster(), global_batch=ROWS, microbatches=3, loss_over="microbatches"
        )
        assert plan.loss_over == "microbatches"
        with pytest.raises(ValueError, match="loss over microbatches: found no number"):
            medley.plan(graph, cluster(), global_batch=ROWS, loss_over="microbatches")
        with pytest.raises(ValueError, match="loss_over: found \"mean\"|loss_over: found 'mean'"):
            medley.plan(graph, cluster(), global_batch=ROWS, loss_over="mean")
