"""A generator and a discriminator with batch norms (as PyTorch's dcgan)."""

import torch
from torch import Tensor, nn


def networks() -> tuple[nn.Module, nn.Module]:
    generator = nn.Sequential(
        nn.ConvTranspose2d(6, 8, 4, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False),
        nn.Tanh(),
    )
    discriminator = nn.Sequential(
        nn.Conv2d(1, 8, 4, 2, 1, bias=False),
        nn.BatchNorm2d(8),
        nn.LeakyReLU(0.2),
        nn.Conv2d(8, 1, 4, bias=False),
        nn.Flatten(0),
    )
    return generator, discriminator


def ones(x: Tensor) -> Tensor:
    return torch.ones_like(x)


def train(steps: int) -> list[float]:
    net_g, net_d = networks()
    criterion = nn.BCEWithLogitsLoss()
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    losses = []
    for _ in range(steps):
        real, noise = torch.rand(8, 1, 8, 8) * 2 - 1, torch.randn(8, 6, 1, 1)
        net_d.zero_grad()
        answer = net_d(real)
        loss_real = criterion(answer, ones(answer))
        answer = net_d(net_g(noise).detach())
        loss_d = loss_real + criterion(answer, 0 * ones(answer))
        loss_d.backward()
        optimizer_d.step()
        net_g.zero_grad()
        answer = net_d(net_g(noise))
        loss_g = criterion(answer, ones(answer))
        loss_g.backward()
        optimizer_g.step()
        losses += [loss_d.item(), loss_g.item()]
    return losses
