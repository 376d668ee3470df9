"""An image classifier: a convolutional network with StepLR and Adadelta (as PyTorch's mnist)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import medley


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 3)
        self.conv2 = nn.Conv2d(6, 8, 3)
        self.fc = nn.Linear(8 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv2(F.relu(self.conv1(x)))), 2)
        return F.log_softmax(self.fc(torch.flatten(x, 1)), dim=1)


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return F.nll_loss(model(images), labels)


def train(steps: int) -> list[float]:
    data = TensorDataset(torch.randn(32, 1, 12, 12), torch.randint(0, 10, (32,)))
    loader = DataLoader(data, batch_size=8)
    model = Net()
    optimizer = torch.optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=2, gamma=0.7)
    graph = medley.capture(model, data[:8], loss=loss_of)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, optimizer)
    losses: list[float] = []
    while len(losses) < steps:
        for images, labels in loader:
            loss = trainer.step((images, labels)).loss
            losses.append(loss)
        scheduler.step()
    return losses[:steps]
