"""Named optimizers equal those of PyTorch, optimizers of whole matrices equal the user's function,
and clipping by value equals that of PyTorch, over 50 steps under any plan."""

from __future__ import annotations

from typing import Any

import by_step
import pytest
import torch
from torch import Tensor, nn

import medley
from medley.optimizer import whole

NAMED: dict[str, tuple[medley.optimizer.Optimizer, Any]] = {
    "Adadelta": (
        medley.Adadelta(lr=0.5, weight_decay=0.01),
        lambda p: torch.optim.Adadelta(p, 0.5, weight_decay=0.01),
    ),
    "Adagrad": (
        medley.Adagrad(lr=0.05, lr_decay=0.01, initial_accumulator_value=0.1, weight_decay=0.01),
        lambda p: torch.optim.Adagrad(
            p, 0.05, lr_decay=0.01, initial_accumulator_value=0.1, weight_decay=0.01
        ),
    ),
    "RMSprop": (
        medley.RMSprop(lr=1e-3, momentum=0.9, centered=True, weight_decay=0.01),
        lambda p: torch.optim.RMSprop(p, 1e-3, momentum=0.9, centered=True, weight_decay=0.01),
    ),
    "RMSprop, plain": (medley.RMSprop(lr=1e-3), lambda p: torch.optim.RMSprop(p, 1e-3)),
    "NAdam": (
        medley.NAdam(lr=1e-2, betas=(0.8, 0.95), weight_decay=0.01),
        lambda p: torch.optim.NAdam(p, 1e-2, betas=(0.8, 0.95), weight_decay=0.01),
    ),
    "Adamax": (
        medley.Adamax(lr=1e-2, weight_decay=0.01),
        lambda p: torch.optim.Adamax(p, 1e-2, weight_decay=0.01),
    ),
    "RAdam": (
        medley.RAdam(lr=1e-2, weight_decay=0.01),
        lambda p: torch.optim.RAdam(p, 1e-2, weight_decay=0.01),
    ),
    "Rprop": (
        medley.Rprop(lr=1e-2, etas=(0.4, 1.1)),
        lambda p: torch.optim.Rprop(p, 1e-2, etas=(0.4, 1.1)),
    ),
}


@pytest.mark.parametrize("name", ["NAdam", "RMSprop"])
def test_named_optimizers_are_those_of_pytorch(name: str) -> None:
    ours, theirs = NAMED[name]
    by_step.check(ours, lambda m: theirs(m.parameters()), ("owners",))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_named_optimizers_are_those_of_pytorch_under_any_plan(name: str) -> None:
    ours, theirs = NAMED[name]
    by_step.check(ours, lambda m: theirs(m.parameters()), by_step.KINDS)


def test_named_optimizers_have_numbers_that_follow_the_step() -> None:
    by_step.check(
        medley.RMSprop(lr=1e-3, alpha=lambda step: 0.9 + 0.001 * step, momentum=lambda step: 0.5),
        lambda m: torch.optim.RMSprop(m.parameters(), 1e-3, momentum=0.5),
        ("zero",),
        by_step={"alpha": lambda step: 0.9 + 0.001 * step},
    )


# --- clipping by value ---


@pytest.mark.parametrize(
    "limit", [0.01, pytest.param(lambda step: 0.001 * (step + 1), marks=pytest.mark.slow)]
)
def test_clipping_by_value_is_that_of_pytorch(limit: Any) -> None:
    def clip(model: nn.Module, step: int) -> None:
        now = limit(step) if callable(limit) else limit
        nn.utils.clip_grad_value_(model.parameters(), now)

    by_step.check(
        medley.SGD(lr=0.1, momentum=0.9, max_value=limit),
        lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9),
        ("owners", "tensor"),
        clip=clip,
    )


def test_clipping_by_value_follows_that_by_norm_and_may_be_of_a_group() -> None:
    def clip(model: nn.Module, step: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        nn.utils.clip_grad_value_([model.a.weight, model.b.weight, model.c.weight], 0.02)

    by_step.check(
        medley.Groups(
            groups=[
                ("*.bias", medley.SGD(lr=0.1)),
                ("*", medley.SGD(lr=0.1, max_value=0.02)),
            ],
            max_norm=0.1,
        ),
        lambda m: torch.optim.SGD(m.parameters(), 0.1),
        ("owners",),
        clip=clip,
    )


# --- of whole tensors ---


def lamb(
    x: Tensor, grad: Tensor, average: Tensor, square: Tensor, *, lr: Any, step: Any, decay: float
) -> Any:
    """LAMB (https://arxiv.org/abs/1904.00962)."""
    average = 0.9 * average + 0.1 * grad
    square = 0.99 * square + 0.01 * grad * grad
    update = (average / (1 - 0.9**step)) / ((square / (1 - 0.99**step)).sqrt() + 1e-6)
    update = update + decay * x
    size, length = x.norm(), update.norm()
    trust = torch.where((size > 0) & (length > 0), size / length, torch.ones_like(size))
    return x - lr * trust * update, average, square


def lars(x: Tensor, grad: Tensor, momentum: Tensor, *, lr: Any, step: Any) -> Any:
    """LARS (https://arxiv.org/abs/1708.03888)."""
    rate = 0.02 * x.norm() / (grad.norm() + 1e-4 * x.norm() + 1e-9)
    momentum = 0.9 * momentum + lr * rate * (grad + 1e-4 * x)
    return x - momentum, momentum


def clipped_by_unit(x: Tensor, grad: Tensor, momentum: Tensor, *, lr: Any, step: Any) -> Any:
    """SGD after the adaptive clipping of https://arxiv.org/abs/2102.06171."""

    def norms(tensor: Tensor) -> Tensor:
        dims = list(range(1, tensor.dim())) or [0]
        return torch.linalg.vector_norm(tensor, dim=dims, keepdim=tensor.dim() > 1)

    most = norms(x).clamp_min(1e-3) * 0.01
    size = norms(grad)
    grad = torch.where(size > most, grad * most / size.clamp_min(1e-6), grad)
    momentum = 0.9 * momentum + grad
    return x - lr * momentum, momentum


def shampoo(x: Tensor, grad: Tensor, left: Tensor, right: Tensor, *, lr: Any, step: Any) -> Any:
    """Shampoo (https://arxiv.org/abs/1802.09568) on a tensor as a matrix."""
    if x.dim() < 2:
        return x - lr * grad, left, right
    matrix = grad.reshape(grad.shape[0], -1)
    left, right = left + matrix @ matrix.T, right + matrix.T @ matrix

    def root(of: Tensor) -> Tensor:
        values, vectors = torch.linalg.eigh(of + 1e-4 * torch.eye(of.shape[0], dtype=of.dtype))
        return (vectors * values.clamp_min(1e-12) ** -0.25) @ vectors.T

    return x - lr * (root(left) @ matrix @ root(right)).reshape(x.shape), left, right


def left_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of the first factor."""
    return (shape[0], shape[0]) if len(shape) > 1 else (1,)


def right_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of the second factor."""
    size = 1
    for each in shape[1:]:
        size *= each
    return (size, size) if len(shape) > 1 else (1,)


def normuon(
    x: Tensor, grad: Tensor, momentum: Tensor, rows: Tensor, *, lr: Any, step: Any, beta: Any
) -> Any:
    """NorMuon (https://arxiv.org/abs/2510.05491): Muon with rows of one size."""
    momentum = beta * momentum + (1 - beta) * grad
    if x.dim() != 2:
        return x - lr * momentum, momentum, rows
    update = momentum.T if x.shape[0] > x.shape[1] else momentum
    update = update / update.norm().clamp_min(1e-7)
    for _ in range(5):
        gram = update @ update.T
        update = 3.4445 * update + (-4.775 * gram + 2.0315 * gram @ gram) @ update
    update = update.T if x.shape[0] > x.shape[1] else update
    rows = 0.95 * rows + 0.05 * update.pow(2).mean(dim=1, keepdim=True)
    update = update / ((rows / (1 - 0.95**step)).sqrt() + 1e-8)
    size = 0.2 * (x.shape[0] * x.shape[1]) ** 0.5 / update.norm()
    return x - lr * (size * update + 0.1 * x), momentum, rows


def row_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of a number for each row."""
    return (shape[0], 1) if len(shape) == 2 else (1,)


class Plain(torch.optim.Optimizer):
    """The same function, called by plain PyTorch on whole tensors."""

    def __init__(self, parameters: Any, function: Any, shapes: Any, lr: float, **hyper: Any):
        super().__init__(parameters, {"lr": lr})
        self.function, self.shapes, self.hyper, self.steps = function, shapes, hyper, 0

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Makes one."""
        hyper = {n: v(self.steps) if callable(v) else v for n, v in self.hyper.items()}
        self.steps += 1
        for group in self.param_groups:
            for p in group["params"]:
                kept = self.state.setdefault(
                    p, {i: torch.zeros(of(tuple(p.shape))) for i, of in enumerate(self.shapes)}
                )
                new, *states = self.function(
                    p.clone(), p.grad, *kept.values(), lr=group["lr"], step=self.steps, **hyper
                )
                p.copy_(new)
                kept.update(enumerate(states))


WHOLE: dict[str, tuple[Any, dict[str, Any], dict[str, Any], float]] = {
    "lamb": (lamb, {"average_of": None, "square": None}, {"decay": 0.01}, 0.01),
    "lars": (lars, {"momentum": None}, {}, 0.5),
    "clipped by unit": (clipped_by_unit, {"momentum": None}, {}, 0.5),
    "shampoo": (shampoo, {"left": left_shape, "right": right_shape}, {}, 0.05),
    "normuon": (
        normuon,
        {"momentum": None, "rows": row_shape},
        {"beta": lambda step: 0.9 + 0.001 * step},
        0.01,
    ),
}


def check_whole(name: str, kinds: tuple[str, ...]) -> None:
    """Asserts that a function of whole tensors gives the results of plain PyTorch."""
    function, state, hyper, lr = WHOLE[name]
    shapes = [of or (lambda shape: shape) for of in state.values()]
    by_step.check(
        whole(function, state=state, hyper=hyper, lr=lr),
        lambda m: Plain(m.parameters(), function, shapes, lr, **hyper),
        kinds,
    )


@pytest.mark.parametrize("name", ["shampoo", "normuon"])
def test_functions_of_whole_tensors_are_exact_on_shards(name: str) -> None:
    check_whole(name, ("owners",))


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_functions_of_whole_tensors_are_exact_under_any_plan(name: str) -> None:
    check_whole(name, (*by_step.KINDS, "3", "4"))


def test_functions_of_whole_tensors_are_checkpointed_under_another_plan(tmp_path: Any) -> None:
    function, state, hyper, lr = WHOLE["shampoo"]
    ours = whole(function, state=state, hyper=hyper, lr=lr)
    with by_step.exactness.double_precision():
        model, batch, graph = by_step.made()
        shapes = [of for of in state.values()]
        want, losses = by_step.train_torch(
            model, batch, lambda m: Plain(m.parameters(), function, shapes, lr)
        )
        trainer = by_step.trainer_of(model, graph, ours, "zero")
        for step in range(len(losses)):
            if step == 20:
                trainer.save(tmp_path)
                trainer = by_step.trainer_of(model, graph, ours, "1")
                trainer.load(tmp_path)
            trainer.step(batch)
        wanted = {name: p.detach() for name, p in want.named_parameters()}
        by_step.compare(trainer.parameters(), wanted)


def test_unusable_arguments_of_a_tensor_function_are_reported() -> None:
    def by_value(x: Tensor, grad: Tensor, *, lr: Any, step: Any) -> Tensor:
        return x - lr * grad if step > 3 else x

    table = torch.linspace(1, 0, 10)

    def by_table(x: Tensor, grad: Tensor, *, lr: Any, step: Any) -> Tensor:
        return x - lr * table[step.long()] * grad

    graph = medley.capture(by_step.Net(), torch.randn(6, 6))
    for make in (medley.optimizer.pointwise, whole):
        for function in (by_value, by_table):
            with pytest.raises(ValueError, match=r"`step` and .* are tensors without dims") as said:
                make(function).core(graph.core)
            assert str(said.value).count("\n") < 6
            assert "lambda step: table[step]" in str(said.value)
    by_step_ = medley.optimizer.pointwise(
        lambda x, grad, *, lr, step, share: x - lr * share * grad,
        hyper={"share": lambda step: float(table[step])},
    )
    assert by_step_.scalars(4)[0][-1] == float(table[4])
    with pytest.raises(ValueError, match="state: found 7 names, expected at most 6"):
        whole(lamb, state=list("abcdefg"))
    with pytest.raises(ValueError, match="found torch.float32 of shape .*, expected torch.float32"):
        whole(lambda x, grad, *, lr, step: x[:1]).core(graph.core)
