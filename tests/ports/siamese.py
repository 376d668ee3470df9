"""Two pictures through one network with batch norms (as PyTorch's siamese example)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(216, 8)
        )
        self.head = nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        both = torch.cat((self.body(one), self.body(two)), 1)
        return self.head(both).squeeze(1)


def train(steps: int) -> list[float]:
    model = Siamese()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        one, two = torch.randn(8, 1, 8, 8), torch.randn(8, 1, 8, 8)
        same = torch.randint(0, 2, (8,)).to(one.dtype)
        loss = F.binary_cross_entropy_with_logits(model(one, two), same)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
