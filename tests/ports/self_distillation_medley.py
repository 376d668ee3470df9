"""A student and its averaged, centred teacher (as in DINO)."""

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley


class DINO(nn.Module):
    center: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 10))
        self.teacher = nn.Sequential(nn.Linear(12, 16), nn.GELU(), nn.Linear(16, 10))
        self.teacher.load_state_dict(self.student.state_dict())
        self.teacher.requires_grad_(False)
        self.register_buffer("center", torch.zeros(1, 10))

    def forward(self, one: Tensor, two: Tensor, m: Tensor) -> Tensor:
        self.update_teacher(m)
        found = [self.student(each) / 0.1 for each in (one, two)]
        with torch.no_grad():
            wanted = [self.teacher(each) for each in (one, two)]
            soft = [F.softmax((each - self.center) / 0.04, dim=-1) for each in wanted]
            self.center.mul_(0.9).add_(torch.cat(wanted).mean(0, keepdim=True), alpha=0.1)
        pairs = ((soft[0], found[1]), (soft[1], found[0]))
        return sum((-q * F.log_softmax(p, dim=-1)).sum(-1).mean() for q, p in pairs) / 2

    @torch.no_grad()
    def update_teacher(self, m: float) -> None:
        for p, t in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
            t.mul_(m).add_((1 - m) * p)


def train(steps: int) -> list[float]:
    model = DINO()
    optimizer = torch.optim.AdamW(model.student.parameters(), lr=1e-3)
    m = torch.ones(())  # value of the step before
    graph = medley.capture(model, (torch.eye(8, 12), torch.ones(8, 12), m))
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, medley.from_torch(optimizer, model))
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.4 - 0.36 * math.cos(math.pi * step / steps)
        one, two = torch.randn(8, 12), torch.randn(8, 12)
        loss = torch.tensor(trainer.step((one, two, m)).loss)
        m = torch.tensor(1 - 0.004 * (math.cos(math.pi * step / steps) + 1) / 2)
        losses.append(loss.item())
    return losses
