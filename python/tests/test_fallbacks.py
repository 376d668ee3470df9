"""Every op of every model has a rule. An op without a rule runs replicated, with a warning."""

from __future__ import annotations

import exactness
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from zoo import ZOO
from zoo_names import NAMES

import medley
from medley import _core


@pytest.mark.parametrize("name", NAMES)
def test_models_fall_back_nowhere(name: str) -> None:
    with exactness.double_precision():
        _, _, graph = exactness.captured(ZOO[name], exactness.ROWS)
    assert _core.fallbacks(graph.core) == []


class Prompted(nn.Module):
    """Rows attend to learned keys and values, and learned queries to rows."""

    def __init__(self) -> None:
        super().__init__()
        self.key = nn.Parameter(torch.randn(1, 2, 3, 4))
        self.value = nn.Parameter(torch.randn(1, 2, 3, 5))
        self.query = nn.Parameter(torch.randn(1, 2, 6, 4))

    def forward(self, x: Tensor) -> Tensor:
        """x [b, 2, 7, 4] -> []."""
        learned = F.scaled_dot_product_attention(x, self.key, self.value)
        pooled = F.scaled_dot_product_attention(self.query, x, learned)
        return pooled.square().mean()


def test_attention_to_what_all_rows_share() -> None:
    def make(batch: int) -> tuple[nn.Module, Tensor]:
        torch.manual_seed(0)
        return Prompted(), torch.randn(batch, 2, 7, 4)

    with exactness.double_precision():
        model, batch, graph = exactness.captured(make, 5)
        assert _core.fallbacks(graph.core) == []
        for seed in range(5):
            plan = exactness.random_plan(graph, seed, 5, devices=3)
            exactness.check(model, batch, graph, plan, 2, clip=0.0, name="prompted")


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
