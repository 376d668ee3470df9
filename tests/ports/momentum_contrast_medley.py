"""A queue of keys and a momentum encoder (as in MoCo)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley


class MoCo(nn.Module):
    queue: Tensor
    pointer: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6))
        self.momentum_encoder = nn.Sequential(nn.Linear(12, 16), nn.ReLU(), nn.Linear(16, 6))
        self.momentum_encoder.load_state_dict(self.encoder.state_dict())
        self.momentum_encoder.requires_grad_(False)
        self.register_buffer("queue", F.normalize(torch.randn(6, 32), dim=0))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    @torch.no_grad()
    def update_momentum_encoder(self) -> None:
        pairs = zip(self.encoder.parameters(), self.momentum_encoder.parameters(), strict=True)
        for p, m in pairs:
            m.mul_(0.99).add_(p, alpha=0.01)

    @torch.no_grad()
    def enqueue(self, keys: Tensor) -> None:
        self.pointer.sub_(len(keys))
        places = (self.pointer + torch.arange(len(keys))) % 32
        self.queue.index_copy_(1, places, keys.T)

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        self.update_momentum_encoder()
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
    graph = medley.capture(model, (torch.eye(8, 12), torch.ones(8, 12)))
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, medley.from_torch(optimizer, model))
    losses = []
    for _ in range(steps):
        one, two = torch.randn(8, 12), torch.randn(8, 12)
        loss = torch.tensor(trainer.step((one, two)).loss)
        losses.append(loss.item())
    return losses
