"""Models with several losses over one state, and the loops that people train them with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import medley
import medley.optimizer

ROWS = 6


@dataclasses.dataclass(frozen=True)
class Loss:
    """A method of a model, the parameters that it trains, and with what."""

    method: str
    train: str | tuple[str, ...]
    torch_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    optimizer: medley.optimizer.Optimizer
    after: Callable[[nn.Module], None] = lambda model: None  # of a step in PyTorch's loop


@dataclasses.dataclass(frozen=True)
class Case:
    """A model, the tensors of a batch for each method, and the order of the steps."""

    make: Callable[[], nn.Module]
    batch: Callable[[], Any]
    losses: Mapping[str, Loss]
    order: tuple[str, ...]


def adam(lr: float, **options: Any) -> tuple[Any, Any]:
    """Returns PyTorch's optimizer and ours."""
    return (
        lambda parameters: torch.optim.Adam(parameters, lr=lr, **options),
        medley.Adam(lr=lr, **options),
    )


class LinearGan(nn.Module):
    """A generator and a discriminator of one layer each."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.discriminator = nn.Linear(3, 4), nn.Linear(4, 2)

    def discriminator_loss(self, noise: Tensor, real: Tensor) -> Tensor:
        """Real rows are 1, generated ones 0."""
        fake = self.generator(noise).detach()
        return self.judged(real, 1.0) + self.judged(fake, 0.0)

    def generator_loss(self, noise: Tensor, real: Tensor) -> Tensor:
        """Generated rows pass as real ones."""
        return self.judged(self.generator(noise), 1.0)

    def judged(self, x: Tensor, label: float) -> Tensor:
        """Returns the loss of rows that have a label."""
        score = self.discriminator(x).flatten(1).mean(1)
        return functional.binary_cross_entropy_with_logits(score, torch.full_like(score, label))


class ConvGan(LinearGan):
    """DCGAN in small: transposed convolutions and convolutions, batch norms in both."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(
            nn.ConvTranspose2d(3, 4, 2, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.ConvTranspose2d(4, 2, 4, 2, 1),
            nn.Tanh(),
        )
        self.discriminator = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4, 2, 4),
        )


def noise_and_rows() -> Any:
    """Of the linear GAN."""
    return {"noise": torch.randn(ROWS, 3), "real": torch.randn(ROWS, 4)}


def noise_and_pictures() -> Any:
    """Of the GAN of convolutions."""
    return {"noise": torch.randn(ROWS, 3, 1, 1), "real": torch.randn(ROWS, 2, 4, 4)}


def gan_losses(lr: float = 1e-2) -> dict[str, Loss]:
    """Of both GANs."""
    betas = {"betas": (0.5, 0.999)}
    return {
        "d": Loss("discriminator_loss", "discriminator.*", *adam(lr, **betas)),
        "g": Loss("generator_loss", "generator.*", *adam(lr / 2, **betas)),
    }


CASES = {
    "linear gan": Case(LinearGan, noise_and_rows, gan_losses(), ("d", "g")),
    "dcgan": Case(ConvGan, noise_and_pictures, gan_losses(), ("d", "g")),
    "two and one": Case(LinearGan, noise_and_rows, gan_losses(), ("d", "d", "g")),
}
