"""Clicks from sparse features: bags of embeddings, and a loss that ignores missing answers."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(40, 6, mode="mean") for _ in range(3))
        self.dense = nn.Sequential(nn.Linear(4, 6), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 1))

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        parts = [bag(words[:, i]) for i, bag in enumerate(self.bags)]
        return self.top(torch.cat([self.dense(numbers), *parts], 1)).squeeze(1)


def loss_of(
    model: nn.Module, numbers: Tensor, words: Tensor, clicked: Tensor, known: Tensor
) -> Tensor:
    each = F.binary_cross_entropy_with_logits(model(numbers, words), clicked, reduction="none")
    return (each * known).sum() / known.sum().clamp(min=1)


def train(steps: int) -> list[float]:
    model = Recommender()
    words = torch.arange(120).view(8, 3, 5) % 40
    example = (torch.ones(8, 4), words, torch.ones(8), torch.ones(8))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
    graph = medley.capture(model, example, loss=loss_of)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, optimizer)
    losses = []
    for _ in range(steps):
        numbers, words = torch.randn(8, 4), torch.randint(0, 40, (8, 3, 5))
        clicked, known = torch.randint(0, 2, (8,)).double(), (torch.rand(8) < 0.7).double()
        loss = trainer.step((numbers, words, clicked, known)).loss
        losses.append(loss)
    return losses
