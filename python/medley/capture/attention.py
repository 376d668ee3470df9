"""Attention as one op, `medley::attention`, in place of `F.scaled_dot_product_attention`."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from medley.capture.errors import CaptureError

Dropout = Callable[[Tensor, float], Tensor]  # takes tensor and rate; has a site per call


def attention(
    dropout: Dropout,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Replaces `F.scaled_dot_product_attention` by one op; with dropout or trained bias by more."""
    scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    if torch.is_autocast_enabled(query.device.type):  # autocast does not cover our ops
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if query.dim() == 3:
        query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
        if attn_mask is not None and attn_mask.dim() == 3:
            attn_mask = attn_mask.unsqueeze(1)
        mixed = attention(dropout, query, key, value, attn_mask, dropout_p, is_causal, scale)
        return mixed.squeeze(1)
    if query.dim() > 4 and query.dim() == key.dim() == value.dim() and not enable_gqa:
        return _in_blocks(dropout, query, key, value, attn_mask, dropout_p, is_causal, scale)
    if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
        raise CaptureError(
            "scaled_dot_product_attention: expected query, key and value of shape "
            f"[batch, heads, positions, width]; found {list(query.shape)}, {list(key.shape)}, "
            f"{list(value.shape)}"
        )
    heads, groups = query.shape[1], key.shape[1]
    if (
        not (groups in (1, heads) or (enable_gqa and heads % groups == 0))
        or value.shape[1:3] != key.shape[1:3]
        or key.shape[3] != query.shape[3]
    ):
        raise CaptureError(
            f"scaled_dot_product_attention: found query {list(query.shape)}, key "
            f"{list(key.shape)}, value {list(value.shape)}; expected as many heads in each "
            "(with enable_gqa: a divisor in key and value), query and key of one width, key "
            "and value of as many positions"
        )
    # Keys and values shared by all rows, such as learned ones, have one row.
    rows = next((x.shape[0] for x in (query, key, value) if x.shape[0] != 1), 1)
    query, key, value = (
        x if x.shape[0] == rows else x.expand(rows, -1, -1, -1) for x in (query, key, value)
    )
    bias = _bias(query, key, attn_mask)
    if is_causal and query.shape[2] != key.shape[2]:
        # PyTorch aligns the mask at the top left, our op at the bottom right.
        seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
        band = _bias(query, key, seen)
        bias, is_causal = band if bias is None or band is None else bias + band, False
    if dropout_p > 0.0 or (bias is not None and bias.requires_grad):
        return _explicit(dropout, query, key, value, bias, dropout_p, is_causal, scale)
    out, _ = torch.ops.medley.attention(query, key, value, bias, is_causal, scale)
    return out  # type: ignore[no-any-return]


def _in_blocks(
    dropout: Dropout,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> Tensor:
    """Computes attention of shape [batch, heads, blocks ..., positions, width], with each block of
    each head as a head."""
    inner = [
        max(sizes) for sizes in zip(*(x.shape[1:-2] for x in (query, key, value)), strict=True)
    ]
    query, key, value = (x.expand(-1, *inner, -1, -1).flatten(1, -3) for x in (query, key, value))
    if mask is not None and mask.dim() > 2:
        mask = mask[(None,) * (len(inner) + 3 - mask.dim())]
        heads = (1,) * len(inner) if max(mask.shape[1:-2]) == 1 else inner
        mask = mask.expand(-1, *heads, -1, -1).flatten(1, -3)
    mixed = attention(dropout, query, key, value, mask, dropout_p, is_causal, scale)
    return mixed.reshape(mixed.shape[0], *inner, *mixed.shape[2:])


def _bias(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
    """Returns the mask as an additive bias [b|1, h|1, s, t] of the query's dtype."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        zeros = torch.zeros_like(mask, dtype=query.dtype)
        mask = zeros.masked_fill(mask.logical_not(), -math.inf)
    elif mask.dtype != query.dtype:
        mask = mask.to(query.dtype)
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    shape = [mask.shape[0], mask.shape[1], query.shape[2], key.shape[2]]
    return mask if list(mask.shape) == shape else mask.expand(shape)


def _explicit(
    dropout: Dropout,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float,
) -> Tensor:
    repeats = query.shape[1] // key.shape[1]
    if repeats > 1:
        key = _repeat_heads(key, repeats)
        value = _repeat_heads(value, repeats)
    scores = query @ key.transpose(-1, -2) * scale
    if bias is not None:
        scores = scores + bias
    if is_causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(seen.logical_not(), -math.inf)
    weights = F.softmax(scores, -1) if bias is None else _softmax(scores)
    return dropout(weights, dropout_p) @ value


def _softmax(scores: Tensor) -> Tensor:
    """Returns the softmax over the last dim, or zeros without a gradient for rows of only -inf."""
    hidden = scores.detach().amax(-1, keepdim=True) == -math.inf
    return F.softmax(scores.masked_fill(hidden, 0.0), -1).masked_fill(hidden, 0.0)


def _repeat_heads(x: Tensor, repeats: int) -> Tensor:
    b, g, t, d = x.shape
    return x.unsqueeze(2).expand(b, g, repeats, t, d).reshape(b, g * repeats, t, d)
