"""Optimizers that users write, moments in eight bits, and averages of the weights, on shards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch
from test_optimizers import ROWS, STEPS, plan_of
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from zoo import ZOO
from zoo_names import names_but

import medley
from medley.capture import substitute
from medley.optimizer import pointwise
from medley_extras import models

Theirs = Callable[[nn.Module], Any]
KINDS = ("zero", "tensor", "owners", "1", "2")  # of plans


def rmsprop(x: Tensor, grad: Tensor, square: Tensor, *, lr: Any, step: Any, alpha: float) -> Any:
    """Equals torch.optim.RMSprop. Changes its state in place."""
    square.mul_(alpha).addcmul_(grad, grad, value=1 - alpha)
    return x - lr * grad / (square.sqrt() + 1e-8), square


def nadam(
    x: Tensor,
    grad: Tensor,
    average: Tensor,
    square: Tensor,
    product: Tensor,
    *,
    lr: Any,
    step: Any,
    beta1: float,
    beta2: float,
) -> Any:
    """Equals torch.optim.NAdam. `product` is the product of the momenta less 1."""
    mu, mu_next = (beta1 * (1 - 0.5 * 0.96 ** ((step + k) * 0.004)) for k in (0, 1))
    product = (product + 1) * mu - 1
    average = torch.lerp(average, grad, 1 - beta1)
    square = beta2 * square + (1 - beta2) * grad * grad
    divisor = (square / (1 - beta2**step)).sqrt() + 1e-8
    x = x - lr * (1 - mu) / (-product) * grad / divisor
    x = x - lr * mu_next / (1 - (product + 1) * mu_next) * average / divisor
    return x, average, square, product


CASES: dict[str, tuple[medley.optimizer.Optimizer, Theirs]] = {
    "rmsprop": (
        pointwise(rmsprop, state=["square"], hyper={"alpha": 0.9}, lr=1e-3),
        lambda m: torch.optim.RMSprop(m.parameters(), 1e-3, alpha=0.9),
    ),
    "nadam": (
        pointwise(
            nadam,
            state=["average_of_grad", "square", "product"],
            hyper={"beta1": 0.9, "beta2": 0.95},
            lr=1e-3,
        ),
        lambda m: torch.optim.NAdam(m.parameters(), 1e-3, betas=(0.9, 0.95)),
    ),
    "plain": (
        pointwise(lambda x, grad, *, lr, step: x - lr * grad, lr=1e-2),
        lambda m: torch.optim.SGD(m.parameters(), 1e-2),
    ),
}


def check(
    ours: medley.optimizer.Optimizer, theirs: Theirs, kinds: list[str], limit: float = 1e-10
) -> None:
    """Asserts that an optimizer equals that of PyTorch under plans of these kinds."""
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["gpt"], ROWS)
        want = exactness.train_eager(model, batch, STEPS, 0.0, optimizer_of=theirs)
        for kind in kinds:
            plan = plan_of(kind, graph, ours)
            got = exactness.train_plan(model, graph, plan, batch, STEPS, 0.0, optimizer=ours)
            worst = exactness.compare(got, want, limit)
            print(f"{kind}: {worst:.1e}")


@pytest.mark.parametrize(
    "name", ["nadam", *(pytest.param(n, marks=pytest.mark.slow) for n in CASES if n != "nadam")]
)
def test_user_optimizer_is_exact_on_shards(name: str) -> None:
    check(*CASES[name], ["owners"])


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_user_optimizer_is_exact_under_any_plan(name: str) -> None:
    check(*CASES[name], ["zero", "tensor", "1", "2", "3"])


def test_function_of_several_elements_is_refused() -> None:
    def normalized(x: Tensor, grad: Tensor, *, lr: Any, step: Any) -> Tensor:
        return x - lr * grad / grad.norm()

    def halves(x: Tensor, grad: Tensor, *, lr: Any, step: Any) -> Tensor:
        return x[::2]

    model, batch = ZOO["mlp"]()
    graph = medley.capture(model, batch)
    for function, what in [
        (normalized, "found a result that depends on other elements"),
        (halves, r"found torch.float32 of shape \[2\]"),
        (lambda x, grad, *, lr, step: (x, grad), "found 2 results, expected 1: x and"),
    ]:
        with pytest.raises(ValueError, match=what):
            pointwise(function).core(graph.core)
    with pytest.raises(ValueError, match="state: found 'master', expected names"):
        pointwise(rmsprop, state=["master"])


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Returns PyTorch's AdamW."""
    return torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)


EIGHT_BITS = medley.AdamW8bit(lr=1e-3)


def compare_eight_bits(kinds: list[str]) -> None:
    """Asserts that 8-bit moments train like those of PyTorch, within 1e-2."""
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["gpt"], ROWS)
        want = exactness.train_eager(model, batch, STEPS, 0.0, optimizer_of=adamw)
        for kind in kinds:
            plan = plan_of(kind, graph, EIGHT_BITS)
            got = exactness.train_plan(model, graph, plan, batch, STEPS, 0.0, optimizer=EIGHT_BITS)
            for a, b in zip(got.losses, want.losses, strict=True):
                assert abs(a - b) <= 1e-2 * abs(b), (got.losses, want.losses)
            worst = max(
                ((got.parameters[name] - tensor).norm() / tensor.norm().clamp_min(1e-2)).item()
                for name, tensor in want.parameters.items()
            )
            print(f"8 bits, {kind}: parameters differ by {worst:.1e} of their norm")
            assert worst <= 1e-2


def test_eight_bits_are_within_a_hundredth() -> None:
    compare_eight_bits(["zero"])


@pytest.mark.slow
def test_eight_bits_are_within_a_hundredth_under_any_plan() -> None:
    compare_eight_bits(["tensor", "owners", "1"])


def test_eight_bits_take_a_quarter_of_the_memory() -> None:
    model, batch = models.mlp(inputs=64, width=64, batch=ROWS)
    graph = medley.capture(model, batch)
    kept = {}
    for optimizer in (medley.AdamW(), EIGHT_BITS):
        trainer = medley.Trainer(
            model,
            graph,
            medley.Plan(plan_of("zero", graph)),
            optimizer,
            local=True,
            cluster=exactness.cluster(),
        )
        run = trainer.engine.run
        kept[optimizer.kind] = sum(
            run.shard(kind, name, i).nbytes
            for kind, name in run.values
            if kind == "state"
            for i in range(2)
        )
    assert kept["adamw8"] <= 0.32 * kept["adamw"], kept


def averaged(model: nn.Module, batch: Any, first: int | None = None) -> dict[str, Tensor]:
    """Returns the result of swa_utils: averages from the start, or of the weights before a step."""

    model = copy.deepcopy(model)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = adamw(model)
    for step in range(STEPS):
        if step == first:
            average.update_parameters(model)
        optimizer.zero_grad()
        with substitute(model):
            loss = exactness.loss_of(exactness.call(model, batch))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if step >= (first or 0):
            average.update_parameters(model)
    return dict(average.module.named_parameters())


def train_averaged(
    model: nn.Module, graph: medley.Graph, plan: str, average: float | None = 0.9
) -> medley.Trainer:
    """Returns a trainer that keeps averages, or none."""
    optimizer = medley.AdamW(lr=1e-3, weight_decay=0.01, average=average)
    return medley.Trainer(
        model,
        graph,
        medley.Plan(plan),
        optimizer,
        local=True,
        cluster=exactness.cluster(),
    )


@pytest.mark.parametrize("kind", names_but(set(KINDS) - {"zero"}, KINDS))
def test_averages_are_those_of_swa_utils(kind: str, tmp_path: Path) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["gpt"], ROWS)
        want = averaged(model, batch)
        plan = plan_of(kind, graph)
        trainer = train_averaged(model, graph, plan)
        for step in range(STEPS):
            if step == 2:  # the rest after a restart
                trainer.save(tmp_path)
                trainer = train_averaged(model, graph, plan)
                trainer.load(tmp_path)
            trainer.step(batch)
        compare_averages(trainer.averages(), want, kind)


def compare_averages(got: dict[str, Tensor], want: dict[str, Tensor], what: str) -> None:
    """Asserts that averages are the same to rounding."""
    worst = 0.0
    for name, tensor in want.items():
        difference = (got[name] - tensor).abs().max().item()
        worst = max(worst, difference / tensor.abs().max().item())
    print(f"{what}: {worst:.1e}")
    assert worst <= 1e-10


@pytest.mark.parametrize("kind", names_but(set(KINDS) - {"owners"}, KINDS))
def test_averages_start_at_a_resume_from_the_weights(kind: str, tmp_path: Path) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["gpt"], ROWS)
        want = averaged(model, batch, first=2)
        plan = plan_of(kind, graph)
        trainer = train_averaged(model, graph, plan, average=None)
        for _ in range(2):
            trainer.step(batch)
        trainer.save(tmp_path)
        trainer = train_averaged(model, graph, plan)
        assert trainer.resume(tmp_path) is not None
        for _ in range(2, STEPS):
            trainer.step(batch)
        compare_averages(trainer.averages(), want, kind)
        trainer.save(tmp_path)
        with pytest.raises(ValueError, match='state "average:.*expected none: the run has no such'):
            train_averaged(model, graph, plan, average=None).resume(tmp_path)


def test_averages_of_sixteen_bits_start_from_the_master_copy(tmp_path: Path) -> None:
    model, batch = models.mlp(inputs=8, width=8, batch=ROWS)
    model.to(torch.bfloat16)
    batch = {n: t.to(torch.bfloat16) if t.is_floating_point() else t for n, t in batch.items()}
    graph = medley.capture(model, batch)
    plan = plan_of("tensor", graph)
    trainer = train_averaged(model, graph, plan, average=None)
    trainer.step(batch)
    trainer.save(tmp_path)
    again = train_averaged(model, graph, plan)
    again.resume(tmp_path)
    for name, average in again.averages().items():
        assert average.dtype == torch.float32
        assert torch.equal(average.bfloat16(), trainer.parameters()[name])
    assert any((a.bfloat16() != a).any() for a in again.averages().values())
