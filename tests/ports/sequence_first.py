"""A translation model of nn.Transformer with time first."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Translator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(61, 16), nn.Embedding(61, 16)
        self.body = nn.Transformer(16, 2, 1, 1, 24, dropout=0.0)
        self.head = nn.Linear(16, 61)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(len(target))
        return self.head(self.body(self.source(source), self.target(target), tgt_mask=mask))


def train(steps: int) -> list[float]:
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, betas=(0.9, 0.98), eps=1e-9)
    losses = []
    for _ in range(steps):
        source, target = torch.randint(1, 61, (9, 8)), torch.randint(1, 61, (7, 8))
        logits = model(source, target[:-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
