"""A decoder-only transformer after GPT-2: learned positions, pre-norm, GELU, tied head."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from medley_extras.models.sizes import make_config


@dataclasses.dataclass(frozen=True)
class GPTConfig:
    """Sizes; `batch` is the number of rows of the example batch."""

    vocabulary: int = 256
    positions: int = 32
    width: int = 64
    layers: int = 2
    heads: int = 4
    dropout: float = 0.0
    tied: bool = True
    batch: int = 4


def _size(width: int, layers: int, heads: int, vocabulary: int = 51200) -> dict[str, Any]:
    return {
        "vocabulary": vocabulary,
        "positions": 1024,
        "width": width,
        "layers": layers,
        "heads": heads,
    }


# GPT-2's own sizes, and the family of HARP's evaluation.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "124m": _size(768, 12, 12, 50304),
    "350m": _size(1024, 24, 16),
    "760m": _size(1536, 24, 16),
    "1.3b": _size(2048, 24, 32),
    "2.6b": _size(2560, 32, 32),
    "6.7b": _size(4096, 32, 32),
    "15b": _size(5120, 48, 40),
    "39b": _size(8192, 48, 64),
    "76b": _size(10240, 60, 80),
}


class Attention(nn.Module):
    """Causal self-attention with a fused QKV projection."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, s, width] -> [b, s, width]."""
        b, s, width = x.shape
        qkv = self.qkv(x).view(b, s, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(b, s, width))
        return result


class MLP(nn.Module):
    """Two linear layers around a GELU."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, s, width] -> [b, s, width]."""
        return self.down(F.gelu(self.up(x), approximate="tanh"))  # type: ignore[no-any-return]


class Block(nn.Module):
    """Attention and MLP, each after a layer norm, with residuals."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = MLP(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, s, width] -> [b, s, width]."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        return x + self.dropout(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]


class GPT(nn.Module):
    """Returns the mean cross-entropy of the next tokens."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.tokens.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Takes input_ids, labels i64 [b, s]; returns the loss []. Labels of -100 are ignored."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.dropout(self.tokens(input_ids) + self.positions(places))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def gpt(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model and an example batch of random tokens."""
    config = make_config(GPTConfig, SIZES, size, overrides)
    shape = (config.batch, config.positions)
    batch = {
        "input_ids": torch.randint(0, config.vocabulary, shape, device="cpu"),
        "labels": torch.randint(0, config.vocabulary, shape, device="cpu"),
    }
    return GPT(config), batch
