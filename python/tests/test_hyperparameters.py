"""Every hyperparameter may be a function of the step, and a scheduler of PyTorch is one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import by_step
import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers

import medley


def falling(value: float) -> Callable[[int], float]:
    """Returns a function of the step."""
    return lambda step: value * (1 - 0.01 * step)


def now_and_then(value: float) -> Callable[[int], float]:
    """Returns a function of the step that is zero in every third."""
    return lambda step: value if step % 3 else 0.0


def two_betas(step: int) -> tuple[float, float]:
    """Returns both betas of a step."""
    return 0.9 - 0.004 * step, 0.95 + 0.0005 * step


def clipped(model: nn.Module, step: int) -> None:
    """Clips by a norm that grows."""
    nn.utils.clip_grad_norm_(model.parameters(), 0.01 * (step + 1))


def decayed(x: Tensor, grad: Tensor, *, lr: Any, step: Any, decay: Any, scale: float) -> Tensor:
    """A step with a decay."""
    return x - lr * scale * (grad + decay * x)


RATES = falling(1e-2)
CASES: dict[str, tuple[medley.optimizer.Optimizer, Any, dict[str, Any]]] = {
    "adamw": (
        medley.AdamW(
            lr=RATES,
            betas=(lambda step: two_betas(step)[0], lambda step: two_betas(step)[1]),
            eps=falling(1e-6),
            weight_decay=falling(0.1),
            max_norm=lambda step: 0.01 * (step + 1),
        ),
        torch.optim.AdamW,
        {
            "by_step": {
                "lr": RATES,
                "betas": two_betas,
                "eps": falling(1e-6),
                "weight_decay": falling(0.1),
            },
            "clip": clipped,
        },
    ),
    "adam": (
        medley.Adam(lr=RATES, betas=two_betas, weight_decay=falling(0.1)),
        torch.optim.Adam,
        {"by_step": {"lr": RATES, "betas": two_betas, "weight_decay": falling(0.1)}},
    ),
    "sgd": (
        medley.SGD(lr=RATES, momentum=now_and_then(0.9), weight_decay=falling(0.1)),
        lambda p: torch.optim.SGD(p, momentum=0.9),
        {"by_step": {"lr": RATES, "momentum": now_and_then(0.9), "weight_decay": falling(0.1)}},
    ),
    "adafactor": (
        medley.Adafactor(lr=RATES, weight_decay=falling(0.1), d=falling(1.0)),
        torch.optim.Adafactor,
        {"by_step": {"lr": RATES, "weight_decay": falling(0.1), "d": falling(1.0)}},
    ),
    "pointwise": (
        medley.optimizer.pointwise(decayed, hyper={"decay": falling(0.1), "scale": 0.5}, lr=0.1),
        lambda p: torch.optim.SGD(p, 0.05),
        {"by_step": {"weight_decay": falling(0.1)}},
    ),
}


def check(name: str, kinds: tuple[str, ...]) -> None:
    ours, theirs, options = CASES[name]
    by_step.check(ours, lambda m: theirs(m.parameters()), kinds, **options)


@pytest.mark.parametrize("name", ["adamw", "sgd", "pointwise"])
def test_hyperparameters_follow_the_step(name: str) -> None:
    check(name, ("owners",))


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_hyperparameters_follow_the_step_under_any_plan(name: str) -> None:
    check(name, by_step.KINDS)


def test_groups_have_functions_of_their_own() -> None:
    def matrices(name: str, shape: tuple[int, ...]) -> bool:
        return len(shape) >= 2

    ours = medley.Groups(
        groups=[
            (matrices, medley.AdamW(lr=1e-2, weight_decay=falling(0.1))),
            ("*", medley.AdamW(lr=RATES, weight_decay=0.0, betas=two_betas)),
        ],
    )

    def theirs(model: nn.Module) -> Any:
        split = [[p for p in model.parameters() if (p.dim() >= 2) == wanted] for wanted in (1, 0)]
        optimizer = torch.optim.AdamW(
            [{"params": split[0], "lr": 1e-2}, {"params": split[1], "weight_decay": 0.0}]
        )
        inner, step = optimizer.step, [0]

        def stepped() -> None:
            optimizer.param_groups[0]["weight_decay"] = falling(0.1)(step[0])
            optimizer.param_groups[1].update(lr=RATES(step[0]), betas=two_betas(step[0]))
            step[0] += 1
            inner()

        optimizer.step = stepped  # type: ignore[method-assign,assignment]
        return optimizer

    by_step.check(ours, theirs, ("owners", "1"))


def test_a_resumed_run_has_the_numbers_of_its_step(tmp_path: Any) -> None:
    ours, theirs, options = CASES["adamw"]
    with by_step.exactness.double_precision():
        model, batch, graph = by_step.made()
        want, _ = by_step.train_torch(model, batch, lambda m: theirs(m.parameters()), **options)
        trainer = by_step.trainer_of(model, graph, ours, "zero")
        for step in range(by_step.STEPS):
            if step == 20:
                trainer.save(tmp_path)
                trainer = by_step.trainer_of(model, graph, ours, "owners")
                assert trainer.resume(tmp_path) is not None
            trainer.step(batch)
        wanted = {name: p.detach() for name, p in want.named_parameters()}
        by_step.compare(trainer.parameters(), wanted)


def test_a_number_that_is_none_is_refused_in_its_step() -> None:
    with pytest.raises(ValueError, match="AdamW: weight_decay: found -1, expected .*, in step 3"):
        medley.AdamW(weight_decay=lambda step: 2 - step).scalars(3)
    with pytest.raises(ValueError, match="SGD: momentum: found nan, expected .*, in step 0"):
        medley.SGD(momentum=lambda step: math.nan).scalars(0)
    with pytest.raises(ValueError, match="Adam: max_norm: found None in step 2"):
        medley.Adam(max_norm=lambda step: None).scalars(2)


# --- schedulers of PyTorch ---

SGD = lambda p: torch.optim.SGD(p, 0.1, momentum=0.9)  # noqa: E731
ADAMW = lambda p: torch.optim.AdamW(p, 1e-2)  # noqa: E731
SCHEDULERS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "LambdaLR": (SGD, lambda o: schedulers.LambdaLR(o, lambda step: 0.95**step)),
    "MultiplicativeLR": (SGD, lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.95)),
    "StepLR": (SGD, lambda o: schedulers.StepLR(o, 7)),
    "MultiStepLR": (SGD, lambda o: schedulers.MultiStepLR(o, [5, 20])),
    "ConstantLR": (SGD, lambda o: schedulers.ConstantLR(o, 0.5, 10)),
    "LinearLR": (ADAMW, lambda o: schedulers.LinearLR(o, 0.1, 1.0, 12)),
    "ExponentialLR": (SGD, lambda o: schedulers.ExponentialLR(o, 0.95)),
    "PolynomialLR": (SGD, lambda o: schedulers.PolynomialLR(o, 30, 2.0)),
    "CosineAnnealingLR": (ADAMW, lambda o: schedulers.CosineAnnealingLR(o, 20)),
    "CosineAnnealingWarmRestarts": (
        SGD,
        lambda o: schedulers.CosineAnnealingWarmRestarts(o, 5, 2),
    ),
    "CyclicLR": (SGD, lambda o: schedulers.CyclicLR(o, 1e-3, 0.1, 6, mode="exp_range", gamma=0.99)),
    "OneCycleLR": (SGD, lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=50)),
    "OneCycleLR of AdamW": (ADAMW, lambda o: schedulers.OneCycleLR(o, 0.01, total_steps=50)),
    "SequentialLR": (
        SGD,
        lambda o: schedulers.SequentialLR(
            o,
            [schedulers.LinearLR(o, 0.1, 1.0, 10), schedulers.CosineAnnealingLR(o, 40)],
            milestones=[10],
        ),
    ),
    "ChainedScheduler": (
        SGD,
        lambda o: schedulers.ChainedScheduler(
            [schedulers.ConstantLR(o, 0.1, 5), schedulers.ExponentialLR(o, 0.97)]
        ),
    ),
    "SWALR": (SGD, lambda o: torch.optim.swa_utils.SWALR(o, 0.02, 9)),
}


def check_scheduler(name: str, kinds: tuple[str, ...]) -> None:
    """Asserts that an optimizer with a scheduler trains as PyTorch's with it."""
    optimizer_of, scheduler_of = SCHEDULERS[name]
    held: list[Any] = []

    def theirs(model: nn.Module) -> Any:
        optimizer = optimizer_of(model.parameters())
        held[:] = [scheduler_of(optimizer)]
        return optimizer

    scheduler = scheduler_of(optimizer_of([nn.Parameter(torch.zeros(3))]))
    ours: Any
    if optimizer_of is ADAMW:
        ours = medley.AdamW(lr=scheduler)
    else:
        ours = medley.SGD(lr=scheduler, momentum=0.9)
    by_step.check(ours, theirs, kinds, each=lambda model, step: held[0].step())


@pytest.mark.parametrize("name", ["OneCycleLR", "ChainedScheduler"])
def test_schedulers_of_pytorch_are_taken_as_they_are(name: str) -> None:
    check_scheduler(name, ("zero",))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULERS)
def test_all_schedulers_of_pytorch_are_taken_as_they_are(name: str) -> None:
    check_scheduler(name, ("owners", "1"))


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_gives_the_numbers_of_its_steps(name: str) -> None:
    optimizer_of, scheduler_of = SCHEDULERS[name]
    optimizer = optimizer_of([nn.Parameter(torch.zeros(3))])
    scheduler = scheduler_of(optimizer)
    fields = ["lr", "betas" if "betas" in optimizer.defaults else "momentum"]
    functions = [medley.scheduled(scheduler, field) for field in fields]
    again = [medley.scheduled(scheduler, field) for field in fields]
    for step in range(50):
        for function, field in zip(functions, fields, strict=True):
            assert function(step) == optimizer.param_groups[0][field]
        optimizer.step()
        scheduler.step()
    for function, other in zip(functions, again, strict=True):  # in another order
        assert [other(step) for step in (49, 7, 0)] == [function(step) for step in (49, 7, 0)]


def test_a_scheduler_that_has_made_steps_goes_on_from_them() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(3))], 0.1)
    scheduler = schedulers.ExponentialLR(optimizer, 0.9)
    for _ in range(4):
        optimizer.step()
        scheduler.step()
    rates = medley.scheduled(scheduler)
    assert rates(4) == scheduler.get_last_lr()[0]
    with pytest.raises(ValueError, match="ExponentialLR: found one that has made 4 steps, in step"):
        rates(3)


def test_a_scheduler_of_epochs_makes_a_step_in_so_many() -> None:
    scheduler = schedulers.StepLR(torch.optim.SGD([nn.Parameter(torch.zeros(3))], 0.1), 2)
    rates = medley.scheduled(scheduler, every=10)
    assert [rates(step) for step in (0, 19, 20, 40)] == pytest.approx([0.1, 0.1, 0.01, 0.001])


def test_schedule_that_is_no_function_of_the_step_is_refused_with_a_fix() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(3))], 0.1, momentum=0.9)
    with pytest.raises(ValueError, match=r"found ReduceLROnPlateau.*change rate\[0\]"):
        medley.SGD(lr=schedulers.ReduceLROnPlateau(optimizer))
    with pytest.raises(ValueError, match="SGD: lr: found OneCycleLR of torch.optim.AdamW, which"):
        other = torch.optim.AdamW([nn.Parameter(torch.zeros(3))])
        medley.SGD(lr=schedulers.OneCycleLR(other, 0.1, total_steps=9))
    with pytest.raises(ValueError, match="StepLR: betas: found no such hyperparameter of SGD"):
        medley.scheduled(schedulers.StepLR(optimizer, 3), "betas")
    with pytest.raises(ValueError, match="Tried to step 11 times"):
        medley.scheduled(schedulers.OneCycleLR(optimizer, 0.1, total_steps=10))(11)
