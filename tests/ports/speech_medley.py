"""Speech recognition with CTC: a convolution, a GRU and padded targets."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, 12, 3, padding=1)
        self.rnn = nn.GRU(12, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 7)

    def forward(self, sound: Tensor) -> Tensor:
        h = F.gelu(self.conv(sound)).transpose(1, 2)
        return F.log_softmax(self.head(self.rnn(h)[0]), dim=-1)


def loss_of(
    model: nn.Module, sound: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor
) -> Tensor:
    logits = model(sound).transpose(0, 1)
    return F.ctc_loss(logits, targets, lengths, target_lengths, zero_infinity=True)


def train(steps: int) -> list[float]:
    model = Recogniser()
    lengths = torch.full((8,), 12)
    sound = torch.arange(480.0).view(8, 5, 12).sin()
    example = (sound, torch.ones(8, 4).long(), lengths, lengths // 4)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
    graph = medley.capture(model, example, loss=loss_of)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, medley.from_torch(optimizer, model, max_norm=5.0))
    losses = []
    for _ in range(steps):
        sound, targets = torch.randn(8, 5, 12), torch.randint(1, 7, (8, 4))
        lengths, target_lengths = torch.randint(9, 13, (8,)), torch.randint(1, 5, (8,))
        loss = trainer.step((sound, targets, lengths, target_lengths)).loss
        losses.append(loss)
    return losses
