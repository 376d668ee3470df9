"""Denoising with an average of the weights that warms up (as diffusers' train_unconditional)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 16), nn.SiLU(), nn.Linear(16, 8))
        self.first = nn.Conv2d(1, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.last = nn.Conv2d(8, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        h = self.first(x) + self.time(t[:, None])[:, :, None, None]
        return self.last(F.silu(self.norm(h)))


class EMAModel:
    """The share of the past grows with the step: 1 - (1 + step) ** -0.75, at most 0.9999."""

    def __init__(self, model: nn.Module) -> None:
        self.step, self.shadow = 0, [p.detach().clone() for p in model.parameters()]

    def update(self, model: nn.Module) -> None:
        self.step += 1
        count = max(0, self.step - 1)
        decay = min(1 - (1 + count) ** -0.75, 0.9999) if count else 0.0
        for average, p in zip(self.shadow, model.parameters(), strict=True):
            average.sub_((1 - decay) * (average - p.detach()))


def decay(step: int) -> float:
    return min(1 - (1 + step) ** -0.75, 0.9999)


def loss_of(model: nn.Module, noisy: Tensor, t: Tensor, noise: Tensor) -> Tensor:
    return F.mse_loss(model(noisy, t), noise)


def train(steps: int) -> list[float]:
    model = Denoiser()
    pictures = torch.arange(512.0).view(8, 1, 8, 8).sin()
    example = (pictures, torch.arange(8) / 8, pictures)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-6)
    ema = EMAModel(model)
    graph = medley.capture(model, example, loss=loss_of)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    rule = medley.from_torch(optimizer, model, max_norm=1.0, average=decay)
    trainer = medley.Trainer(model, graph, plan, rule)
    losses = []
    for _ in range(steps):
        clean, noise, t = torch.randn(8, 1, 8, 8), torch.randn(8, 1, 8, 8), torch.rand(8)
        keep = t.view(-1, 1, 1, 1)
        noisy = keep.sqrt() * clean + (1 - keep).sqrt() * noise
        loss = torch.tensor(trainer.step((noisy, t, noise)).loss)
        losses.append(loss.item())
    ema.shadow = list(trainer.averages().values())
    return losses + [p.norm().item() for p in ema.shadow]
