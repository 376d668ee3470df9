"""An image classifier after the vision transformer: patches, a class token, pre-norm encoder."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from medley_extras.models.encoder import EncoderLayer
from medley_extras.models.sizes import make_config


@dataclasses.dataclass(frozen=True)
class ViTConfig:
    """Sizes; `image` and `patch` are side lengths, `batch` the rows of the example batch."""

    image: int = 16
    patch: int = 4
    classes: int = 10
    width: int = 64
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    dropout: float = 0.0
    batch: int = 4


_BASE = {"image": 224, "patch": 16, "classes": 1000, "width": 768, "hidden": 3072, "layers": 12}
_LARGE = {"image": 224, "patch": 16, "classes": 1000, "width": 1024, "hidden": 4096, "layers": 24}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "base": {**_BASE, "heads": 12},
    "large": {**_LARGE, "heads": 16},
    # As in the evaluation of HAP, on CIFAR-10.
    "hap": {**_BASE, "heads": 12, "image": 32, "patch": 4, "classes": 10},
}


class ViT(nn.Module):
    """Returns the mean cross-entropy of the classes."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        patches = (config.image // config.patch) ** 2
        self.patches = nn.Conv2d(3, config.width, config.patch, stride=config.patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.width))
        self.positions = nn.Parameter(torch.randn(1, patches + 1, config.width) * 0.02)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(config.width, config.heads, config.hidden, config.dropout, True)
            for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Takes images [b, 3, image, image], labels i64 [b]; returns the loss []."""
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.class_token.expand(x.shape[0], -1, -1), x], 1)
        x = self.dropout(x + self.positions)
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(self.norm(x)[:, 0]), labels)


def vit(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model and an example batch of random images."""
    config = make_config(ViTConfig, SIZES, size, overrides)
    batch = {
        "images": torch.randn(config.batch, 3, config.image, config.image, device="cpu"),
        "labels": torch.randint(0, config.classes, (config.batch,), device="cpu"),
    }
    return ViT(config), batch
