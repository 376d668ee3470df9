"""A recurrent language model, time first, hidden state carried (as word_language_model)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import medley

ROWS, LENGTH = 8, 6


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.rnn = nn.Embedding(61, 12), nn.GRU(12, 16, 2)
        self.decoder = nn.Linear(16, 61)

    def forward(self, data: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
        output, hidden = self.rnn(self.encoder(data), hidden)
        return self.decoder(output), hidden


def loss_of(
    model: nn.Module, data: Tensor, targets: Tensor, hidden: Tensor
) -> tuple[Tensor, Tensor]:
    data, targets, hidden = data.T, targets.T, hidden.transpose(0, 1)
    output, hidden = model(data, hidden)
    loss = F.cross_entropy(output.flatten(0, 1), targets.flatten())
    return loss, hidden.transpose(0, 1)


def train(steps: int) -> list[float]:
    text = torch.randint(0, 61, (steps * LENGTH + 1, ROWS))
    model = Words()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    hidden = torch.zeros(2, ROWS, 16)
    example = (text[:LENGTH].T, text[:LENGTH].T, hidden.transpose(0, 1))
    graph = medley.capture(model, example, loss=loss_of, carry={"2": "1"})
    plan = medley.plan(graph, "cluster.yaml", global_batch=ROWS)
    trainer = medley.Trainer(model, graph, plan, medley.from_torch(optimizer, model, max_norm=0.25))
    losses = []
    for start in range(0, steps * LENGTH, LENGTH):
        data, targets = text[start : start + LENGTH], text[start + 1 : start + 1 + LENGTH]
        losses.append(trainer.step((data.T, targets.T)).loss)
    return losses
