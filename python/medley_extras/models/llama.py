"""A decoder-only transformer after Llama: RMS norm, rotary positions, grouped queries, SwiGLU."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from medley_extras.models.sizes import make_config


@dataclasses.dataclass(frozen=True)
class LlamaConfig:
    """Sizes; `batch` is the number of rows of the example batch."""

    vocabulary: int = 256
    positions: int = 32
    width: int = 64
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    groups: int = 2
    theta: float = 10000.0
    batch: int = 4


_7B = {"vocabulary": 32000, "positions": 4096, "width": 4096, "hidden": 11008, "layers": 32}
_70B = {"vocabulary": 32000, "positions": 4096, "width": 8192, "hidden": 28672, "layers": 80}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "7b": {**_7B, "heads": 32, "groups": 32},
    "70b": {**_70B, "heads": 64, "groups": 8},
}


class RMSNorm(nn.Module):
    """Divides by the root mean square of the last dim."""

    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """x [.., width] -> [.., width]."""
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotates pairs of x [b, heads, s, d] by the angles whose cos and sin are [s, d]."""
    half = x.shape[-1] // 2
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * cos + turned * sin


class Attention(nn.Module):
    """Causal self-attention; several query heads share a key head."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.head_width = config.width // config.heads
        self.q = nn.Linear(config.width, config.width, bias=False)
        self.k = nn.Linear(config.width, config.groups * self.head_width, bias=False)
        self.v = nn.Linear(config.width, config.groups * self.head_width, bias=False)
        self.out = nn.Linear(config.width, config.width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [b, s, width] -> [b, s, width]."""
        b, s, width = x.shape
        q, k, v = (
            project(x).view(b, s, -1, self.head_width).transpose(1, 2)
            for project in (self.q, self.k, self.v)
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        result: Tensor = self.out(mixed.transpose(1, 2).reshape(b, s, width))
        return result


class MLP(nn.Module):
    """The gated unit of Llama: down(silu(gate) * up)."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """x [b, s, width] -> [b, s, width]."""
        result: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return result


class Block(nn.Module):
    """Attention and MLP, each after a norm, with residuals."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = RMSNorm(config.width)
        self.mlp = MLP(config)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """x [b, s, width] -> [b, s, width]."""
        x = x + self.attention(self.norm1(x), cos, sin)
        result: Tensor = x + self.mlp(self.norm2(x))
        return result


class Llama(nn.Module):
    """Returns the mean cross-entropy of the next tokens."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def angles(self, tokens: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cos and sin [tokens, head width] of the rotary angles, in the dtype of `like`."""
        half = self.config.width // self.config.heads // 2
        powers = torch.arange(half, device=like.device, dtype=torch.float32) / half
        places = torch.arange(tokens, device=like.device, dtype=torch.float32)
        angles = places[:, None] * torch.pow(self.config.theta, -powers)[None, :]
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(like.dtype), angles.sin().to(like.dtype)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Takes input_ids, labels i64 [b, s]; returns the loss []. Labels of -100 are ignored."""
        x = self.tokens(input_ids)
        cos, sin = self.angles(input_ids.shape[1], x)
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def llama(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model and an example batch of random tokens."""
    config = make_config(LlamaConfig, SIZES, size, overrides)
    shape = (config.batch, config.positions)
    batch = {
        "input_ids": torch.randint(0, config.vocabulary, shape, device="cpu"),
        "labels": torch.randint(0, config.vocabulary, shape, device="cpu"),
    }
    return Llama(config), batch
