"""A variational autoencoder with a sum for a loss (as PyTorch's vae example)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley


class VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc21, self.fc22 = nn.Linear(36, 16), nn.Linear(16, 4), nn.Linear(16, 4)
        self.fc3, self.fc4 = nn.Linear(4, 16), nn.Linear(16, 36)

    def forward(self, x: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = F.relu(self.fc1(x))
        mu, logvar = self.fc21(h), self.fc22(h)
        z = mu + noise * torch.exp(0.5 * logvar)
        return torch.sigmoid(self.fc4(F.relu(self.fc3(z)))), mu, logvar


def loss_function(recon: Tensor, x: Tensor, mu: Tensor, logvar: Tensor) -> Tensor:
    bce = F.binary_cross_entropy(recon, x, reduction="sum")
    return bce - 0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())


def loss_of(model: nn.Module, data: Tensor, noise: Tensor) -> Tensor:
    recon, mu, logvar = model(data, noise)
    return loss_function(recon, data, mu, logvar)


def train(steps: int) -> list[float]:
    model = VAE()
    example = (torch.full((8, 36), 0.5), torch.ones(8, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    graph = medley.capture(model, example, loss=loss_of)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, optimizer)
    losses = []
    for _ in range(steps):
        data, noise = torch.rand(8, 36), torch.randn(8, 4)
        loss = trainer.step((data, noise)).loss
        losses.append(loss)
    return losses
