"""Changes of a model's state besides buffers are refused by name. Hooks and assigned buffers
work."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from typing import Any

import graph_interpreter
import numpy as np
import pytest
import torch
from captured import capture_text
from torch import Tensor, nn

from medley import custom_ops
from medley.capture import CaptureError, capture_full

X = torch.randn(4, 5, dtype=torch.float64)
MASK = torch.eye(6, 5, dtype=torch.float64)
COUNT = itertools.count()
OWN = random.Random(3)


class Body(nn.Module):
    """A linear layer, a set-up function, and a function of the layer and the batch."""

    def __init__(self, body: Callable[[Any, Tensor], Tensor], setup: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(5, 6, dtype=torch.float64)
        self.body = body
        if setup is not None:
            setup(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, x)


def plain(m: Any, x: Tensor) -> Tensor:
    loss: Tensor = m.a(x).pow(2).mean()
    return loss


def attributes(**values: Any) -> Callable[[nn.Module], None]:
    """Returns a set-up that sets attributes. Tensors named b... become buffers."""

    def setup(m: nn.Module) -> None:
        for name, value in values.items():
            if name.startswith("b"):
                m.register_buffer(name, value)
            else:
                setattr(m, name, value)

    return setup


# --- refused --------------------------------------------------------------------------------------


def counts(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    return plain(m, x)


def first_call_differs(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h = h if m.seen else h * 2
    m.seen = True
    loss: Tensor = h.pow(2).mean()
    return loss


def collects(m: Any, x: Tensor) -> Tensor:
    m.all.append(plain(m, x))
    return torch.stack(m.all).sum()


def recurs(m: Any, x: Tensor) -> Tensor:
    h = m.a(x) if m.h is None else m.a(x) + m.h
    m.h = h.mean(0).detach()
    return h.pow(2).mean()


def recurs_in_a_buffer(m: Any, x: Tensor) -> Tensor:
    h = m.a(x) if m.b is None else m.a(x) + m.b
    m.b = h.mean(0).detach()
    return h.pow(2).mean()


def decays(m: Any, x: Tensor) -> Tensor:
    m.scale = torch.ones(6) if m.scale is None else m.scale * 0.9
    return (m.a(x) * m.scale).pow(2).mean()


def decays_in_place(m: Any, x: Tensor) -> Tensor:
    m.scale.mul_(0.9)
    return (m.a(x) * m.scale).pow(2).mean()


def grows(m: Any, x: Tensor) -> Tensor:
    m.b = torch.cat([m.b, m.b])
    return plain(m, x) + m.b.sum()


def assigns_a_parameter(m: Any, x: Tensor) -> Tensor:
    m.a.weight = nn.Parameter(m.a.weight * 0.9)
    return plain(m, x)


def hooks_in_forward(m: Any, x: Tensor) -> Tensor:
    m.a.weight.register_hook(lambda g: g * 2)
    return plain(m, x)


def closure(m: Any) -> None:
    weight = m.a.weight
    weight.register_hook(lambda g: g + 0.1 * weight)


def post_accumulate(m: Any) -> None:
    m.a.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))


def hook(function: Callable[[Tensor], Any]) -> Callable[[Any], None]:
    return lambda m: m.a.weight.register_hook(function)


@pytest.mark.parametrize(
    ("body", "setup", "sentence"),
    [
        (counts, attributes(calls=3), r"module '': .* changes self.calls \(3, then 4, then 5\)"),
        (counts, attributes(calls=1.5), r"self.calls \(1.5, then 2.5, then 3.5\): keep"),
        (first_call_differs, attributes(seen=False), "the first call changes self.seen of module"),
        (collects, attributes(all=[]), r"\.py:\d+: .* the call before has left in self.all of m"),
        (recurs, attributes(h=None), "the call before has left in self.h of module '': keep it"),
        (recurs, attributes(h=torch.ones(6)), "the call before has left in self.h of module ''"),
        (recurs_in_a_buffer, attributes(b=None), "the call before has left in self.b of module"),
        (decays, attributes(scale=None), "every call makes self.scale of module '' from its value"),
        (decays, attributes(scale=torch.ones(6)), "every call makes self.scale of module ''"),
        (decays_in_place, attributes(scale=torch.ones(6)), "changes self.scale of module '' in p"),
        (grows, attributes(b=torch.ones(5)), r"buffer 'b' anew .* \[10\], expected .* \[5\]"),
        (assigns_a_parameter, None, "the model assigns its parameter 'a.weight' anew in forward"),
        (hooks_in_forward, None, "two calls on the same batch compute different things"),
        (plain, closure, r"'a.weight': its gradient hook \S+: .* otherwise than as the attribute"),
        (plain, post_accumulate, r"'a.weight': test_.*\d: hooks of register_post_accumulate_grad"),
        (plain, hook(lambda g: None), r"'a.weight': its gradient hook \S+ returns nothing"),
        (plain, hook(lambda g: g * g.max().item()), "keep it a tensor"),
        (plain, hook(lambda g: g * random.random()), "the model draws from Python's random"),
        (plain, hook(lambda g: g * next(COUNT)), "two calls on the same batch compute different"),
        (lambda m, x: plain(m, x) * random.random(), None, "the model draws from Python's random"),
        (
            lambda m, x: plain(m, x) if random.random() < 0.999 else m.a(x).sum(),
            None,
            "the model draws from Python's random: every step would use what is drawn now",
        ),
        (lambda m, x: plain(m, x) * float(np.random.rand()), None, "draws from numpy.random"),
        (
            lambda m, x: plain(m, x) * float(m.r.random()),
            attributes(r=np.random.default_rng(0)),
            "module '': every call changes self.r: keep it in a buffer",
        ),
        (lambda m, x: plain(m, x) * OWN.random(), None, r"of \(0\..*\) and \(0\..*\) \(a clock"),
        (lambda m, x: plain(m, x) * next(COUNT), None, "two calls on the same batch compute"),
        (lambda m, x: plain(m, x) * time.monotonic_ns(), None, "a clock, a counter, a file"),
        (
            lambda m, x: (x @ m.all[0].t()).pow(2).mean() + plain(m, x),
            lambda m: setattr(m, "all", [m.a.weight]),
            r"\.py:\d+: the model uses its parameter 'a.weight' otherwise than as the attribute",
        ),
    ],
)
def test_values_that_change_between_steps_are_refused(body: Any, setup: Any, sentence: str) -> None:
    model = Body(body, setup)
    before = dict(vars(model))
    scale = getattr(model, "scale", None)
    states = random.getstate(), np.random.get_state()[2]
    with pytest.raises(CaptureError, match=sentence):
        capture_text(model, X)
    assert all(vars(model)[name] is value for name, value in before.items())
    assert vars(model).keys() == before.keys()
    assert scale is None or torch.equal(scale, torch.ones(6))
    assert (random.getstate(), np.random.get_state()[2]) == states
    assert not model._forward_hooks


@pytest.mark.parametrize("loop", [lambda h: h.pow(2).sum(), lambda h: h.tanh().sin().exp().sum()])
def test_a_loop_over_rows_is_found_on_few_of_them(loop: Callable[[Tensor], Tensor]) -> None:
    model = Body(lambda m, x: sum(loop(m.a(row)) for row in x))
    with pytest.raises(CaptureError, match=r"\.py:\d+: a loop over the rows of the batch: found"):
        capture_text(model, X)


# --- right ----------------------------------------------------------------------------------------


def keeps(m: Any, x: Tensor) -> Tensor:
    m.aux = m.a(x).sum()
    loss: Tensor = plain(m, x) + m.aux
    return loss


def collects_anew(m: Any, x: Tensor) -> Tensor:
    m.all.clear()
    m.all.append(m.a(x).sum())
    loss: Tensor = plain(m, x) + m.all[0]
    return loss


def caches(m: Any, x: Tensor) -> Tensor:
    if m.table is None:
        m.table = torch.linspace(0, 1, 6, dtype=torch.float64).sin()
    return (m.a(x) + m.table).pow(2).mean()


def averages(m: Any, x: Tensor) -> Tensor:
    m.b = 0.9 * m.b + 0.1 * m.a(x).mean(0)
    return (m.a(x) * m.b).pow(2).mean()


def averages_afterwards(m: Any, x: Tensor) -> Tensor:
    loss = (m.a(x) * m.b).pow(2).mean()
    m.b = 0.9 * m.b + 0.1 * m.a(x).mean(0).detach()
    return loss


def swaps(m: Any, x: Tensor) -> Tensor:
    m.b, m.b2 = m.b2, m.b + 1
    return (m.a(x) * m.b).pow(2).mean()


def of_a_module(m: Any) -> None:
    m.a.weight.register_hook(lambda g: g + 0.1 * m.a.weight)


def twice(m: Any) -> None:
    m.a.weight.register_hook(lambda g: g * MASK)
    m.a.weight.register_hook(lambda g: g / (g.norm() + 1))
    m.a.bias.register_hook(lambda g: g.clamp(-0.01, 0.01))


RUNNING = {"b": torch.linspace(0, 1, 6, dtype=torch.float64), "b2": torch.ones(6).double()}


@pytest.mark.parametrize(
    ("body", "setup"),
    [
        (keeps, None),
        (keeps, attributes(aux=None)),
        (collects_anew, attributes(all=[])),
        (caches, attributes(table=None)),
        (averages, attributes(b=RUNNING["b"])),
        (averages_afterwards, attributes(b=RUNNING["b"])),
        (swaps, attributes(**RUNNING)),
        (plain, hook(lambda g: g * 2)),
        (plain, of_a_module),
        (plain, twice),
    ],
)
def test_constants_of_a_step_are_captured(body: Any, setup: Any) -> None:
    model = Body(body, setup)
    before = dict(vars(model))
    captured = capture_full(model, X)
    assert all(vars(model)[name] is value for name, value in before.items())
    state = {k: v.clone() for k, v in (*model.named_parameters(), *model.named_buffers())}
    for step in range(2):
        batch = X[:3] * (step + 1)
        found = graph_interpreter.run(
            captured.text, state | captured.constants, {"0": batch}, custom_ops.make_rng(0, step)
        )
        model.zero_grad()
        loss = model(batch)
        loss.backward()
        assert torch.allclose(found.loss, loss, rtol=1e-12, atol=0)
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            assert torch.allclose(found.gradients[name], parameter.grad, rtol=1e-11, atol=1e-15)
        state |= found.buffers
        for name, buffer in model.named_buffers():
            assert torch.allclose(state[name], buffer, rtol=1e-12, atol=0)
            setattr(model, name, buffer.detach())


def test_a_hook_of_a_tied_parameter_sees_the_sum_of_its_gradients() -> None:
    model = Body(lambda m, x: (m.c(m.a(x)) + 0 * m.a(x)[:, :5]).pow(2).mean())
    model.c = nn.Linear(6, 5, dtype=torch.float64)
    model.c.weight = nn.Parameter(torch.randn(5, 6, dtype=torch.float64))
    model.d = nn.Linear(6, 5, dtype=torch.float64)
    model.d.weight = model.c.weight
    model.body = lambda m, x: (m.c(m.a(x)) * m.d(m.a(x))).pow(2).mean()
    model.c.weight.register_hook(lambda g: g.clamp(-0.1, 0.1))
    captured = capture_full(model, X)
    found = graph_interpreter.run(
        captured.text, dict(model.named_parameters()), {"0": X}, custom_ops.make_rng(0, 0)
    )
    model(X).backward()
    gradient = model.c.weight.grad
    assert gradient is not None
    assert gradient.abs().max() == 0.1
    assert torch.allclose(found.gradients["c.weight"], gradient, rtol=1e-11, atol=0)
