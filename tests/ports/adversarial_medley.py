"""A generator and a discriminator with batch norms (as PyTorch's dcgan)."""

import torch
from torch import Tensor, nn

import medley


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


def discriminator_loss(model: nn.Module, real: Tensor, noise: Tensor) -> Tensor:
    net_g, net_d = model["g"], model["d"]
    criterion = nn.BCEWithLogitsLoss()
    answer = net_d(real)
    loss_real = criterion(answer, ones(answer))
    answer = net_d(net_g(noise).detach())
    loss_d = loss_real + criterion(answer, 0 * ones(answer))
    return loss_d


def generator_loss(model: nn.Module, noise: Tensor) -> Tensor:
    net_g, net_d = model["g"], model["d"]
    criterion = nn.BCEWithLogitsLoss()
    answer = net_d(net_g(noise))
    loss_g = criterion(answer, ones(answer))
    return loss_g


def train(steps: int) -> list[float]:
    net_g, net_d = networks()
    optimizer_d = torch.optim.Adam(net_d.parameters(), lr=2e-4, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(net_g.parameters(), lr=2e-4, betas=(0.5, 0.999))
    model = nn.ModuleDict({"g": net_g, "d": net_d})
    real = torch.arange(512.0).view(8, 1, 8, 8).sin()
    noise = torch.arange(48.0).view(8, 6, 1, 1).sin()
    graph_d = medley.capture(model, (real, noise), loss=discriminator_loss, train="d.*")
    graph_g = medley.capture(model, (noise,), loss=generator_loss, train="g.*")
    plan_d = medley.plan(graph_d, "cluster.yaml", global_batch=8)
    plan_g = medley.plan(graph_g, "cluster.yaml", global_batch=8)
    objectives = {
        "d": medley.Objective(graph_d, plan_d, medley.from_torch(optimizer_d, model)),
        "g": medley.Objective(graph_g, plan_g, medley.from_torch(optimizer_g, model)),
    }
    trainer = medley.JointTrainer(model, objectives)
    losses = []
    for _ in range(steps):
        real, noise = torch.rand(8, 1, 8, 8) * 2 - 1, torch.randn(8, 6, 1, 1)
        loss_d = torch.tensor(trainer.step("d", (real, noise)).loss)
        loss_g = torch.tensor(trainer.step("g", (noise,)).loss)
        losses += [loss_d.item(), loss_g.item()]
    return losses
