"""Queries that see no key, or keys hidden by large finite numbers alone, as plain PyTorch has them,
on each way that attention is computed."""

from __future__ import annotations

import json
import math

import exactness
import plain_torch
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

ROWS, HEADS, TOKENS = plain_torch.ROWS, 2, 5


class Attend(nn.Module):
    """Attention of `HEADS` heads. Keys and values may have one head."""

    def __init__(
        self, hide: str, masks: str, drops: bool, groups: int, causal: bool, wide: bool = False
    ) -> None:
        super().__init__()
        self.hide, self.masks, self.drops, self.causal = hide, masks, drops, causal
        self.groups = groups
        self.q = nn.Linear(4, HEADS * 2)
        self.k = nn.Linear(4, groups * 2)
        self.v = nn.Linear(4, groups * (3 if wide else 2))
        self.bias = nn.Parameter(torch.randn(TOKENS, TOKENS)) if masks == "trained" else None

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        """Returns a mean of x [rows, tokens, 4] over the tokens in `keep` [rows, tokens]."""
        seen = keep[:, None, None]
        if self.causal:
            seen = seen & torch.ones(TOKENS, TOKENS, dtype=torch.bool).tril()
        mask = seen
        if self.masks != "bool":
            low = {"inf": -math.inf, "least": torch.finfo(x.dtype).min}.get(self.hide)
            low = -float(self.hide) if low is None else low
            start = torch.zeros(TOKENS, TOKENS) if self.bias is None else self.bias
            mask = start.masked_fill(~seen, low)
        q, k, v = (
            each(x).unflatten(2, (heads, -1)).transpose(1, 2)
            for each, heads in ((self.q, HEADS), (self.k, self.groups), (self.v, self.groups))
        )
        dropout = 1e-13 if self.drops else 0.0  # drops nothing
        mixed = F.scaled_dot_product_attention(
            q, k, v, mask, dropout_p=dropout, enable_gqa=self.groups != HEADS
        )
        return (mixed + 1).pow(2).mean()


class Ways(nn.Module):
    """The sum of several."""

    def __init__(self, *ways: Attend) -> None:
        super().__init__()
        self.ways = nn.ModuleList(ways)

    def forward(self, x: Tensor, keep: Tensor) -> Tensor:
        """Returns the loss."""
        total: Tensor = sum(way(x, keep) for way in self.ways)  # type: ignore[assignment]
        return total


def batch(seed: int) -> dict[str, Tensor]:
    """Returns rows with padding on the left: none, some, and in row 1 nothing else."""
    keep = torch.arange(TOKENS).expand(ROWS, -1) >= torch.tensor(
        [[0], [TOKENS], [1], [3], [0], [2]]
    )
    numbers = torch.Generator().manual_seed(seed)
    return {"x": torch.randn(ROWS, TOKENS, 4, generator=numbers), "keep": keep.roll(seed, 0)}


def check(*ways: Attend) -> None:
    """Asserts that they train like plain PyTorch. A failure names the number of the variant."""
    plain_torch.check(Ways(*ways), [batch(0), batch(1)], ["two devices"])


def test_a_query_without_keys_gives_zeros() -> None:
    with exactness.double_precision():
        torch.manual_seed(0)
        check(
            Attend("inf", "bool", False, HEADS, True),
            Attend("inf", "bool", True, HEADS, False),
            Attend("inf", "finite", True, 1, True),
            Attend("inf", "trained", False, HEADS, False),
            Attend("inf", "trained", False, 1, True),
            Attend("inf", "trained", True, HEADS, True),
        )


GPT2 = {"vocab_size": 31, "n_positions": TOKENS, "n_embd": 8, "n_layer": 2, "n_head": HEADS}


# GPT-2 drops in attention by default.
@pytest.mark.slow
def test_a_model_with_dropout_takes_rows_padded_on_the_left() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        **GPT2, attn_pdrop=1e-13, resid_pdrop=0.0, embd_pdrop=0.0, use_cache=False
    )
    batches = []
    for seed in range(2):
        ids = torch.randint(0, 31, (ROWS, TOKENS), generator=torch.Generator().manual_seed(seed))
        keep = batch(seed)["keep"]
        labels = ids.masked_fill(~keep, -100)
        batches.append({"input_ids": ids, "attention_mask": keep.long(), "labels": labels})
    with exactness.double_precision():
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(config)
        plain_torch.check(model, batches, ["two devices", "two stages"])


# Values of another width than keys.
def test_a_query_hidden_by_a_finite_number_gives_a_mean() -> None:
    with exactness.double_precision():
        torch.manual_seed(0)
        check(
            Attend("least", "finite", False, HEADS, False, wide=True),
            Attend("least", "finite", False, 1, True, wide=True),
            Attend("1e9", "finite", False, HEADS, True, wide=True),
            Attend("1e4", "finite", False, HEADS, False, wide=True),
            Attend("least", "trained", False, HEADS, True),
            Attend("1e9", "finite", True, 1, False),
            Attend("inf", "bool", False, 1, True, wide=True),
        )


# The fused kernel needs values as wide as keys.
def test_a_plan_may_divide_the_width_of_values() -> None:
    mesh = {"axes": ["x"], "shape": [2], "devices": ["a/0/0", "a/1/0"]}
    stage = {"mesh": mesh, "ops": {"*/attention#0": "e part"}}
    plan = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": ROWS,
        "parts": [{"name": "part", "shares": [1, 1]}],
        "pipelines": [{"microbatches": [{"rows": ROWS}], "stages": [stage]}],
    }
    with exactness.double_precision():
        torch.manual_seed(0)
        ways = Ways(*(Attend(hide, "finite", False, HEADS, False) for hide in ("least", "inf")))
        plain_torch.check(ways, [batch(0), batch(1)], [json.dumps(plan)])
