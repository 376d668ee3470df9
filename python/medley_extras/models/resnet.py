"""A convolutional image classifier after ResNet-50 (https://arxiv.org/abs/1512.03385)."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from medley_extras.models.sizes import make_config


@dataclasses.dataclass(frozen=True)
class ResNetConfig:
    """Sizes. `blocks` are counted per resolution, which halves while the width doubles. `batch` is
    the number of rows of the example batch."""

    image: int = 24
    width: int = 4
    blocks: tuple[int, ...] = (1, 2)
    classes: int = 10
    batch: int = 4


_IMAGENET = {"image": 224, "width": 64, "classes": 1000}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "50": {**_IMAGENET, "blocks": (3, 4, 6, 3)},
    "101": {**_IMAGENET, "blocks": (3, 4, 23, 3)},
}
_EXPANSION = 4


def convolution(inputs: int, outputs: int, side: int, stride: int = 1) -> nn.Sequential:
    """Returns a convolution that keeps the resolution at stride 1, and its batch norm."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, side, stride, padding=side // 2, bias=False),
        nn.BatchNorm2d(outputs),
    )


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut, which is a convolution if shapes differ."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.reduce = convolution(inputs, width, 1)
        self.spatial = convolution(width, width, 3, stride)
        self.expand = convolution(width, outputs, 1)
        same = stride == 1 and inputs == outputs
        self.shortcut = None if same else convolution(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, inputs, y, x] -> [b, 4 * width, y / stride, x / stride]."""
        y = F.relu(self.reduce(x), inplace=True)
        y = F.relu(self.spatial(y), inplace=True)
        y = self.expand(y)
        y += x if self.shortcut is None else self.shortcut(x)
        return F.relu(y, inplace=True)


class ResNet(nn.Module):
    """Returns the mean cross-entropy of the classes."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.stem = convolution(3, config.width, 7, stride=2)
        blocks: list[nn.Module] = []
        inputs, width = config.width, config.width
        for stage, count in enumerate(config.blocks):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                blocks.append(Bottleneck(inputs, width, stride))
                inputs = width * _EXPANSION
            width *= 2
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(inputs, config.classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Takes images [b, 3, image, image], labels i64 [b]; returns the loss []."""
        x = F.relu(self.stem(images), inplace=True)
        x = F.max_pool2d(x, 3, stride=2, padding=1)
        x = F.adaptive_avg_pool2d(self.blocks(x), 1).flatten(1)
        return F.cross_entropy(self.head(x), labels)


def resnet(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model and an example batch of random images."""
    config = make_config(ResNetConfig, SIZES, size, overrides)
    batch = {
        "images": torch.randn(config.batch, 3, config.image, config.image, device="cpu"),
        "labels": torch.randint(0, config.classes, (config.batch,), device="cpu"),
    }
    return ResNet(config), batch
