"""A batch of fewer rows than planned is a normal step: it trains like that batch on one device,
under any plan."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

import exactness
import pytest
import test_pipelines as pipelines
import torch
from torch import Tensor, nn
from zoo import ZOO

import medley
from medley import _testing, custom_ops
from medley.capture import substitute
from medley.data.inputs import Size
from medley.sizes import Sizes

ROWS = exactness.ROWS
SIZES = (6, 4, 1, 6, 2)  # sizes of the batches of a run
LEARNING_RATE = 1e-3


def rows_of(batch: Any, rows: int) -> Any:
    """Returns the first rows of a batch."""
    if isinstance(batch, Tensor):
        return batch[:rows] if batch.dim() and len(batch) == ROWS else batch
    if isinstance(batch, Mapping):
        return {name: rows_of(value, rows) for name, value in batch.items()}
    return type(batch)(rows_of(value, rows) for value in batch)


def train_eager(model: nn.Module, batches: Sequence[Any]) -> exactness.Curve:
    """Trains a copy of the model with plain PyTorch on one batch after the other."""
    model = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    curve = exactness.Curve([], {}, {})
    for step, batch in enumerate(batches):
        custom_ops.set_rng(0, step)
        optimizer.zero_grad()
        with substitute(model):
            loss = exactness.loss_of(exactness.call(model, batch))
            loss.backward()  # type: ignore[no-untyped-call]
        curve.losses.append(loss.item())
        optimizer.step()
    for name, value in model.named_parameters():
        curve.parameters[name] = value.detach().clone()
        if value.grad is not None:
            curve.gradients[name] = value.grad.clone()
    return curve


def trainer_of(
    model: nn.Module, graph: medley.Graph, plan: str, lengths: medley.Lengths | None = None
) -> medley.Trainer:
    """Returns the trainer of a plan over threads."""
    return medley.Trainer(
        model,
        graph,
        medley.Plan(plan),
        medley.AdamW(lr=LEARNING_RATE, weight_decay=0.01),
        local=True,
        cluster=exactness.cluster(7),
        lengths=lengths,
    )


def check_batches(
    name: str,
    model: nn.Module,
    graph: medley.Graph,
    plans: Sequence[str],
    batches: Sequence[Any],
    lengths: medley.Lengths | None = None,
) -> medley.Trainer:
    """Asserts that plans train like plain PyTorch on these batches. Returns the last trainer."""
    want = train_eager(model, batches)
    for plan in plans:
        trainer = trainer_of(model, graph, plan, lengths)
        losses = []
        for each in batches:
            losses.append(trainer.step(each).loss)
            assert not trainer.engine.run.disagreements()
        got = exactness.Curve(losses, trainer.gradients(), trainer.parameters())
        print(f"{name}: {exactness.compare(got, want, model=name):.1e}")
    return trainer


def check(name: str, plans: Sequence[str]) -> None:
    """Asserts that plans train like plain PyTorch on batches of different sizes."""
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        check_batches(name, model, graph, plans, [rows_of(batch, rows) for rows in SIZES])


def graph_of(name: str) -> medley.Graph:
    """Returns the graph of a model of the zoo in double precision."""
    with exactness.double_precision():
        return exactness.captured(ZOO[name], ROWS)[2]


def test_random_plans() -> None:
    check("moe", [exactness.random_plan(graph_of("moe"), 1, ROWS, devices=3)])


def test_random_pipelines() -> None:
    text = graph_of("gpt-dropout").core.text()
    devices = [f"a/{i}/0" for i in range(5)]
    check("gpt-dropout", [_testing.random_pipelines(text, devices, ROWS, 2)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name for name in ZOO if name not in ("resnet", "vgg-bn", "hf-mixtral-balanced")]
)
def test_every_model(name: str) -> None:
    graph = graph_of(name)
    text, devices = graph.core.text(), [f"a/{i}/0" for i in range(5)]
    plans = [exactness.random_plan(graph, seed, ROWS, devices=2 + seed % 3) for seed in range(4)]
    plans += [_testing.random_pipelines(text, devices, ROWS, seed) for seed in range(1, 7)]
    check(name, plans)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in pipelines.CASES if name != "50 steps"])
def test_every_pipeline(name: str) -> None:
    case = pipelines.CASES[name]
    check(case.model, [pipelines.plan_of(case, graph_of(case.model))])


def whole_batches(microbatches: int, alone: bool = False) -> str:
    """Returns a plan of one device with this many micro-batches. `alone`: each is a batch."""
    return json.dumps(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "loss_over": "microbatches" if alone else "batch",
            "pipelines": [
                {
                    "microbatches": [{"rows": ROWS // microbatches}] * microbatches,
                    "stages": [{"mesh": {"devices": ["a/0/0"]}}],
                }
            ],
        }
    )


def test_batch_norm_learns_from_the_rows_that_there_are() -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["vgg-bn"], ROWS)
        batches = [rows_of(batch, rows) for rows in (6, 4, 6)]
        check_batches("vgg-bn", model, graph, [whole_batches(1)], batches)
        trainer = trainer_of(model, graph, whole_batches(3, alone=True))
        with pytest.raises(ValueError, match="batch: found 2 rows, expected one at least for each"):
            trainer.step(rows_of(batch, 2))


def test_more_rows_are_refused() -> None:
    model, batch = ZOO["mlp"](batch=ROWS)
    trainer = trainer_of(model, medley.capture(model, batch), whole_batches(2))
    more = {name: torch.cat([value, value]) for name, value in batch.items()}
    with pytest.raises(ValueError, match="found 12 rows, expected 6 or fewer"):
        trainer.step(more)
    with pytest.raises(ValueError, match="found 0 rows, expected 6 or fewer"):
        trainer.step(rows_of(batch, 0))


def test_a_loader_yields_what_is_left() -> None:
    model, batch = ZOO["mlp"](batch=ROWS)
    graph = medley.capture(model, batch)
    data = [{name: value[row] * (1 + row) for name, value in batch.items()} for row in range(ROWS)]
    data += data[:3]
    trainer = trainer_of(model, graph, whole_batches(2))
    other = trainer_of(model, graph, whole_batches(1))
    loader = medley.Loader(trainer.plan, data)
    assert len(loader) == 2
    losses = [trainer.step(each).loss for each in loader]
    whole = [torch.utils.data.default_collate(data[first : first + ROWS]) for first in (0, ROWS)]
    assert losses == pytest.approx([other.step(each).loss for each in whole], rel=1e-6)
    assert len(medley.Loader(trainer.plan, data, drop_last=True)) == 1


class Job:
    """Processes that compute these numbers of rows of a whole batch of six."""

    def __init__(self, counts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        self.published: list[list[str]] = [[] for _ in counts]  # by rank
        self.asked = 0  # exchanges
        self.sizes = [Sizes(self, None, Size(ROWS, 0), rank, None) for rank in range(len(counts))]  # type: ignore[arg-type]
        for each in self.sizes:
            each._counts = [max(1, count) for count in counts]
        monkeypatch.setattr("medley.run.exchange.texts", self.texts)

    def begin(self, call: str) -> None:
        """Begins a call of a run."""

    def end(self) -> None:
        """Ends a call of a run."""

    def texts(self, own: str) -> list[str]:
        """Returns the texts of all processes, after each has given its own."""
        self.said.append(own)
        if self.round == 0:
            raise StopIteration
        return self.all

    def agree(self, given: list[int], identical: bool) -> list[int] | str:
        """Returns the rows of the batch for each process, given the rows that it received."""
        self.said: list[str] = []
        for self.round in range(2):
            self.all, self.said = self.said, []
            found = []
            for rank, (sizes, rows) in enumerate(zip(self.sizes, given, strict=True)):
                try:
                    found.append(sizes.agreed(rows, lambda r=rank: "" if identical else str(r)))  # type: ignore[misc]
                except StopIteration:
                    pass
                except ValueError as error:
                    return str(error)
            if not self.said:
                break
            # An exchange needs at least two processes.
            assert len(self.said) == len(given)
        return found


def test_own_rows_differ_from_a_batch_of_equal_size(monkeypatch: pytest.MonkeyPatch) -> None:
    for counts in ([3, 3], [5, 5, 3], [6, 3, 3], [6, 0, 6], [4, 2], [6, 6]):
        job, all = Job(counts, monkeypatch), len(counts)
        for rows in (6, 3, 1, 5, 6):
            assert job.agree([rows] * all, identical=True) == [rows] * all, counts
        own = [max(1, count) for count in counts]
        for given in (own, [6] * all, own):
            assert job.agree(given, identical=False) == [6] * all, counts
    job = Job([4, 2], monkeypatch)
    assert "found 3, 1 rows in the processes, expected the same number" in job.agree([3, 1], False)
