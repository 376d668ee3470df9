"""A residual network fine-tuned with OneCycleLR (as accelerate's cv_example)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from transformers import ResNetConfig, ResNetForImageClassification

import medley


def loss_of(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    outputs = model(images).logits
    return F.cross_entropy(outputs, labels)


def train(steps: int) -> list[float]:
    data = TensorDataset(torch.randn(40, 3, 32, 32), torch.randint(0, 5, (40,)))
    loader = DataLoader(data, batch_size=8)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    model = ResNetForImageClassification(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3 / 25)
    scheduler = OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps + 1)
    graph = medley.capture(model, data[:8], loss=loss_of)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, optimizer)
    losses: list[float] = []
    for images, labels in loader:
        if len(losses) == steps:
            break
        loss = trainer.step((images, labels)).loss
        scheduler.step()
        losses.append(loss)
    return losses
