"""A masked language model after BERT, with padding."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from medley_extras.models.encoder import EncoderLayer
from medley_extras.models.sizes import make_config


@dataclasses.dataclass(frozen=True)
class BertConfig:
    """Sizes; `batch` is the number of rows of the example batch."""

    vocabulary: int = 256
    positions: int = 32
    width: int = 64
    hidden: int = 128
    layers: int = 2
    heads: int = 4
    dropout: float = 0.0
    tied: bool = True
    batch: int = 4


_BASE = {"vocabulary": 30528, "positions": 512, "width": 768, "hidden": 3072, "layers": 12}
_LARGE = {"vocabulary": 30528, "positions": 512, "width": 1024, "hidden": 4096, "layers": 24}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "base": {**_BASE, "heads": 12},
    "large": {**_LARGE, "heads": 16},
    # As in the evaluation of HAP, on WikiText-2.
    "hap": {**_BASE, "heads": 12, "vocabulary": 33278, "positions": 128, "tied": False},
}


class Bert(nn.Module):
    """Returns the mean cross-entropy of the masked tokens."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.kinds = nn.Embedding(2, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(config.width, config.heads, config.hidden, config.dropout)
            for _ in range(config.layers)
        )
        self.transform = nn.Linear(config.width, config.width)
        self.transform_norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary)
        if config.tied:
            self.head.weight = self.tokens.weight

    def forward(
        self, input_ids: Tensor, token_type_ids: Tensor, attention_mask: Tensor, labels: Tensor
    ) -> Tensor:
        """Takes i64 [b, s]; returns the loss []. attention_mask is 0 at padding; labels of -100 are
        ignored."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.positions(places) + self.kinds(token_type_ids)
        x = self.dropout(self.norm(x))
        mask = attention_mask.bool()[:, None, None, :]
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.head(self.transform_norm(F.gelu(self.transform(x))))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def bert(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model and an example batch of random tokens, a sixth of them masked."""
    config = make_config(BertConfig, SIZES, size, overrides)
    shape = (config.batch, config.positions)
    tokens = torch.randint(0, config.vocabulary, shape, device="cpu")
    masked = torch.rand(shape, device="cpu") < 0.15
    masked[:, 0] = True
    lengths = torch.randint(config.positions // 2, config.positions + 1, (config.batch, 1))
    batch = {
        "input_ids": tokens,
        "token_type_ids": torch.randint(0, 2, shape, device="cpu"),
        "attention_mask": (torch.arange(config.positions)[None, :] < lengths).long(),
        "labels": torch.where(masked, tokens, -100),
    }
    return Bert(config), batch
