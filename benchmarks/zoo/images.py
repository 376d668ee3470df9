"""Additions that train models of images: a loss, and a batch of images and classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Classified(nn.Module):
    """A model of images with the cross entropy of its classes, of pixels too. Trained heads of
    several outputs are averaged."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Returns the mean of the losses of all outputs."""
        losses = [functional.cross_entropy(each, labels) for each in _outputs(self.model(images))]
        return sum(losses[1:], losses[0]) / len(losses)


def _outputs(found: Any) -> list[Tensor]:
    if isinstance(found, Tensor):
        return [found]
    values = found.values() if isinstance(found, dict) else found
    return [each for value in values if value is not None for each in _outputs(value)]


def classes(rows: int, size: int, count: int) -> dict[str, Tensor]:
    """Returns a batch of square images, one class for each."""
    return {
        "images": torch.randn(rows, 3, size, size),
        "labels": torch.randint(0, count, (rows,)),
    }
