"""A language model in which every second layer is a mixture of experts.

The feed-forward of such a layer is a set of experts. Each token selects its two best experts. In
`moe` both take it, independent of their load. In `bert_moe`, the model of HAP's evaluation, an
expert takes a fixed number of tokens per row: all shapes are static and rows are independent. There
the tokens travel to the experts by an all-to-all.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from medley import custom_ops
from medley_extras.models.encoder import FeedForward, SelfAttention
from medley_extras.models.sizes import make_config


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """Sizes. With `capacity` an expert takes `capacity * 2 * positions / experts` tokens of a row
    and drops the others, by matmuls with one-hot tensors (GShard,
    https://arxiv.org/abs/2006.16668). Without it an expert takes all, by one op (MegaBlocks,
    https://arxiv.org/abs/2211.15841)."""

    vocabulary: int = 256
    positions: int = 16
    width: int = 32
    hidden: int = 64
    layers: int = 2
    heads: int = 4
    experts: int = 4
    capacity: float | None = None
    balance: float = 0.01
    batch: int = 4


_BASE = {"vocabulary": 30528, "positions": 128, "width": 768, "hidden": 3072, "layers": 12}
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "base": {**_BASE, "heads": 12, "experts": 16},
}
BERT_SIZES: dict[str, dict[str, Any]] = {
    "tiny": {"capacity": 1.0},
    # As in the evaluation of HAP: twice as many experts as devices, here for eight.
    "hap": {**_BASE, "heads": 12, "vocabulary": 33278, "experts": 16, "capacity": 1.25},
}


class Experts(nn.Module):
    """A linear gate, and experts that are feed-forwards without biases."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.num = config.experts
        capacity = config.capacity
        self.capacity = (
            None
            if capacity is None
            else math.ceil(capacity * 2 * config.positions / config.experts)
        )
        self.gate = nn.Linear(config.width, config.experts, bias=False)
        scale = config.width**-0.5
        self.up = nn.Parameter(torch.randn(config.experts, config.hidden, config.width) * scale)
        self.down = nn.Parameter(torch.randn(config.experts, config.width, config.hidden) * scale)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [b, s, width] -> [b, s, width] and the load of each row [b], 1 if it is even."""
        gates = F.softmax(self.gate(x), -1)  # [b, s, experts]
        return (
            self._all(x, gates) if self.capacity is None else self._up_to(self.capacity, x, gates)
        )

    def _all(self, x: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        weights, indices = gates.topk(2, -1)  # [b, s, 2]
        one = self._one_hot(indices[..., 0], self.num, gates.dtype)
        load = (gates.mean(1) * one.mean(1)).sum(-1) * self.num
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = custom_ops.experts(
            x.flatten(0, 1),
            indices.flatten(0, 1),
            weights.flatten(0, 1),
            self.up,
            self.down,
            "relu",
        )
        return mixed.view_as(x), load

    def _one_hot(self, index: Tensor, size: int, dtype: torch.dtype) -> Tensor:
        return (index.unsqueeze(-1) == torch.arange(size, device=index.device)).to(dtype)

    def _up_to(self, capacity: int, x: Tensor, gates: Tensor) -> tuple[Tensor, Tensor]:
        first = gates.argmax(-1)
        one = self._one_hot(first, self.num, gates.dtype)
        second = gates.masked_fill(one.bool(), -1.0).argmax(-1)
        two = self._one_hot(second, self.num, gates.dtype)
        load = (gates.mean(1) * one.mean(1)).sum(-1) * self.num
        # The place of a token in its expert's queue. Second choices follow all first ones.
        place1 = one.cumsum(1) - one
        place2 = two.cumsum(1) - two + one.sum(1, keepdim=True)
        gate1 = (gates * one).sum(-1)
        gate2 = (gates * two).sum(-1)
        total = gate1 + gate2
        combine = torch.zeros_like(total)[..., None, None]
        for chosen, place, gate in ((one, place1, gate1), (two, place2, gate2)):
            queue = (place * chosen).sum(-1)  # [b, s]
            slot = self._one_hot(queue.long(), capacity, gates.dtype)  # [b, s, capacity]
            weight = (gate / total)[..., None] * chosen  # [b, s, experts]
            combine = combine + weight[..., None] * slot[..., None, :]
        dispatch = (combine > 0).to(x.dtype)  # [b, s, experts, capacity]
        inputs = torch.einsum("bsec,bsm->ebcm", dispatch, x)
        hidden = F.relu(torch.einsum("ebcm,efm->ebcf", inputs, self.up))
        outputs = torch.einsum("ebcf,emf->ebcm", hidden, self.down)
        return torch.einsum("bsec,ebcm->bsm", combine, outputs), load


class Layer(nn.Module):
    """Attention and a feed-forward or experts, each after a layer norm, with residuals."""

    def __init__(self, config: MoEConfig, experts: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = SelfAttention(config.width, config.heads)
        self.norm2 = nn.LayerNorm(config.width)
        self.experts = Experts(config) if experts else None
        self.mlp = None if experts else FeedForward(config.width, config.hidden)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """x [b, s, width] -> [b, s, width] and the load [b] of the experts, if there are any."""
        x = x + self.attention(self.norm1(x))
        if self.experts is None:
            assert self.mlp is not None
            return x + self.mlp(self.norm2(x)), None
        mixed, load = self.experts(self.norm2(x))
        return x + mixed, load


class MoE(nn.Module):
    """Returns the mean cross-entropy of the tokens plus `balance` times the mean load."""

    def __init__(self, config: MoEConfig) -> None:
        super().__init__()
        self.balance = config.balance
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.positions, config.width)
        self.layers = nn.ModuleList(Layer(config, i % 2 == 1) for i in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Takes input_ids, labels i64 [b, s]; returns the loss []. Labels of -100 are ignored."""
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        x = self.tokens(input_ids) + self.positions(places)
        loads: list[Tensor] = []
        for layer in self.layers:
            x, load = layer(x)
            if load is not None:
                loads.append(load)
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        for load in loads:
            loss = loss + self.balance * load.mean()
        return loss


def _make(config: MoEConfig) -> tuple[nn.Module, dict[str, Tensor]]:
    shape = (config.batch, config.positions)
    batch = {
        "input_ids": torch.randint(0, config.vocabulary, shape, device="cpu"),
        "labels": torch.randint(0, config.vocabulary, shape, device="cpu"),
    }
    return MoE(config), batch


def moe(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model that keeps all tokens, and an example batch of random tokens."""
    return _make(make_config(MoEConfig, SIZES, size, overrides))


def bert_moe(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model with limited experts, as in HAP's evaluation, and an example batch."""
    return _make(make_config(MoEConfig, BERT_SIZES, size, overrides))
