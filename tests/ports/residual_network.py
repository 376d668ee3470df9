"""A residual network fine-tuned with OneCycleLR (as accelerate's cv_example)."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import DataLoader, TensorDataset
from transformers import ResNetConfig, ResNetForImageClassification


def train(steps: int) -> list[float]:
    data = TensorDataset(torch.randn(40, 3, 32, 32), torch.randint(0, 5, (40,)))
    loader = DataLoader(data, batch_size=8)
    config = ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    model = ResNetForImageClassification(config)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3 / 25)
    scheduler = OneCycleLR(optimizer, max_lr=3e-3, total_steps=steps + 1)
    losses: list[float] = []
    for images, labels in loader:
        if len(losses) == steps:
            break
        outputs = model(images).logits
        loss = F.cross_entropy(outputs, labels)
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
