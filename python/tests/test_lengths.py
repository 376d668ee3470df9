"""Batches of shorter sequences than the planned ones train like them on one device."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import exactness
import pytest
import test_compute_types as types
import torch
from test_evaluation import eager
from test_fewer_rows import ROWS, check_batches, graph_of, rows_of, trainer_of, whole_batches
from test_pipelines import cuts
from torch import Tensor, nn
from zoo import ZOO

import medley
from medley import _testing
from medley_extras import models

NEAR = 1e-10


def cut(batch: Any, length: int, planned: int) -> Any:
    """Returns the batch with sequences of this length."""
    if isinstance(batch, Tensor):
        for dim in range(1, batch.dim()):
            if batch.shape[dim] == planned:
                batch = batch.narrow(dim, 0, length).contiguous()
        return batch
    return {name: cut(value, length, planned) for name, value in batch.items()}


def planned_length(batch: dict[str, Tensor]) -> int:
    """Returns the length of the sequences of a batch."""
    return next(value.shape[1] for value in batch.values() if value.dtype == torch.int64)


def check(name: str, plans: Sequence[str], sizes: Sequence[tuple[int, int]]) -> None:
    """Asserts that a model of the zoo trains on batches of these (rows, tokens) as on one
    device."""
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        longest = planned_length(batch)
        batches = [cut(rows_of(batch, rows), length, longest) for rows, length in sizes]
        check_batches(name, model, graph, plans, batches)


def pipelines_of(graph: medley.Graph) -> str:
    """Returns a plan of several pipelines."""
    devices = [f"a/{i}/0" for i in range(4)]
    return _testing.random_pipelines(graph.core.text(), devices, ROWS, 2)


def test_any_length_under_several_pipelines() -> None:
    plan = pipelines_of(graph_of("gpt-dropout"))
    check("gpt-dropout", [plan], [(6, 16), (6, 7), (4, 7), (6, 16), (2, 7)])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["gpt", "llama", "moe", "bert", "hf-gpt2", "hf-bert", "hf-llama", "hf-mixtral", "hf-qwen3-moe"],
)
def test_any_length_of_every_model(name: str) -> None:
    graph = graph_of(name)
    longest = planned_length(ZOO[name](batch=ROWS)[1])
    sizes = [(6, longest), (6, longest // 2), (4, longest - 3), (6, longest // 2), (2, 5)]
    check(name, [exactness.random_plan(graph, 1, ROWS, devices=3), pipelines_of(graph)], sizes)


def test_lengths_are_padded_up_to_buckets() -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["gpt"], ROWS)
        longest = planned_length(batch)
        plan = exactness.random_plan(graph, 1, ROWS, devices=3)
        batches = [cut(batch, length, longest) for length in (5, longest, 7)]
        trainer = check_batches(
            "gpt", model, graph, [plan], batches, medley.Lengths(buckets=[8, longest])
        )
        assert trainer.engine._sizes is not None and len(trainer.engine._sizes._numbers) == 2


@pytest.mark.slow
def test_evaluating_may_begin_with_a_short_one() -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["gpt"], ROWS)
        trainer = trainer_of(model, graph, exactness.random_plan(graph, 1, ROWS, devices=3))
        for length in (6, planned_length(batch)):
            part = cut(batch, length, planned_length(batch))
            want = exactness.loss_of(eager(trainer, model, part)).item()
            assert trainer.evaluate(part)["loss"] == pytest.approx(want, rel=NEAR)


def test_missing_length_is_refused() -> None:
    model, batch = ZOO["gpt"](batch=ROWS)
    graph = medley.capture(model, batch)
    trainer = trainer_of(model, graph, whole_batches(1))
    longest = planned_length(batch)
    longer = {name: torch.cat([value, value], 1) for name, value in batch.items()}
    with pytest.raises(ValueError, match=f"found a length of {2 * longest}, expected at most"):
        trainer.step(longer)
    names = list(batch)
    uneven = {**batch, names[0]: batch[names[0]][:, :4]}
    with pytest.raises(ValueError, match="expected one length"):
        trainer.step(uneven)
    with pytest.raises(ValueError, match="buckets: found .*, expected lengths from 1 to"):
        medley.Trainer(
            model,
            graph,
            trainer.plan,
            local=True,
            cluster=exactness.cluster(7),
            lengths=medley.Lengths(buckets=[2 * longest]),
        )
    with pytest.raises(ValueError, match="dynamic: found 'x', expected one of"):
        medley.Trainer(
            model,
            graph,
            trainer.plan,
            local=True,
            cluster=exactness.cluster(7),
            lengths=medley.Lengths(dynamic={"x": {1: "length"}}),
        )


class Sliced(nn.Module):
    """Adds the first positions of a parameter, as minGPT and ViT do, and masks with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.positions = nn.Parameter(torch.randn(1, 8, 4))
        self.heads = nn.Parameter(torch.randn(8, 2))
        self.register_buffer("mask", torch.tril(torch.ones(8, 8, dtype=torch.bool)))

    def forward(self, input_ids: Tensor) -> Tensor:
        """Returns the loss."""
        length = input_ids.shape[1]
        x = self.embedding(input_ids) + self.positions[:, :length, :]
        x = x * self.heads[:length].sum(1, keepdim=True)
        scores = (x @ x.mT).masked_fill(~self.mask[:length, :length], -torch.inf)
        return (scores.softmax(-1) @ x).square().mean()


def test_parameter_of_all_positions_takes_fewer() -> None:
    """Asserts that shorter batches are divided and recomputed as the planned ones, even if another
    choice is cheaper at their length."""
    with exactness.double_precision():
        torch.manual_seed(0)
        model, batch = Sliced(), {"input_ids": torch.randint(0, 11, (ROWS, 8))}
        graph = medley.capture(model, batch)
        batches = [cut(batch, length, 8) for length in (8, 5, 2, 8)]
        plans = [exactness.random_plan(graph, seed, ROWS, devices=3) for seed in (2, 5)]
        trainer = check_batches("sliced", model, graph, [*plans, pipelines_of(graph)], batches)
        with pytest.raises(ValueError, match="length 1, expected at least 2; .*buckets="):
            trainer.step(cut(batch, 1, 8))


class Positions(nn.Module):
    """Multiplies by a weight per position, and needs all positions."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4)
        self.weight = nn.Parameter(torch.ones(8, 1))

    def forward(self, input_ids: Tensor) -> Tensor:
        """Returns the loss."""
        x = self.embedding(input_ids)
        if input_ids.shape[1] < 8:
            x = torch.nn.functional.pad(x, (0, 0, 0, 8 - input_ids.shape[1]))
        return (x * self.weight).square().mean()


def test_a_model_that_does_other_things_at_other_lengths_is_refused() -> None:
    model, batch = Positions(), {"input_ids": torch.randint(0, 11, (ROWS, 8))}
    trainer = trainer_of(model, medley.capture(model, batch), whole_batches(1))
    with pytest.raises(ValueError, match="batch of length 5: graph: .*expected the same but for"):
        trainer.step({"input_ids": batch["input_ids"][:, :5]})


@pytest.mark.slow
def test_devices_that_compute_in_three_types_take_other_sizes() -> None:
    torch.manual_seed(0)
    model, batch = ZOO["gpt"](batch=types.ROWS)
    graph = medley.capture(model, batch, check=False, autocast=torch.bfloat16)
    trainer = types.trainer_of(model, graph, types.plan_of("rows"))
    for rows, length in ((types.ROWS, planned_length(batch)), (types.ROWS, 9), (3, 9)):
        part = {name: value[:rows, :length] for name, value in batch.items()}
        with torch.autocast("cpu", torch.bfloat16):
            want = eager(trainer, model, part).item()
        assert trainer.evaluate(part)["loss"] == pytest.approx(want, rel=1e-2)
        assert trainer.step(part).loss == pytest.approx(want, rel=1e-2)
        assert not trainer.engine.run.disagreements()
    assert trainer.loss_scale == 65536


@pytest.mark.slow
def test_two_hundred_steps_of_random_lengths_on_three_unlike_devices() -> None:
    rng = random.Random(5)
    with exactness.double_precision():
        torch.manual_seed(0)
        model, batch = models.gpt(batch=8, positions=512, width=32, layers=2, heads=2)
        model = model.double()
        graph = medley.capture(model, batch)
        lengths = [rng.randint(64, 512) for _ in range(199)] + [rng.randint(64, 512)]
        batches = []
        for step, length in enumerate(lengths):
            rows = 3 if step == 199 else 8
            batches.append({name: value[:rows, :length] for name, value in batch.items()})
        plan = medley.Plan.from_dict(
            {
                "format": "medley-plan",
                "version": 1,
                "global_batch": 8,
                "pipelines": [
                    {
                        "microbatches": [{"rows": 4, "lengths": [3, 1]}] * 2,
                        "stages": [
                            {"mesh": {"devices": ["a/0/0", "a/1/0"]}},
                            {"mesh": {"devices": ["a/2/0"]}, "first": cuts(graph, 2)[0]},
                        ],
                    }
                ],
            }
        )
        trainer = check_batches(
            "gpt", model, graph, [plan.text], batches, medley.Lengths(buckets=[64, 128, 256, 512])
        )
        assert trainer.engine._sizes is not None and len(trainer.engine._sizes._numbers) <= 6
