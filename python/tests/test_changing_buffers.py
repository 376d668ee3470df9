"""Buffers that change in a step are read as in PyTorch: forward and backward read the old value
until its replacement, once per step in any number of micro-batches and stages."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import Any

import exactness
import pytest
import torch
from test_pipelines import cuts
from torch import Tensor, nn

import medley
from medley.capture import substitute

ROWS = 6
STEPS = 3


class Ends(nn.Module):
    """One layer before and two after the tested part, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = torch.tanh(self.b(self.middle(torch.tanh(self.a(x)))))
        return nn.functional.cross_entropy(self.c(h), y)

    def middle(self, h: Tensor) -> Tensor:
        raise NotImplementedError


class Queue(Ends):
    """Features of the last step, read before they are replaced (MoCo)."""

    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Buffer(torch.randn(4, 4))

    def middle(self, h: Tensor) -> Tensor:
        out = h @ self.q.clone()
        with torch.no_grad():
            self.q.copy_(0.5 * self.q + h.mT @ h)
        return out


class Codebook(Ends):
    """The nearest of eight codes, which follow the points near them (VQ-VAE)."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Buffer(torch.randn(8, 4))

    def middle(self, h: Tensor) -> Tensor:
        codes = self.codes.clone()
        near = torch.softmax(-(h[:, None] - codes).square().sum(2), 1)
        out = near @ codes + 0.1 * h
        with torch.no_grad():
            self.codes.mul_(0.9).add_(0.1 * near.mT @ h)
        return out


class RunningMax(Ends):
    """Divides by the largest element so far, this batch's included."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = nn.Buffer(torch.tensor(0.1))

    def middle(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.largest.copy_(torch.maximum(self.largest, h.abs().amax()))
        return h * h / self.largest.clone()


class ScaleThenUpdate(Ends):
    """Multiplies by a scale before it changes."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Buffer(torch.tensor(2.0))

    def middle(self, h: Tensor) -> Tensor:
        out = h * self.scale.clone()
        self.scale.mul_(0.7)
        return out


class UpdateThenScale(Ends):
    """Multiplies by a scale after it has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Buffer(torch.tensor(2.0))

    def middle(self, h: Tensor) -> Tensor:
        self.scale.mul_(0.7)
        return h * self.scale.clone()


class Both(Ends):
    """The old value first, the new one after it."""

    def __init__(self) -> None:
        super().__init__()
        self.n = nn.Buffer(torch.tensor(1))
        self.scale = nn.Buffer(torch.linspace(0.5, 1.5, 4))

    def middle(self, h: Tensor) -> Tensor:
        h = torch.sin(h * self.scale.clone() * self.n.clone())
        self.n += 1
        self.scale.mul_(0.9).add_(0.01 * self.n)
        return torch.cos(h * self.scale.clone())


class Counters(Ends):
    """Counters without a reader."""

    def __init__(self) -> None:
        super().__init__()
        self.n, self.m = nn.Buffer(torch.tensor(0)), nn.Buffer(torch.tensor(0.5))

    def middle(self, h: Tensor) -> Tensor:
        self.n += 1
        self.m.mul_(0.9)
        return h


class Swap(Ends):
    """Two buffers change places."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = nn.Buffer(torch.randn(4)), nn.Buffer(torch.randn(4))

    def middle(self, h: Tensor) -> Tensor:
        h = torch.sin(h * self.p.clone())
        p = self.p.clone()
        self.p.copy_(self.q)
        self.q.copy_(p)
        return torch.cos(h * self.q.clone())


class Momentum(Ends):
    """A copy of a layer that follows it slowly, with its output in the loss (BYOL, MoCo)."""

    def __init__(self) -> None:
        super().__init__()
        self.follower = nn.Buffer(torch.randn(4, 4))

    def middle(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.follower.mul_(0.9).add_(0.1 * self.b.weight)
        return h + 0.3 * h @ self.follower.clone()


class Teacher(Ends):
    """The same of frozen weights, one tied, changed in place as the loops of MoCo, DINO and BYOL
    change them."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Linear(4, 4).requires_grad_(False)
        self.teacher.load_state_dict(self.b.state_dict())
        self.tied = nn.ParameterList([self.teacher.bias])
        self.scale = nn.Parameter(torch.ones(()), requires_grad=False)

    def middle(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            for mine, other in zip(self.teacher.parameters(), self.b.parameters(), strict=True):
                mine.mul_(0.9).add_(other, alpha=0.1)
            self.scale.data.copy_(0.5 * self.scale)
            wanted = self.teacher(h) + self.tied[0]
        return h + 0.3 * self.scale * wanted


class Copies(Ends):
    """Copies into buffers: a parameter, a row and its transpose, with autograd and without. The
    step changes these in place."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.row, self.turned = (
            nn.Buffer(torch.zeros(4)),
            nn.Buffer(torch.zeros(4)),
            nn.Buffer(torch.zeros(4, 4)),
        )

    def middle(self, h: Tensor) -> Tensor:
        h = torch.sin(h * (1 + self.whole.clone()) + self.row.clone() + h @ self.turned.clone())
        with torch.no_grad():
            self.whole.copy_(self.a.bias)
            self.row.copy_(self.b.weight[1])
        self.turned.copy_(self.b.weight.detach().mT)
        return h


class Spectral(Ends):
    """A norm from a power iteration that continues from step to step."""

    def __init__(self, normalise: Callable[[nn.Module], nn.Module]) -> None:
        super().__init__()
        self.s = normalise(nn.Linear(4, 4))

    def middle(self, h: Tensor) -> Tensor:
        out: Tensor = self.s(h)
        return out


class ScaleGradient(torch.autograd.Function):
    """Leaves its input as it is and multiplies the gradient, as gradient reversal does (DANN)."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, scale: Tensor) -> Tensor:
        """Keeps the scale for the way back alone."""
        ctx.save_for_backward(scale)
        return h.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Multiplies by the scale."""
        return gradients[0] * ctx.saved_tensors[0], None


class Reversal(Ends):
    """The new value is read on the way back alone."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Buffer(torch.linspace(0.5, 1.5, 4))

    def middle(self, h: Tensor) -> Tensor:
        self.scale.mul_(0.9).add_(0.01)
        return ScaleGradient.apply(h, self.scale.clone())  # type: ignore[no-any-return]


class ReversalByRows(Reversal):
    """The rows decide the new value."""

    def middle(self, h: Tensor) -> Tensor:
        with torch.no_grad():
            self.scale.mul_(0.9).add_(0.1 * h.square().mean(0))
        return ScaleGradient.apply(h, self.scale.clone())  # type: ignore[no-any-return]


class ReversalByRowsTwice(ReversalByRows):
    """Running statistics of two calls, each read on the way back of its own call."""

    def middle(self, h: Tensor) -> Tensor:
        return super().middle(torch.sin(self.b(super().middle(h))))


class Positions(Ends):
    """Uses the place of a row in the batch."""

    def middle(self, h: Tensor) -> Tensor:
        return h * (1 + torch.arange(h.shape[0])[:, None])


# Cases of the first table whose new value depends on rows.
MEET: dict[str, Callable[[], Ends]] = {
    "queue": Queue,
    "codebook": Codebook,
    "running max": RunningMax,
    "read on the way back twice": ReversalByRowsTwice,
}
FREE: dict[str, Callable[[], Ends]] = {
    "scale then update": ScaleThenUpdate,
    "update then scale": UpdateThenScale,
    "both": Both,
    "counters": Counters,
    "swap": Swap,
    "momentum": Momentum,
    "teacher": Teacher,
    "copies": Copies,
    "spectral norm": lambda: Spectral(nn.utils.spectral_norm),
    "spectral norm as a parametrisation": lambda: Spectral(nn.utils.parametrizations.spectral_norm),
    "positions": Positions,
    "reversal": Reversal,
}


@dataclasses.dataclass(frozen=True)
class Shape:
    """How a plan divides the work: devices of each stage, and micro-batches."""

    sizes: tuple[int, ...] = (1,)
    microbatches: tuple[int, ...] = (ROWS,)
    stage: dict[str, Any] = dataclasses.field(default_factory=dict)
    pipeline: dict[str, Any] = dataclasses.field(default_factory=dict)
    per_microbatch: bool = False


ONE = {
    "one device": Shape(),
    "rows": Shape((2,)),
    "zero": Shape((2,), stage={"updates": {"*": "S(0, even)"}}),
    "tensor": Shape((2,), stage={"placements": {"*weight": "S(0, even)"}, "batch": {"*": "R"}}),
    "recompute": Shape(stage={"recompute": "all"}),
    "recompute blocks": Shape((2,), stage={"recompute": "blocks"}),
    "two stages": Shape((1, 1)),
    "three stages": Shape((1, 2, 1)),
    "two stages, recompute": Shape((1, 1), stage={"recompute": "all"}),
}
SEVERAL = {
    "micro-batches": Shape((1,), (4, 2)),
    "rows, micro-batches": Shape((2,), (2, 2, 2)),
    "zero, micro-batches": Shape((2,), (4, 2), {"updates": {"*": "S(0, even)"}}),
    "tensor, micro-batches": Shape(
        (2,), (3, 3), {"placements": {"*weight": "S(0, even)"}, "batch": {"*": "R"}}
    ),
    "recompute, micro-batches": Shape((1,), (4, 2), {"recompute": "all"}),
    "recompute blocks, micro-batches": Shape((2,), (4, 2), {"recompute": "blocks"}),
    "two stages, micro-batches": Shape((1, 1), (2, 1, 1, 2)),
    "two stages, gpipe": Shape((1, 1), (2, 1, 1, 2), pipeline={"schedule": "gpipe"}),
    "three stages, micro-batches": Shape((1, 2, 1), (2, 2, 2)),
    "two stages, recompute, micro-batches": Shape((1, 1), (2, 2, 2), {"recompute": "all"}),
}


def plan_of(shape: Shape, graph: medley.Graph, firsts: list[str] | None = None) -> str:
    """Returns the plan's text."""
    names = ["", *(firsts or cuts(graph, len(shape.sizes)))]
    stages: list[dict[str, Any]] = []
    device = 0
    for size, first in zip(shape.sizes, names, strict=True):
        devices = [f"a/{device + i}/0" for i in range(size)]
        stages.append({"mesh": {"devices": devices}, **shape.stage})
        if first:
            stages[-1]["first"] = first
        device += size
    return json.dumps(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": sum(shape.microbatches),
            "loss_over": "microbatches" if shape.per_microbatch else "batch",
            "pipelines": [
                {
                    "microbatches": [{"rows": rows} for rows in shape.microbatches],
                    "stages": stages,
                    **shape.pipeline,
                }
            ],
        }
    )


def made(make: Callable[[], Ends]) -> tuple[Ends, dict[str, Tensor]]:
    """Returns a model and its batch, the same each time."""
    torch.manual_seed(0)
    model = make()
    return model, {"x": torch.randn(ROWS, 5), "y": torch.randint(0, 3, (ROWS,))}


@functools.cache
def captured(make: Callable[[], Ends]) -> medley.Graph:
    """Returns the graph in float64."""
    return medley.capture(*made(make))


def train_eager(
    make: Callable[[], Ends], microbatches: tuple[int, ...]
) -> tuple[exactness.Curve, dict[str, Tensor]]:
    """Trains with plain PyTorch, gradients accumulated over micro-batches."""
    model, batch = made(make)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)
    curve = exactness.Curve([], {}, {})
    for _ in range(STEPS):
        optimizer.zero_grad()
        row, total = 0, 0.0
        for rows in microbatches:
            with substitute(model):
                loss = model(**{k: v[row : row + rows] for k, v in batch.items()}) / len(
                    microbatches
                )
            loss.backward()
            row, total = row + rows, total + loss.item()
        curve.losses.append(total)
        curve.gradients = {
            n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None
        }
        optimizer.step()
    curve.parameters = {n: p.detach().clone() for n, p in model.named_parameters()}
    return curve, {n: b.clone() for n, b in model.named_buffers()}


def check(make: Callable[[], Ends], shape: Shape, firsts: list[str] | None = None) -> None:
    """Asserts that losses, gradients, parameters and buffers equal those of PyTorch."""
    with exactness.double_precision():
        graph = captured(make)
        model, batch = made(make)
        want, buffers = train_eager(make, shape.microbatches if shape.per_microbatch else (ROWS,))
        trainer = medley.Trainer(
            model,
            graph,
            medley.Plan(plan_of(shape, graph, firsts)),
            optimizer=medley.AdamW(lr=1e-2, weight_decay=0.01),
            local=True,
            cluster=exactness.cluster(),
        )
        losses = [trainer.step(batch).loss for _ in range(STEPS)]
        got = trainer.parameters() | trainer.buffers()
        want.parameters |= buffers
        missing = {n: t for n, t in want.parameters.items() if n not in got}
        assert all(torch.equal(t, dict(model.state_dict())[n]) for n, t in missing.items())
        want.parameters = {n: want.parameters[n] for n in got}
        exactness.compare(exactness.Curve(losses, trainer.gradients(), got), want)


@pytest.mark.parametrize("shape", ONE)
@pytest.mark.parametrize("model", MEET | FREE)
def test_one_microbatch(model: str, shape: str) -> None:
    check((MEET | FREE)[model], ONE[shape])


@pytest.mark.parametrize("shape", SEVERAL)
@pytest.mark.parametrize("model", FREE)
def test_several_microbatches(model: str, shape: str) -> None:
    check(FREE[model], SEVERAL[shape])


# Cases of PyTorch that accumulate gradients: every micro-batch is a batch of its own.
ALONE = {
    "one device": Shape((1,), (4, 2)),
    "rows": Shape((2,), (2, 2, 2)),
    "recompute": Shape((1,), (2, 2, 2), {"recompute": "all"}),
    "two stages": Shape((1, 1), (2, 2, 2)),
    "gpipe": Shape((1, 1, 1), (2, 2, 2), pipeline={"schedule": "gpipe"}),
}


# Read in one stage and changed in another: the next micro-batch could not see it in time.
APART = {
    (model, shape)
    for model in ("queue", "codebook", "read on the way back twice")
    for shape in ("two stages", "gpipe")
}
APART |= {("spectral norm", "gpipe"), ("spectral norm as a parametrisation", "gpipe")}


@pytest.mark.parametrize("shape", ALONE)
@pytest.mark.parametrize("model", MEET | FREE)
def test_microbatches_that_are_batches(model: str, shape: str) -> None:
    alone = dataclasses.replace(ALONE[shape], per_microbatch=True)
    if (model, shape) not in APART:
        return check((MEET | FREE)[model], alone)
    with pytest.raises(ValueError, match="expected one stage that does both"):
        check((MEET | FREE)[model], alone)


@pytest.mark.parametrize(
    "model",
    [
        "queue",
        "both",
        "swap",
        "momentum",
        "spectral norm",
        "reversal",
        "read on the way back twice",
    ],
)
def test_every_cut(model: str) -> None:
    make = (MEET | FREE)[model]
    with exactness.double_precision():
        names = captured(make).core.stable_names()
    shape = Shape((1, 1), (2, 2, 2) if model in FREE else (ROWS,))
    found = 0
    for first in names:
        if "~" in first:
            continue
        try:
            check(make, shape, [first])
            found += 1
        except ValueError as error:  # no op is left for a stage
            assert "expected an op" in str(error)
    assert found > 3


@pytest.mark.parametrize("model", MEET)
def test_buffer_that_rows_decide_is_cross_sample(model: str) -> None:
    with exactness.double_precision():
        graph, (torch_model, _) = captured(MEET[model]), made(MEET[model])
        with pytest.raises(ValueError, match="rows meet"):
            medley.Trainer(
                torch_model,
                graph,
                medley.Plan(plan_of(Shape((1,), (4, 2)), graph)),
                optimizer=medley.AdamW(lr=1e-2),
                local=True,
                cluster=exactness.cluster(),
            )
