"""Vision-language models train like plain PyTorch, each row with its pictures."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import exactness
import pytest
import test_row_dims
import torch
from torch import Tensor, nn
from vision_models import MODELS, NUMBERS, PICTURE, words_of

import medley
from medley.data.pictures import Pictures
from medley.data.row_dim import row_dim

ROWS = 6
STEPS = 2
RATE = 0.1
QUICK = {("llava", "none in some", "rows"), ("gemma3", "none in some", "rows")}


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    torch.manual_seed(0)
    with exactness.double_precision():
        yield


def _by_hand(graph: medley.Graph) -> str:
    mesh = {"devices": ["a/0/0", "a/1/0"]}
    parts = [{"rows": 4, "lengths": [1, 3]}, {"rows": 2, "lengths": [0, 2]}]
    stage = {"mesh": mesh, "placements": {"*weight": "S(0, even)"}}
    return test_row_dims.text_of([{"microbatches": parts, "stages": [stage]}])


def _rows(graph: medley.Graph) -> str:
    mesh = {"devices": ["a/0/0", "a/1/0", "a/2/0"]}
    parts = [{"rows": ROWS, "lengths": [3, 1, 2]}]
    return test_row_dims.text_of([{"microbatches": parts, "stages": [{"mesh": mesh}]}])


def _pipelines(graph: medley.Graph) -> str:
    two = test_row_dims.stages_of(graph, ["a/0/0", "a/1/0"], [2, 1])
    return test_row_dims.text_of([two, test_row_dims.stages_of(graph, ["a/2/0"], [3])])


def _found(strategy: str) -> Any:
    return lambda graph: medley.plan(graph, exactness.cluster(), strategy, global_batch=ROWS).text


PLANS = {
    "rows": _rows,
    "by hand": _by_hand,
    "pipelines": _pipelines,
    "hap": _found("hap"),
    "autohet": _found("autohet"),
}
_captured: dict[str, tuple[nn.Module, medley.Graph]] = {}


def _made(name: str) -> tuple[nn.Module, medley.Graph]:
    if name not in _captured:
        model, batch = MODELS[name](NUMBERS["unlike"])
        model = model.double()
        _captured[name] = model, medley.capture(model, exactness.to_double(batch))
        assert not _captured[name][1].unchecked
    return _captured[name]


def _case(name: str, numbers: str, plan: str) -> Any:
    is_quick = (name, numbers, plan) in QUICK
    return pytest.param(name, numbers, plan, marks=[] if is_quick else [pytest.mark.slow])


@pytest.mark.parametrize(
    ("name", "numbers", "plan"),
    [_case(name, n, plan) for name in MODELS for n in NUMBERS for plan in PLANS],
)
def test_pictures_go_with_their_rows(name: str, numbers: str, plan: str) -> None:
    model, graph = _made(name)
    batch = exactness.to_double(MODELS[name](NUMBERS[numbers])[1])
    want = exactness.train_eager(model, batch, STEPS, RATE, optimizer_of=_sgd)
    rule = medley.SGD(lr=RATE)
    got = exactness.train_plan(model, graph, PLANS[plan](graph), batch, STEPS, RATE, optimizer=rule)
    unused = want.parameters.keys() - got.parameters.keys()  # in no stage of a pipeline
    assert not unused & want.gradients.keys()
    used = {each: value for each, value in want.parameters.items() if each not in unused}
    worst = exactness.compare(got, dataclasses.replace(want, parameters=used), 1e-9)
    print(f"{name}, {numbers}, {plan}: {worst:.1e}")


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=RATE)


def test_a_row_has_equally_many_pictures_in_the_graph() -> None:
    _, graph = _made("llava")
    shapes = {name: shape for kind, name, _, shape in graph.core.inputs if kind == "batch"}
    dim = row_dim(shapes["pixel_values"])
    assert dim is not None
    assert (dim.dim, dim.elements) == (0, 2)


def _batch(numbers: list[int]) -> dict[str, Tensor]:
    pixels = torch.arange(1.0, sum(numbers) + 1).reshape(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    return {**words_of(numbers, 4), "pixel_values": pixels}


def test_pictures_are_padded_by_row_and_back() -> None:
    batch = _batch([1, 0, 2])
    pictures = Pictures(PICTURE).of(batch)
    assert (pictures.each, pictures.most) == (4, 2)
    padded = pictures.padded(batch, {})
    assert padded["pixel_values"][:, 0, 0, 0].tolist() == [1, 0, 0, 0, 2, 3]
    assert torch.equal(pictures.stripped(padded)["pixel_values"], batch["pixel_values"])
    words = {key: value for key, value in batch.items() if key != "pixel_values"}
    none = words | {"input_ids": torch.ones(3, 14, dtype=torch.long)}
    filled = pictures.padded(none, {"pixel_values": (torch.float32, [3, 2, 2])})
    assert filled["pixel_values"].shape == (6, 3, 2, 2)


def test_pictures_that_do_not_fit_are_refused() -> None:
    pictures = Pictures(PICTURE).of(_batch([1, 0, 1]))
    with pytest.raises(ValueError, match="found a row of 2 pictures, expected at most the 1"):
        pictures.padded(_batch([2, 0, 1]), {})
    wrong = _batch([1, 0, 1])
    wrong["pixel_values"] = wrong["pixel_values"][:1]
    with pytest.raises(ValueError, match="found 1 pictures, expected the 2 that the tokens 60"):
        pictures.padded(wrong, {})
    wrong["pixel_values"] = torch.ones(3, 3, 2, 2)
    with pytest.raises(ValueError, match="found 3 pictures and 8 picture tokens"):
        Pictures(PICTURE).of(wrong)


def test_an_evaluation_and_a_batch_without_pictures() -> None:
    model, graph = _made("llava")
    trainer = medley.Trainer(
        model,
        graph,
        medley.Plan(_rows(graph)),
        medley.SGD(lr=0.0),
        local=True,
        cluster=exactness.cluster(),
    )
    batch = exactness.to_double(MODELS["llava"]([0, 2, 1])[1])
    assert trainer.evaluate(batch)["loss"] == pytest.approx(model(**batch).loss.item(), rel=1e-9)
    words = words_of([0, 0, 0, 0], 4)
    assert trainer.step(words).loss == pytest.approx(model(**words).loss.item(), rel=1e-9)
    trainer.finish()
