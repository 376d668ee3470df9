"""Every op of every model has a rule; one without is computed whole, and says so."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

import medley
from medley import _core


@pytest.mark.parametrize("name", ZOO)
def test_models_fall_back_nowhere(name: str) -> None:
    model, batch = ZOO[name]()
    assert _core.fallbacks(medley.capture(model, batch).core) == []


class Unusual(nn.Module):
    """Uses an op for which there is no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        """x [b, 4] -> []."""
        return torch.linalg.cross((x * self.scale)[:, :3], x[:, 1:]).sum()


def test_an_op_without_a_rule_is_named() -> None:
    with pytest.warns(UserWarning, match="linalg_cross"):
        medley.capture(Unusual(), torch.randn(3, 4))
