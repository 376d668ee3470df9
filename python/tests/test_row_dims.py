"""Batches whose rows are in another dim than the first train like plain PyTorch."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import exactness
import pytest
import torch
from row_models import MODELS
from torch import Tensor, nn

import medley
from medley import _core
from medley.capture import row_dims as row_dims_of_capture
from medley.capture.batch import Batch, read_batch
from medley.data.row_dim import row_dims
from medley.lengths import LengthDims
from medley.whole_tensors import types_of

ROWS = 7
STEPS = 2
RATE = 0.1
QUICK = ["positions", "lstm"]


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    torch.manual_seed(0)
    with exactness.double_precision():
        yield


def text_of(pipelines: list[dict[str, Any]]) -> str:
    """Returns the plan of these pipelines."""
    rows = sum(part["rows"] for each in pipelines for part in each["microbatches"])
    head = {"format": "medley-plan", "version": 1, "global_batch": rows}
    return json.dumps(head | {"pipelines": pipelines})


def stages_of(graph: medley.Graph, devices: list[str], microbatches: list[int]) -> dict[str, Any]:
    """Returns a pipeline of a stage for each device, cut at a place that allows it."""
    stages = [{"mesh": {"devices": [device]}} for device in devices]
    names = [name for name in graph.core.stable_names() if "~" not in name]
    rows = [{"rows": each} for each in microbatches]
    for name in names[len(names) // 4 :] if len(devices) > 1 else [""]:
        cut = [stages[0], *({**each, "first": name} for each in stages[1:])]
        pipeline = {"microbatches": rows, "stages": cut}
        alone = json.dumps(
            {
                "format": "medley-plan",
                "version": 1,
                "global_batch": sum(microbatches),
                "pipelines": [pipeline],
            }
        )
        try:
            _core.communications(graph.core, _core.Plan(alone), exactness.cluster())
            return pipeline
        except ValueError:
            continue
    raise AssertionError("no cut")


def _uneven(graph: medley.Graph) -> str:
    mesh = {"devices": ["a/0/0", "a/1/0", "a/2/0"]}
    return text_of(
        [{"microbatches": [{"rows": 7, "lengths": [4, 1, 2]}], "stages": [{"mesh": mesh}]}]
    )


def _microbatches(graph: medley.Graph) -> str:
    mesh = {"devices": ["a/0/0", "a/1/0"]}
    parts = [{"rows": 4, "lengths": [1, 3]}, {"rows": 3, "lengths": [3, 0]}]
    return text_of([{"microbatches": parts, "stages": [{"mesh": mesh}]}])


def _two_stages(graph: medley.Graph) -> str:
    return text_of([stages_of(graph, ["a/0/0", "a/1/0"], [4, 2, 1])])


def _two_pipelines(graph: medley.Graph) -> str:
    return text_of([stages_of(graph, ["a/0/0", "a/1/0"], [2, 3]), stages_of(graph, ["a/2/0"], [2])])


def _found(strategy: str) -> Callable[[medley.Graph], str]:
    def plan(graph: medley.Graph) -> str:
        return medley.plan(graph, exactness.cluster(), strategy, global_batch=ROWS).text

    return plan


PLANS: dict[str, Callable[[medley.Graph], str]] = {
    "uneven": _uneven,
    "microbatches": _microbatches,
    "two stages": _two_stages,
    "two pipelines": _two_pipelines,
    "hap": _found("hap"),
    "auto": _found("auto"),
}


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Unlike Adam it keeps a gradient of rounding, as of a key's bias, small."""
    return torch.optim.SGD(model.parameters(), lr=RATE)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in MODELS]
)
def test_rows_in_another_dim_train_like_pytorch(name: str, plan: str) -> None:
    model, batch = MODELS[name](ROWS)
    model = model.double()
    batch = exactness.to_double(batch)
    graph = _captured(name, model, batch)
    want = exactness.train_eager(model, batch, STEPS, RATE, optimizer_of=_sgd)
    rule = medley.SGD(lr=RATE)
    got = exactness.train_plan(model, graph, PLANS[plan](graph), batch, STEPS, RATE, optimizer=rule)
    print(f"{name}, {plan}: {exactness.compare(got, want):.1e}")


_graphs: dict[str, medley.Graph] = {}


def _captured(name: str, model: Any, batch: Any) -> medley.Graph:
    if name not in _graphs:
        _graphs[name] = medley.capture(model, batch)
    return _graphs[name]


DIMS: dict[str, list[int | None]] = {
    "positions": [0, 1],
    "masked": [0, 1],
    "lstm": [1, 1],
    "gru": [1, 1],
    "features": [1, 0],
    "translator": [1, 1],
}


@pytest.mark.parametrize("name", MODELS)
def test_rows_are_found(name: str) -> None:
    model, batch = MODELS[name](ROWS)
    found = row_dims(types_of(_captured(name, model.double(), exactness.to_double(batch)).core))
    assert list(found.values()) == DIMS[name]


class Summed(nn.Module):
    """Words and their places, which a batch has for each of three axes."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(16, 8)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        return (self.words(input_ids) + self.places(position_ids).sum(0)).pow(2).mean()


def _places(rows: int, tokens: int) -> dict[str, Tensor]:
    words = torch.randint(0, 11, (rows, tokens))
    return {"input_ids": words, "position_ids": torch.randint(0, 16, (3, rows, tokens))}


# As many axes as rows, as many rows as tokens, both.
@pytest.mark.parametrize("shape", [(7, 5), (3, 5), (5, 5), (3, 3)])
def test_sizes_that_are_equal_by_chance_do_not_hide_the_rows(shape: tuple[int, int]) -> None:
    graph = medley.capture(Summed().double(), _places(*shape))
    assert row_dims(types_of(graph.core)) == {"input_ids": 0, "position_ids": 1}


class Square(nn.Module):
    """Takes a square table with its rows in either dim."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        bias = table.sum() if table.shape[0] == table.shape[1] else table.pow(2).sum()
        return (x * self.weight).pow(2).mean() + bias / table.numel()


def test_a_slow_machine_finds_the_same_rows() -> None:
    batch = read_batch({f"x{i}": torch.zeros(4, 4, 4) for i in range(4)} | {"y": torch.zeros(3, 4)})
    tried = []

    def runs(way: Batch) -> bool:
        tried.append((way.rows, way.dims))
        return len(tried) == 60

    with mock.patch("time.monotonic", side_effect=itertools.count(0, 10).__next__):
        (found,) = row_dims_of_capture.found(batch, {}, runs, True)
    assert (found.rows, found.dims) == tried[59]
    tried.clear()
    assert not list(row_dims_of_capture.found(batch, {}, lambda way: runs(way) and False, True))
    assert len(tried) == 128


def test_rows_are_given_where_several_ways_run() -> None:
    x, table = torch.randn(4, 3), torch.randn(4, 5)
    graph = medley.capture(Square(), {"x": x, "table": table}, rows={"table": None})
    assert row_dims(types_of(graph.core)) == {"x": 0, "table": None}
    with pytest.raises(ValueError, match=r"rows: found 'y', expected one of x, table"):
        medley.capture(Square(), {"x": x, "table": table}, rows={"y": 1})
    with pytest.raises(ValueError, match=r"4 rows in dim 0 of 'x', 5 rows in dim 1 of 'table'"):
        medley.capture(Square(), {"x": x, "table": table}, rows={"x": 0, "table": 1})


def test_sequences_lie_in_dim_0_where_rows_lie_in_dim_1() -> None:
    types = {
        "words": (torch.int64, "[12, b]"),
        "features": (torch.float32, "[12, b, 5]"),
        "weights": (torch.float32, "[12, 5]"),
    }
    dims = LengthDims(types, None)
    assert (dims.planned, dims.dims) == (12, {"words": [0], "features": [0]})


def test_a_loop_over_the_time_is_taken_where_it_is_said() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            state = torch.zeros_like(x[0])
            for each in x:
                state = (self.layer(each) + state).tanh()
            return state.pow(2).mean()

    x = torch.randn(6, 5, 4)
    with pytest.raises(ValueError, match=r'a loop over the rows.*pass rows=\{"x": 1\}'):
        medley.capture(Loop(), {"x": x})
    graph = medley.capture(Loop(), {"x": x}, rows={"x": 1})
    assert row_dims(types_of(graph.core)) == {"x": 1}


def test_a_tensor_with_its_rows_elsewhere_is_named() -> None:
    class Wrong(Summed):
        def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
            return super().forward(input_ids, position_ids[:, :7].view(3, 7, 5))

    with pytest.raises(ValueError) as caught:
        medley.capture(Wrong(), _places(7, 5))
    message = str(caught.value)
    assert "batch['position_ids'] is [3, 7, 5]" in message, message
    assert "rows={'position_ids': 1}" in message and "x.shape[0]" not in message


def test_fewer_rows_evaluation_and_a_loader() -> None:
    model, batch = MODELS["gru"](ROWS)
    model = model.double()
    graph = _captured("gru", model, batch)
    trainer = medley.Trainer(
        model,
        graph,
        medley.Plan(_microbatches(graph)),
        medley.SGD(lr=0.0),
        local=True,
        cluster=exactness.cluster(),
    )
    for rows in (5, 1):
        part = tuple(each[:, :rows] for each in batch)
        assert trainer.step(part).loss == pytest.approx(model(*part).item(), rel=1e-12)
    twice = tuple(torch.cat([each, each[:, :4]], 1) for each in batch)
    assert trainer.evaluate(twice)["loss"] == pytest.approx(model(*twice).item(), rel=1e-12)
    data = list(zip(*(each.unbind(1) for each in batch), strict=True))

    def collate(rows: list[Any]) -> list[Tensor]:
        return [torch.stack(each, 1) for each in zip(*rows, strict=True)]

    for each in medley.Loader(trainer.plan, data, collate=collate):
        assert trainer.step(each).loss == pytest.approx(model(*batch).item(), rel=1e-12)
    with pytest.raises(ValueError, match="found 8 rows in dim 1, expected 7 or fewer"):
        trainer.step(tuple(torch.cat([each, each[:, :1]], 1) for each in batch))
    trainer.finish()
