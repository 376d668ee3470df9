"""The transformer encoder layer that BERT, ViT and the mixture of experts share."""

from __future__ import annotations

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Multi-head attention over all positions, or those that `mask` allows."""

    def __init__(self, width: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.q = nn.Linear(width, width)
        self.k = nn.Linear(width, width)
        self.v = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [b, s, width], mask bool [b, 1, 1, s] (true: attend) -> [b, s, width]."""
        b, s, width = x.shape
        q, k, v = (
            project(x).view(b, s, self.heads, width // self.heads).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(b, s, width))
        return result


class FeedForward(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, s, width] -> [b, s, width]."""
        result: Tensor = self.down(F.gelu(self.up(x)))
        return result


class EncoderLayer(nn.Module):
    """Attention and feed-forward with residuals; layer norms after (BERT) or before (ViT)."""

    def __init__(
        self,
        width: int,
        heads: int,
        hidden: int,
        dropout: float = 0.0,
        norm_first: bool = False,
    ) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.attention = SelfAttention(width, heads, dropout)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = FeedForward(width, hidden)
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """x [b, s, width], mask bool [b, 1, 1, s] -> [b, s, width]."""
        if self.norm_first:
            x = x + self.dropout(self.attention(self.norm1(x), mask))
            x = x + self.dropout(self.mlp(self.norm2(x)))
        else:
            x = self.norm1(x + self.dropout(self.attention(x, mask)))
            x = self.norm2(x + self.dropout(self.mlp(x)))
        return x
