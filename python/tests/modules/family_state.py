"""State from one step to the next: buffers, counters, queues; hooks; random values."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from module_case import Case, Net, energy, x
from torch import Tensor, nn

Forward = Callable[[Any, Tensor], Tensor]


def kept(forward: Forward, /, *, setup: Any = None, **case: Any) -> Case:
    """Returns the case of a linear layer with buffers, a set-up, and a function of it."""
    known = {name: case.pop(name) for name in ("seeded",) if name in case}

    def make() -> tuple[nn.Module, Tensor]:
        m = Net(forward, a=nn.Linear(6, 5))
        for name, value in case.items():
            floats = value.is_floating_point()
            m.register_buffer(name, value.to(torch.float64 if floats else value.dtype, copy=True))
        if setup is not None:
            setup(m)
        return m, x(6)

    return Case(make, **known)


def plain(m: Any, x: Tensor) -> Tensor:
    return energy(m.a(x))


def counted(m: Any, x: Tensor) -> Tensor:
    m.n += 1
    return energy(m.a(x) / m.n)


def counted_anew(m: Any, x: Tensor) -> Tensor:
    m.n = m.n + 1
    return energy(m.a(x) / m.n)


def warmed_up(m: Any, x: Tensor) -> Tensor:
    m.n.add_(1)
    return energy(m.a(x)) * (m.n / 10).clamp(max=1)


def averaged(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        m.r.mul_(0.9).add_(0.1 * x.mean(0))
    return energy(m.a(x - m.r))


def averaged_anew(m: Any, x: Tensor) -> Tensor:
    m.r = 0.9 * m.r + 0.1 * x.mean(0)
    return energy(m.a(x - m.r))


def used_then_averaged(m: Any, x: Tensor) -> Tensor:
    h = m.a(x * m.r)
    m.r = 0.9 * m.r + 0.1 * x.mean(0)
    return energy(h)


def used_then_changed(m: Any, x: Tensor) -> Tensor:
    h = m.a(x) * m.s.clone()
    m.s.mul_(0.5)
    return energy(h)


def changed_then_used(m: Any, x: Tensor) -> Tensor:
    m.s.mul_(0.5)
    return energy(m.a(x) * m.s)


def running_max(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    out = h / m.s.clone()
    m.s.copy_(torch.maximum(m.s, h.detach().abs().amax(0)))
    return energy(out)


def queue(m: Any, x: Tensor) -> Tensor:
    """The features of the last rows: their similarity to earlier steps, before they are shifted
    in."""
    h = F.normalize(m.a(x), dim=-1)
    similar = h @ m.q.clone().t()
    m.q.copy_(torch.cat([m.q[3:], h[:3].detach()]))
    return energy(similar)


def swapped(m: Any, x: Tensor) -> Tensor:
    m.s, m.t = m.t, m.s * 0.5
    return energy(m.a(x) * m.s)


def centred(m: Any, x: Tensor) -> Tensor:
    """DINO: the teacher's outputs less a running centre."""
    h = m.a(x)
    target = (h.detach() - m.t).softmax(-1)
    m.t.mul_(0.9).add_(0.1 * h.detach().mean(0))
    return -(target * h.log_softmax(-1)).sum(-1).mean()


def codebook(m: Any, x: Tensor) -> Tensor:
    """VQ-VAE: the nearest code, straight through, and codes that follow their rows."""
    h = m.a(x)
    chosen = F.one_hot(torch.cdist(h.detach(), m.codes).argmin(-1), 3).to(h.dtype)
    code = chosen @ m.codes.clone()
    count = chosen.sum(0, keepdim=True).t()
    with torch.no_grad():
        m.codes.mul_(0.9).add_(0.1 * (chosen.t() @ h.detach()) / (count + 1))
    return energy(h + (code - h).detach()) + (h - code.detach()).pow(2).mean()


def momentum(m: Any, x: Tensor) -> Tensor:
    """BYOL: a target network in buffers that follows the trained one."""
    with torch.no_grad():
        m.target.mul_(0.9).add_(0.1 * m.a.weight)
    return F.mse_loss(m.a(x), x @ m.target.clone().t())


def schedule(m: Any, x: Tensor) -> Tensor:
    m.n += 1
    return energy(m.a(x)) * torch.where(m.n > 1, 0.5, 1.0)


def hooked(*hooks: Callable[[Tensor], Any], name: str = "a.weight") -> Callable[[Any], None]:
    def setup(m: Any) -> None:
        for hook in hooks:
            m.get_parameter(name).register_hook(hook)

    return setup


def every_parameter(m: Any) -> None:
    for parameter in m.parameters():
        parameter.register_hook(lambda g: g.clamp(-0.01, 0.01))


def accumulated(m: Any) -> None:
    m.a.weight.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))


def of_modules(m: Any) -> None:
    m.a.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    m.a.register_forward_hook(lambda module, inputs, output: output.tanh())


def of_gradients(m: Any) -> None:
    m.a.register_full_backward_hook(lambda module, gi, go: (gi[0],) if gi[0] is None else None)


def activation_hook(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    h.register_hook(lambda g: g * 2)
    return energy(h)


def attribute(**values: Any) -> Callable[[Any], None]:
    def setup(m: Any) -> None:
        for name, value in values.items():
            object.__setattr__(m, name, value)

    return setup


def python_counter(m: Any, x: Tensor) -> Tensor:
    m.calls += 1
    return energy(m.a(x) / m.calls)


def remembers(m: Any, x: Tensor) -> Tensor:
    h = m.a(x) if m.h is None else m.a(x) + m.h
    m.h = h.mean(0).detach()
    return energy(h)


def keeps_the_last(m: Any, x: Tensor) -> Tensor:
    m.last = m.a(x)
    return energy(m.last)


def collects(m: Any, x: Tensor) -> Tensor:
    m.all.append(m.a(x).mean())
    return torch.stack(m.all).sum()


def caches(m: Any, x: Tensor) -> Tensor:
    if m.table is None:
        m.table = torch.linspace(0, 1, 5)
    return energy(m.a(x) + m.table)


def from_a_list(m: Any, x: Tensor) -> Tensor:
    return energy(x @ m.all[0].t()) + energy(m.a(x))


class Teacher(nn.Module):
    """An average of a trained layer that is itself a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.t = nn.Linear(6, 5), nn.Linear(6, 5).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.t.weight.mul_(0.9).add_(0.1 * self.a.weight)
        return F.mse_loss(self.a(x), self.t(x))


SCALE = torch.ones(5)
HALF = torch.tensor([1.0, 0, 1, 0, 1])[:, None]
CASES: dict[str, Case] = {
    "counter": kept(counted, n=torch.zeros(())),
    "counter_anew": kept(counted_anew, n=torch.zeros(())),
    "counter_of_integers": kept(counted, n=torch.zeros((), dtype=torch.int64)),
    "warm_up": kept(warmed_up, n=torch.zeros(())),
    "schedule_by_counter": kept(schedule, n=torch.zeros((), dtype=torch.int64)),
    "running_mean": kept(averaged, r=torch.zeros(6)),
    "running_mean_anew": kept(averaged_anew, r=torch.zeros(6)),
    "used_then_averaged_anew": kept(used_then_averaged, r=torch.ones(6)),
    "used_then_changed": kept(used_then_changed, s=SCALE),
    "changed_then_used": kept(changed_then_used, s=SCALE),
    "running_maximum": kept(running_max, s=SCALE),
    "queue_of_features": kept(queue, q=torch.eye(6, 5)),
    "swapped": kept(swapped, s=SCALE, t=2 * SCALE),
    "centre_of_a_teacher": kept(centred, t=0 * SCALE),
    "codebook": kept(codebook, codes=torch.eye(3, 5)),
    "momentum_network": kept(momentum, target=torch.zeros(5, 6)),
    "unchanged_buffer": kept(lambda m, x: energy(m.a(x) * m.s), s=SCALE),
    "buffer_of_integers": kept(lambda m, x: energy(m.a(x)[:, m.i]), i=torch.tensor([0, 2, 2])),
    "buffer_that_is_not_saved": kept(
        lambda m, x: energy(m.a(x) * m.s),
        setup=lambda m: m.register_buffer("s", 2 * SCALE, persistent=False),
    ),
    "unused_buffer": kept(plain, s=SCALE),
    "constant_outside": kept(lambda m, x: energy(m.a(x) * HALF[:, 0])),
    "gradient_scaled": kept(plain, setup=hooked(lambda g: g * 2)),
    "gradient_masked": kept(plain, setup=hooked(lambda g: g * HALF)),
    "gradient_hooks_in_turn": kept(plain, setup=hooked(lambda g: g * 2, lambda g: g + 0.1)),
    "gradient_clipped": kept(plain, setup=hooked(lambda g: g.clamp(-0.01, 0.01))),
    "gradient_normed": kept(plain, setup=hooked(lambda g: g / (g.norm() + 1))),
    "gradients_of_all_clipped": kept(plain, setup=every_parameter),
    "gradient_watched": kept(plain, setup=hooked(lambda g: None)),
    "gradient_accumulated": kept(plain, setup=accumulated),
    "gradient_of_an_activation": kept(activation_hook),
    "hooks_of_modules": kept(plain, setup=of_modules),
    "backward_hook_of_a_module": kept(plain, setup=of_gradients),
    "python_counter": kept(python_counter, setup=attribute(calls=0)),
    "state_in_an_attribute": kept(remembers, setup=attribute(h=None)),
    "last_output_kept": kept(keeps_the_last, setup=attribute(last=None)),
    "outputs_collected": kept(collects, setup=attribute(all=[])),
    "table_cached": kept(caches, setup=attribute(table=None)),
    "parameter_in_a_list": kept(from_a_list, setup=lambda m: setattr(m, "all", [m.a.weight])),
    "teacher_in_parameters": Case(lambda: (Teacher(), x(6))),
    "python_random": kept(lambda m, x: energy(m.a(x)) * random.random()),
    "python_random_branch": kept(
        lambda m, x: energy(m.a(x)) * (1 if random.random() < 0.999 else 2)
    ),
    "numpy_random": kept(lambda m, x: energy(m.a(x)) * float(np.random.rand())),
}
