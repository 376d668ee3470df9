"""Random numbers drawn in forward: the reference takes ours, which no plan changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributions as D  # noqa: N812
import torch.nn.functional as F  # noqa: N812
from module_case import Case, classes, energy, net, x
from torch import Tensor, nn


def drawn(function: Callable[[Tensor], Tensor]) -> Case:
    """Returns the case of a function between a linear layer and the loss, in training."""
    return net(
        lambda m, x: energy(function(m.a(x))), lambda: x(6), a=lambda: nn.Linear(6, 5), seeded=True
    )


def filled(fill: Callable[[Tensor], Tensor]) -> Case:
    """Returns the case of a tensor like the activations that is filled in place, and added."""
    return drawn(lambda h: h + fill(torch.empty_like(h)))


def recurrent(
    kind: Callable[..., nn.Module], *, seeded: bool = True, batch_first: bool = True, **options: Any
) -> Case:
    """Returns the case of three recurrent layers with dropout between them."""

    def forward(m: Any, x: Tensor) -> Tensor:
        if batch_first:
            return energy(m.a(x)[0])
        return energy(m.a(x.transpose(0, 1))[0].transpose(0, 1))

    def layers() -> nn.Module:
        return kind(6, 5, 3, batch_first=batch_first, **options)

    return net(forward, lambda: x(4, 6), a=layers, seeded=seeded)


def drop_path(m: Any, x: Tensor) -> Tensor:
    """Stochastic depth, as timm has it: whole rows of a branch fall away."""
    h = m.a(x)
    mask = h.new_empty((h.shape[0], 1)).bernoulli_(0.8)
    return energy(x + h * mask.div_(0.8))


def diffusion(m: Any, x: Tensor) -> Tensor:
    t = torch.randint(0, 10, (x.shape[0],))
    noise = torch.randn_like(x)
    kept = torch.linspace(0.99, 0.01, 10)[t].unsqueeze(1)
    noisy = kept.sqrt() * x + (1 - kept).sqrt() * noise
    return F.mse_loss(m.a(noisy) + m.steps(t), noise)


def autoencoder(m: Any, x: Tensor) -> Tensor:
    """A variational autoencoder: a latent drawn around the encoder's output."""
    mean, log_variance = m.a(x).chunk(2, -1)
    latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
    divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(-1).mean()
    return F.mse_loss(m.b(latent), x) + 0.1 * divergence


def latent_of_a_distribution(m: Any, x: Tensor) -> Tensor:
    mean, spread = m.a(x).chunk(2, -1)
    posterior = D.Normal(mean, F.softplus(spread))
    loss = F.mse_loss(m.b(posterior.rsample()), x)
    return loss + D.kl_divergence(posterior, D.Normal(0.0, 1.0)).mean()


def masked_tokens(m: Any, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Masks drawn in forward, as a masked language model without a collator has them."""
    masked = torch.rand(tokens.shape) < 0.5
    logits = m.b(m.e(tokens.masked_fill(masked, 0)))
    losses = F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="none")
    return (losses * masked.flatten()).sum(), masked.sum()


def mixed_rows(m: Any, x: Tensor) -> Tensor:
    """Mixup: every row with another one."""
    order = torch.randperm(x.shape[0])
    share = torch.rand(())
    return energy(m.a(share * x + (1 - share) * x[order]))


def drawn_twice(m: Any, x: Tensor) -> Tensor:
    """Two draws of one module, and two calls of it, are four of their own."""
    return energy(m.a(F.dropout(x, 0.5) + torch.rand_like(x)) - m.a(torch.rand_like(x)))


CASES: dict[str, Case] = {
    "rand": drawn(lambda h: h * torch.rand(h.shape)),
    "rand_of_a_row": drawn(lambda h: h * torch.rand(h.shape[-1])),
    "rand_of_nothing": drawn(lambda h: h * torch.rand(())),
    "rand_like": drawn(lambda h: h * torch.rand_like(h)),
    "rand_of_another_type": drawn(lambda h: h * torch.rand_like(h, dtype=torch.float32)),
    "randn": drawn(lambda h: h + torch.randn(h.shape)),
    "randn_like": drawn(lambda h: h + torch.randn_like(h)),
    "randint": drawn(lambda h: h * torch.randint(0, 9, (h.shape[0], 1))),
    "randint_from": drawn(lambda h: h * torch.randint(-4, 9, h.shape)),
    "randint_like": drawn(lambda h: h + torch.randint_like(h, 2, 5)),
    "randperm": drawn(lambda h: h[:, torch.randperm(5)]),
    "uniform": filled(lambda t: t.uniform_(-1, 2)),
    "normal": filled(lambda t: t.normal_(1, 2)),
    "normal_of_tensors": drawn(lambda h: h + torch.normal(h.detach(), h.detach().exp())),
    "normal_of_a_deviation": drawn(lambda h: h + torch.normal(0.5, h.detach().exp())),
    "log_normal": filled(lambda t: t.log_normal_(0.1, 0.2)),
    "exponential": filled(lambda t: t.exponential_(2.0)),
    "geometric": filled(lambda t: t.geometric_(0.3)),
    "cauchy": filled(lambda t: t.cauchy_(0.5, 0.1).clamp(-2, 2)),
    "random": filled(lambda t: t.random_(3, 8)),
    "bernoulli": drawn(lambda h: h * torch.bernoulli(torch.full_like(h, 0.5))),
    "bernoulli_of_values": drawn(lambda h: h * torch.bernoulli(h.detach().sigmoid())),
    "bernoulli_of_a_number": filled(lambda t: t.bernoulli_(0.3)),
    "multinomial": drawn(lambda h: h * torch.multinomial(torch.ones(5), 1)[0]),
    "multinomial_of_rows": drawn(
        lambda h: h.gather(1, torch.multinomial(h.detach().softmax(-1), 2))
    ),
    "multinomial_replaced": drawn(
        lambda h: h.gather(1, torch.multinomial(h.detach().softmax(-1), 3, replacement=True))
    ),
    "gumbel_softmax": drawn(F.gumbel_softmax),
    "gumbel_softmax_hard": drawn(lambda h: F.gumbel_softmax(h, hard=True)),
    "alpha_dropout": drawn(lambda h: F.alpha_dropout(h, 0.5, True)),
    "feature_alpha_dropout": drawn(lambda h: F.feature_alpha_dropout(h, 0.5, True)),
    "native_dropout": drawn(lambda h: torch.native_dropout(h, 0.4, True)[0]),
    "rrelu": drawn(lambda h: F.rrelu(h, training=True)),
    "fractional_pooling": net(
        lambda m, x: energy(F.fractional_max_pool2d(m.a(x), 2, output_size=3)),
        lambda: x(2, 6, 6),
        a=lambda: nn.Conv2d(2, 3, 1),
        seeded=True,
    ),
    "stochastic_depth": net(drop_path, lambda: x(6), a=lambda: nn.Linear(6, 6), seeded=True),
    "diffusion": net(
        diffusion,
        lambda: x(6),
        a=lambda: nn.Linear(6, 6),
        steps=lambda: nn.Embedding(10, 6),
        seeded=True,
    ),
    "autoencoder": net(
        autoencoder, lambda: x(6), a=lambda: nn.Linear(6, 8), b=lambda: nn.Linear(4, 6), seeded=True
    ),
    "latent_of_a_distribution": net(
        latent_of_a_distribution,
        lambda: x(6),
        a=lambda: nn.Linear(6, 8),
        b=lambda: nn.Linear(4, 6),
        seeded=True,
    ),
    "categorical": drawn(lambda h: h * D.Categorical(logits=h.detach()).sample().unsqueeze(-1)),
    "masked_tokens": net(
        masked_tokens,
        lambda: classes(11, 4),
        e=lambda: nn.Embedding(11, 6),
        b=lambda: nn.Linear(6, 11),
        seeded=True,
    ),
    "dropout_of_an_lstm": recurrent(nn.LSTM, dropout=0.4),
    "dropout_of_a_gru_both_ways": recurrent(nn.GRU, dropout=0.4, bidirectional=True),
    "dropout_of_an_rnn_by_time": recurrent(nn.RNN, dropout=0.4, batch_first=False),
    "all_dropped_in_an_lstm": recurrent(nn.LSTM, dropout=1.0, seeded=False),
    "mixed_rows": net(mixed_rows, lambda: x(6), a=lambda: nn.Linear(6, 5), seeded=True),
    "drawn_twice": net(drawn_twice, lambda: x(6), a=lambda: nn.Linear(6, 5), seeded=True),
    "poisson": drawn(lambda h: h + torch.poisson(h.detach().exp())),
    "generator": drawn(lambda h: h * torch.rand(h.shape, generator=torch.Generator())),
    "seeded_in_forward": net(
        lambda m, x: energy(m.a(x + torch.rand(torch.manual_seed(3) and x.shape))),
        lambda: x(6),
        a=lambda: nn.Linear(6, 5),
    ),
}
