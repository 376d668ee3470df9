"""How modules are written: control flow, checkpoints, functions of autograd, wrappers."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from module_case import Case, Net, classes, energy, net, x
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


class Double(torch.autograd.Function):
    """Twice x, with a gradient three times as large."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 3


class Saved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return gradient @ w.t(), x.t() @ gradient


class Reverse(torch.autograd.Function):
    """Turns the gradient around: adversarial domains."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


def linear() -> nn.Module:
    return nn.Linear(6, 6)


def simple(forward: Any, /, **known: Any) -> Case:
    return net(forward, lambda: x(6), a=linear, b=linear, **known)


def blocks() -> nn.Module:
    return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(4)])


def branch_on_values(m: Any, x: Tensor) -> Tensor:
    return energy(m.a(x) if x.sum() > 0 else m.b(x))


def while_on_values(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    while h.abs().max() > 1:
        h = h / 2
    return energy(h)


def asserted(m: Any, x: Tensor) -> Tensor:
    """Checks of values of every form."""
    h = m.a(x)
    assert x.shape[1] == 6
    assert h.abs().max().item() <= 1e9, "too large"
    assert torch.isfinite(h).all() and h.numel() > 0
    assert not torch.isnan(h).any()
    assert torch.equal(x, x)
    if m.training and h.isinf().any():
        raise ValueError(f"found {h.shape}")
    with torch.autocast("cpu", enabled=False):
        assert (h < 1e9).all()
    return energy(h)


def _insist(x: Tensor) -> Tensor:
    if (x > 0).any():
        raise ValueError("positive")
    return x


def caught_check(m: Any, x: Tensor) -> Tensor:
    """Lets the error choose the computation."""
    try:
        if (x > 0).any():
            raise ValueError("positive")
    except ValueError:
        return energy(m.b(x))
    return energy(m.a(x))


def caught_by_the_caller(m: Any, x: Tensor) -> Tensor:
    try:
        return energy(m.a(_insist(x)))
    except ValueError:
        return energy(m.b(x))


def assigned_by_a_mask(m: Any, x: Tensor) -> Tensor:
    h = m.a(x) * 2
    h[x > 0] = 0.5
    h[x[:, 0] > 0.2] = m.b.weight[0]
    h[x < -1] = m.b.bias[1]
    return energy(h)


def parameter_of_another_type(m: Any, x: Tensor) -> Tensor:
    return energy(m.a.to(torch.float32)(x.float()))


def adversarial(m: Any, x: Tensor) -> Tensor:
    """A GAN in one loss with a reversed generator gradient."""
    fake = Reverse.apply(m.a(x))
    return F.softplus(m.b(fake)).mean() + F.softplus(-m.b(x)).mean()


def gradient_penalty(m: Any, x: Tensor) -> Tensor:
    x = x.requires_grad_()
    (gradient,) = torch.autograd.grad(m.a(x).tanh().sum(), x, create_graph=True)
    return (gradient.norm(dim=-1) - 1).pow(2).mean()


def distilled(m: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        target = m.b(x).softmax(-1)
    return -(target * m.a(x).log_softmax(-1)).sum(-1).mean()


def heads(m: Any, x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    h = m.a(x).relu()
    return F.cross_entropy(m.b(h), y) + 0.5 * F.mse_loss(m.c(h).squeeze(-1), z)


def equilibrium(m: Any, x: Tensor) -> Tensor:
    """A few steps towards a fixed point. Only the last has a gradient."""
    z = torch.zeros_like(x)
    with torch.no_grad():
        for _ in range(3):
            z = (m.a(z) + x).tanh()
    return energy((m.a(z) + x).tanh())


def graph_convolution(m: Any, x: Tensor, edges: Tensor) -> Tensor:
    a = edges.to(x.dtype) + torch.eye(4)
    a = a / a.sum(-1, keepdim=True)
    return energy(a @ m.b((a @ m.a(x)).relu()))


def vae(m: Any, x: Tensor, noise: Tensor) -> Tensor:
    mean, log_var = m.a(x).chunk(2, -1)
    z = mean + (0.5 * log_var).exp() * noise
    kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum(-1)
    return ((m.b(z) - x) ** 2).sum(-1).mean() + kl.mean()


def diffusion(m: Any, x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    scale = torch.linspace(0.9, 0.1, 10)[t][:, None]
    noisy = scale.sqrt() * x + (1 - scale).sqrt() * noise
    return F.mse_loss(m.a(noisy) + m.e(t), noise)


def policy(m: Any, x: Tensor, action: Tensor, reward: Tensor) -> Tensor:
    log_p = m.a(x).log_softmax(-1).gather(1, action[:, None]).squeeze(1)
    value = m.c(x).squeeze(-1)
    gain = (reward - value).detach()
    return -(log_p * gain).mean() + 0.5 * F.mse_loss(value, reward)


def siamese(m: Any, x: Tensor, y: Tensor, same: Tensor) -> Tensor:
    d = F.pairwise_distance(m.a(x), m.a(y))
    return (same * d**2 + (1 - same) * (1 - d).relu() ** 2).mean()


def ode(m: Any, x: Tensor) -> Tensor:
    for _ in range(3):
        k1 = m.a(x).tanh()
        k2 = m.a(x + 0.05 * k1).tanh()
        x = x + 0.1 * k2
    return energy(x)


def flow(m: Any, x: Tensor) -> Tensor:
    """A coupling layer of a normalizing flow."""
    a, b = x.chunk(2, -1)
    scale, shift = m.a(a).chunk(2, -1)
    z = torch.cat([a, b * scale.tanh().exp() + shift], -1)
    return (0.5 * z**2).sum(-1).mean() - scale.tanh().sum(-1).mean()


class Nested(nn.Module):
    """Keyword arguments, defaults, and a dict between modules."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Net(lambda m, h, scale: {"h": m.a(h) * scale, "n": 3}, a=nn.Linear(6, 6))

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        found = self.inner(x, scale=scale)
        return energy(found["h"]) / found["n"]


def wrapped(wrap: Any, **known: Any) -> Case:
    def make() -> tuple[nn.Module, Tensor]:
        return wrap(Net(lambda m, x: energy(m.a(x)), a=nn.Linear(6, 6))), x(6)

    return Case(make, **known)


def distributed(module: nn.Module) -> nn.Module:
    """Returns the module as one process of one has it."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return nn.parallel.DistributedDataParallel(module)


def compiled_in_place(module: nn.Module) -> nn.Module:
    module.compile(backend="eager")
    return module


@functools.partial(torch.compile, backend="eager")
def twice(x: Tensor) -> Tensor:
    return x + x


def scripted_part() -> nn.Module:
    return torch.jit.script(nn.Linear(6, 6))


class UnicodeNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module("na\u00efve\u5c64", nn.Linear(6, 6))

    def forward(self, x: Tensor) -> Tensor:
        return energy(self.naïve層(x))


CASES: dict[str, Case] = {
    "checkpointed": simple(
        lambda m, x: energy(m.b(checkpoint(lambda h: m.a(h).tanh(), x, use_reentrant=False)))
    ),
    "checkpointed_reentrant": simple(
        lambda m, x: energy(checkpoint(m.b, m.a(x).tanh(), use_reentrant=True))
    ),
    "checkpointed_sequence": net(
        lambda m, x: energy(checkpoint_sequential(m.a, 2, x, use_reentrant=False)),
        lambda: x(6),
        a=blocks,
    ),
    "function_of_autograd": simple(lambda m, x: energy(m.b(Double.apply(m.a(x))))),
    "function_with_saved_tensors": simple(lambda m, x: energy(Saved.apply(m.a(x), m.b.weight))),
    "gradient_reversal": simple(adversarial),
    "straight_through": simple(
        lambda m, x: energy(m.b(m.a(x) + (m.a(x).sign() - m.a(x)).detach()))
    ),
    "detached": simple(lambda m, x: energy(m.b(m.a(x).detach()) + m.a(x))),
    "without_gradient": simple(distilled),
    "gradient_penalty": simple(gradient_penalty),
    "equilibrium": simple(equilibrium),
    "steps_of_an_ode": simple(ode),
    "flow": net(flow, lambda: x(6), a=lambda: nn.Linear(3, 6)),
    "two_heads": net(
        heads,
        lambda: (x(6), classes(5), torch.rand(7)),
        a=linear,
        b=lambda: nn.Linear(6, 5),
        c=lambda: nn.Linear(6, 1),
    ),
    "graph_convolution": net(
        graph_convolution, lambda: (x(4, 6), classes(2, 4, 4)), a=linear, b=linear
    ),
    "vae_with_noise_in_the_batch": net(
        vae, lambda: (x(6), x(2)), a=lambda: nn.Linear(6, 4), b=lambda: nn.Linear(2, 6)
    ),
    "diffusion_with_noise_in_the_batch": net(
        diffusion,
        lambda: (x(6), x(6), classes(10)),
        a=linear,
        e=lambda: nn.Embedding(10, 6),
    ),
    "policy_gradient": net(
        policy,
        lambda: (x(6), classes(6), torch.rand(7)),
        a=linear,
        c=lambda: nn.Linear(6, 1),
    ),
    "siamese": net(siamese, lambda: (x(6), x(6), torch.rand(7).round()), a=linear),
    "keywords_and_dicts": Case(lambda: (Nested(), x(6))),
    "partial_function": simple(
        lambda m, x: energy(functools.partial(F.linear, weight=m.a.weight)(x))
    ),
    "functional_call": simple(
        lambda m, x: energy(torch.func.functional_call(m.a, {"weight": m.b.weight * 0.5}, (x,)))
    ),
    "vmap": simple(lambda m, x: energy(torch.func.vmap(lambda row: m.a.weight @ row)(x))),
    "jacobian_in_forward": simple(
        lambda m, x: energy(torch.func.vmap(torch.func.grad(lambda row: m.a(row).sum()))(x))
    ),
    "if_of_training": simple(lambda m, x: energy(m.a(x) if m.training else m.b(x))),
    "if_of_a_size": simple(lambda m, x: energy(m.a(x) if x.shape[1] > 4 else m.b(x))),
    "assigned_by_a_mask": simple(assigned_by_a_mask),
    "assertions_of_values": simple(asserted),
    "caught_by_the_caller": simple(caught_by_the_caller),
    "caught_check": simple(caught_check),
    "parameter_of_another_type": simple(parameter_of_another_type),
    "if_of_values": simple(branch_on_values),
    "while_of_values": simple(while_on_values),
    "loop_over_rows": simple(
        lambda m, x: torch.stack([energy(m.a(row)[None]) for row in x]).mean()
    ),
    "number_of_a_tensor": simple(lambda m, x: energy(m.a(x)) * x.max().item()),
    "list_of_a_tensor": simple(lambda m, x: energy(m.a(x)) * x[0].tolist()[0]),
    "numpy": simple(lambda m, x: energy(m.a(x)) * float(x.detach().numpy().max())),
    "boolean_index": simple(lambda m, x: m.a(x)[x > 0].mean()),
    "masked_select": simple(lambda m, x: m.a(x).masked_select(x > 0).sum()),
    "nonzero": simple(lambda m, x: energy(m.a(x)) * len(x.nonzero())),
    "unique": simple(lambda m, x: energy(m.a(x)) * len(x.round().unique())),
    "cond": simple(lambda m, x: energy(torch.cond(x.sum() > 0, m.a, m.b, (x,)))),
    "fixed_rows_in_a_view": simple(lambda m, x: energy(m.a(x).view(7, 2, 3))),
    "divided_by_rows": simple(lambda m, x: energy(m.a(x) / x.shape[0])),
    "divided_by_rows_less_one": simple(lambda m, x: energy(m.a(x) / (x.shape[0] - 1))),
    "divided_by_len": simple(lambda m, x: m.a(x).pow(2).sum() / len(x)),
    "changes_the_batch": simple(lambda m, x: energy(m.a(x.add_(1)))),
    "complex_numbers": simple(lambda m, x: energy(torch.complex(m.a(x), m.b(x)).abs())),
    "float8": simple(lambda m, x: energy(m.a(x).to(torch.float8_e4m3fn).double())),
    "sparse_product": simple(
        lambda m, x: energy(torch.sparse.mm(m.a.weight.to_sparse(), x.t()).t())
    ),
    "data_parallel": wrapped(nn.DataParallel),
    "distributed_data_parallel": wrapped(distributed),
    "compiled": wrapped(functools.partial(torch.compile, backend="eager")),
    "compiled_in_place": wrapped(compiled_in_place),
    "compiled_function": simple(lambda m, x: energy(twice(m.a(x)))),
    "compiled_part": net(
        lambda m, x: energy(m.a(x)),
        lambda: x(6),
        a=lambda: torch.compile(nn.Linear(6, 6), backend="eager"),
    ),
    "scripted": wrapped(lambda m: torch.jit.trace(m, x(6))),
    "scripted_part": net(lambda m, x: energy(m.a(x)), lambda: x(6), a=scripted_part),
    "unicode_names": Case(lambda: (UnicodeNames(), x(6))),
    "lazy_layer": net(lambda m, x: energy(m.a(x)), lambda: x(6), a=lambda: nn.LazyLinear(6)),
    "function_instead_of_a_module": Case(lambda: (lambda x: x.sum(), x(6))),  # type: ignore[dict-item, return-value]
    "no_parameters": Case(lambda: (Net(lambda m, x: energy(x)), x(6))),
    "all_frozen": Case(
        lambda: (Net(lambda m, x: energy(m.a(x)), a=linear().requires_grad_(False)), x(6))
    ),
}
