"""Two pictures through one network with batch norms (as PyTorch's siamese example)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley


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


def loss_of(model: nn.Module, one: Tensor, two: Tensor, same: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(model(one, two), same)


def train(steps: int) -> list[float]:
    model = Siamese()
    pictures = torch.arange(512.0).view(8, 1, 8, 8).sin()
    example = (pictures, pictures.flip(0), torch.ones(8))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
    graph = medley.capture(model, example, loss=loss_of)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, optimizer)
    losses = []
    for _ in range(steps):
        one, two = torch.randn(8, 1, 8, 8), torch.randn(8, 1, 8, 8)
        same = torch.randint(0, 2, (8,)).to(one.dtype)
        loss = trainer.step((one, two, same)).loss
        losses.append(loss)
    return losses
