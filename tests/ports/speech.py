"""Speech recognition with CTC: a convolution, a GRU and padded targets."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Recogniser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(5, 12, 3, padding=1)
        self.rnn = nn.GRU(12, 8, batch_first=True, bidirectional=True)
        self.head = nn.Linear(16, 7)

    def forward(self, sound: Tensor) -> Tensor:
        h = F.gelu(self.conv(sound)).transpose(1, 2)
        return F.log_softmax(self.head(self.rnn(h)[0]), dim=-1)


def train(steps: int) -> list[float]:
    model = Recogniser()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        sound, targets = torch.randn(8, 5, 12), torch.randint(1, 7, (8, 4))
        lengths, target_lengths = torch.randint(9, 13, (8,)), torch.randint(1, 5, (8,))
        logits = model(sound).transpose(0, 1)
        loss = F.ctc_loss(logits, targets, lengths, target_lengths, zero_infinity=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
