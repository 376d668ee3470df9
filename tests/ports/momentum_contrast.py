"""A queue of keys and a momentum encoder (as in MoCo)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class MoCo(nn.Module):
    queue: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6))
        self.momentum_encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6))
        self.momentum_encoder.load_state_dict(self.encoder.state_dict())
        self.momentum_encoder.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(6, 32), dim=0))

    @torch.no_grad()
    def update_momentum_encoder(self) -> None:
        pairs = zip(self.encoder.parameters(), self.momentum_encoder.parameters(), strict=True)
        for p, m in pairs:
            m.mul_(0.99).add_(p, alpha=0.01)

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        self.queue.copy_(torch.cat((keys.T, self.queue[:, : -len(keys)]), dim=1))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        q = F.normalize(self.encoder(queries), dim=1)
        k = F.normalize(self.momentum_encoder(keys), dim=1)
        positive = (q * k).sum(1, keepdim=True)
        negative = q @ self.queue.clone()
        self.enqueue(k.detach())
        logits = torch.cat((positive, negative), 1) / 0.2
        return F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))


def train(steps: int) -> list[float]:
    model = MoCo()
    optimizer = torch.optim.SGD(model.encoder.parameters(), lr=0.03, momentum=0.9)
    losses = []
    for _ in range(steps):
        one, two = torch.randn(8, 12), torch.randn(8, 12)
        loss = model(one, two)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.update_momentum_encoder()
        losses.append(loss.item())
    return losses
