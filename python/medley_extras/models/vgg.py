"""A convolutional image classifier after VGG-19, optionally with batch norm."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from medley_extras.models.sizes import make_config


@dataclasses.dataclass(frozen=True)
class VGGConfig:
    """Sizes. `channels` has one tuple per resolution, which halves after each.

    `pool`: side to which the last features are pooled before the classifier; 0: no pooling.
    """

    image: int = 8
    channels: tuple[tuple[int, ...], ...] = ((4, 4), (8,))
    hidden: int = 16
    classes: int = 10
    batch_norm: bool = False
    dropout: float = 0.0
    pool: int = 0
    batch: int = 4


_VGG19 = ((64,) * 2, (128,) * 2, (256,) * 4, (512,) * 4, (512,) * 4)
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "19": {"image": 224, "channels": _VGG19, "hidden": 4096, "classes": 1000, "dropout": 0.5},
    # As in the evaluation of HAP: 139.6 million parameters on CIFAR-10's images.
    "hap": {
        "image": 32,
        "pool": 7,
        "channels": _VGG19,
        "hidden": 4096,
        "classes": 10,
        "dropout": 0.5,
    },
}


class VGG(nn.Module):
    """Returns the mean cross-entropy of the classes."""

    def __init__(self, config: VGGConfig) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        inputs = 3
        for group in config.channels:
            for outputs in group:
                layers.append(nn.Conv2d(inputs, outputs, 3, padding=1))
                if config.batch_norm:
                    layers.append(nn.BatchNorm2d(outputs))
                layers.append(nn.ReLU(inplace=True))
                inputs = outputs
            layers.append(nn.MaxPool2d(2))
        if config.pool:
            layers.append(nn.AdaptiveAvgPool2d(config.pool))
        self.features = nn.Sequential(*layers)
        side = config.pool or config.image // 2 ** len(config.channels)
        self.classifier = nn.Sequential(
            nn.Linear(inputs * side * side, config.hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.hidden),
            nn.ReLU(inplace=True),
            nn.Dropout(config.dropout),
            nn.Linear(config.hidden, config.classes),
        )

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Takes images [b, 3, image, image], labels i64 [b]; returns the loss []."""
        return F.cross_entropy(self.classifier(self.features(images).flatten(1)), labels)


def vgg(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model and an example batch of random images."""
    config = make_config(VGGConfig, SIZES, size, overrides)
    batch = {
        "images": torch.randn(config.batch, 3, config.image, config.image, device="cpu"),
        "labels": torch.randint(0, config.classes, (config.batch,), device="cpu"),
    }
    return VGG(config), batch
