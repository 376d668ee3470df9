"""A student that learns from a frozen teacher and from labels."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(12, width), nn.LayerNorm(width), nn.GELU(), nn.Linear(width, 5))


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    teacher, student = model["teacher"], model["student"]
    with torch.no_grad():
        wanted = F.softmax(teacher(x) / 2.0, dim=-1)
    logits = student(x)
    soft = F.kl_div(F.log_softmax(logits / 2.0, dim=-1), wanted, reduction="batchmean") * 4.0
    return 0.5 * F.cross_entropy(logits, y) + 0.5 * soft


def train(steps: int) -> list[float]:
    teacher, student = network(32).eval().requires_grad_(False), network(8)
    model = nn.ModuleDict({"teacher": teacher, "student": student})
    example = (torch.eye(8, 12), torch.arange(8) % 5)
    optimizer = torch.optim.NAdam(student.parameters(), lr=2e-3)
    graph = medley.capture(model, example, loss=loss_of)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, medley.from_torch(optimizer, model, max_value=0.1))
    losses = []
    for _ in range(steps):
        x, y = torch.randn(8, 12), torch.randint(0, 5, (8,))
        loss = trainer.step((x, y)).loss
        losses.append(loss)
    return losses
