"""A multi-layer perceptron with a mean squared error: the smallest complete model."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from medley_extras.models.sizes import make_config


@dataclasses.dataclass(frozen=True)
class MLPConfig:
    """Sizes; `batch` is the number of rows of the example batch."""

    inputs: int = 8
    width: int = 16
    layers: int = 2
    outputs: int = 4
    batch: int = 4


SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "small": {"inputs": 256, "width": 1024, "layers": 4, "outputs": 64},
}


class MLP(nn.Module):
    """Returns the mean squared error of the outputs."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        widths = [config.inputs] + [config.width] * (config.layers - 1)
        self.layers = nn.ModuleList(nn.Linear(width, config.width) for width in widths)
        self.head = nn.Linear(config.width, config.outputs)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        """Takes x [b, inputs], target [b, outputs]; returns the loss []."""
        for layer in self.layers:
            x = F.relu(layer(x))
        return F.mse_loss(self.head(x), target)


def mlp(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model and an example batch of random values."""
    config = make_config(MLPConfig, SIZES, size, overrides)
    batch = {
        "x": torch.randn(config.batch, config.inputs, device="cpu"),
        "target": torch.randn(config.batch, config.outputs, device="cpu"),
    }
    return MLP(config), batch
