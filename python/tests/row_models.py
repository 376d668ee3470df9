"""Models whose batches have their rows in other dims than the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

Made = tuple[nn.Module, Any]


class Positions(nn.Module):
    """Positions of three axes, [3, rows, tokens], as of Qwen2-VL."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(16, 8)
        self.head = nn.Linear(8, 11)

    def forward(self, input_ids: Tensor, position_ids: Tensor) -> Tensor:
        hidden = self.words(input_ids) + self.places(position_ids).sum(0)
        return F.cross_entropy(self.head(hidden.tanh()).flatten(0, 1), input_ids.flatten())


class Masked(nn.Module):
    """A mask for each head, [heads, rows, queries, keys]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(11, 8), nn.Linear(8, 24)
        self.out = nn.Linear(8, 11)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        rows, length = ids.shape
        q, k, v = self.heads(self.words(ids)).view(rows, length, 3, 2, 4).unbind(2)
        scores = torch.einsum("btnd,bsnd->nbts", q, k).masked_fill(~mask, -1e4)
        mixed = torch.einsum("nbts,bsnd->btnd", scores.softmax(-1), v).flatten(2)
        return F.cross_entropy(self.out(mixed).flatten(0, 1), ids.flatten())


class Recurrent(nn.Module):
    """Words [time, rows] through a layer that has the time first, as PyTorch's do by default."""

    def __init__(self, kind: Callable[..., nn.Module], width: int = 6) -> None:
        super().__init__()
        self.words, self.body, self.head = nn.Embedding(9, 4), kind(4, width), nn.Linear(width, 9)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        hidden, _ = self.body(self.words(x))
        return F.cross_entropy(self.head(hidden).flatten(0, 1), y.flatten())


class Features(nn.Module):
    """Features [time, rows, width]. The last state gives a class per row."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.GRU(5, 6), nn.Linear(6, 4)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(features)[0][-1]), labels)


class Translator(nn.Module):
    """`nn.Transformer` with time first: dim 0 has a cross-sample dependence."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(13, 8), nn.Embedding(13, 8)
        self.body = nn.Transformer(8, 2, 1, 1, 12, dropout=0.0)
        self.head = nn.Linear(8, 13)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        before, after = target[:-1], target[1:]
        mask = nn.Transformer.generate_square_subsequent_mask(len(before))
        hidden = self.body(self.source(source), self.target(before), tgt_mask=mask)
        return F.cross_entropy(self.head(hidden).flatten(0, 1), after.flatten())


def _words(*shape: int, most: int = 9) -> Tensor:
    return torch.randint(0, most, shape)


def positions(batch: int = 7) -> Made:
    """Positions of three axes."""
    words = _words(batch, 5, most=11)
    return Positions(), {"input_ids": words, "position_ids": _words(3, batch, 5, most=16)}


def masked(batch: int = 7) -> Made:
    """A mask for each of two heads."""
    mask = torch.ones(5, 5, dtype=torch.bool).tril() | (torch.rand(2, batch, 5, 5) < 0.5)
    return Masked(), {"ids": _words(batch, 5, most=11), "mask": mask}


def lstm(batch: int = 7) -> Made:
    """An LSTM with the time first."""
    return Recurrent(nn.LSTM), (_words(12, batch), _words(12, batch))


def gru(batch: int = 7) -> Made:
    """A GRU with time first."""
    return Recurrent(nn.GRU), (_words(12, batch), _words(12, batch))


def features(batch: int = 7) -> Made:
    """Features with the time first, labels by row."""
    return Features(), {"features": torch.randn(9, batch, 5), "labels": _words(batch, most=4)}


def translator(batch: int = 7) -> Made:
    """`nn.Transformer`."""
    return Translator(), (_words(9, batch, most=13), _words(6, batch, most=13))


MODELS: dict[str, Callable[..., Made]] = {
    each.__name__: each for each in (positions, masked, lstm, gru, features, translator)
}
