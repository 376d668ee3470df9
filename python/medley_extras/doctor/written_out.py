"""Attention with all scores in memory, in plain PyTorch: the reference of `medley::attention`."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def _scores(q: Tensor, k: Tensor, bias: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Returns the masked scores [b, g, h/g, s, t] in at least fp32."""
    wide = torch.promote_types(q.dtype, torch.float32)
    b, h, s, d = q.shape
    g, t = k.shape[1], k.shape[2]
    grouped = q.to(wide).reshape(b, g, h // g, s, d)
    scores = grouped @ k.to(wide).unsqueeze(2).transpose(-1, -2) * scale
    if bias is not None:
        full = bias.to(wide).expand(b, h, s, t)
        scores = scores + full.reshape(b, g, h // g, s, t)
    if causal:
        seen = torch.ones(s, t, dtype=torch.bool, device=q.device).tril(t - s)
        scores = scores.masked_fill(~seen, -math.inf)
    return scores


def _weights(scores: Tensor) -> Tensor:
    """Returns the softmax over the last dim, or zeros for rows of only -inf."""
    return scores.softmax(-1).masked_fill(scores.amax(-1, keepdim=True) == -math.inf, 0.0)


def whole_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns the result of the op `attention`, with all scores in memory."""
    scores = _scores(q, k, bias, causal, scale)
    b, h, s = q.shape[:3]
    lse = scores.logsumexp(-1)
    weights = _weights(scores)
    out = weights @ v.to(weights.dtype).unsqueeze(2)
    out = out.reshape(b, h, s, v.shape[-1]).to(q.dtype).contiguous()
    return out, lse.reshape(b, h, s).contiguous()


def whole_attention_backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    out: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the result of the op `attention_backward`: the gradients of q, k and v."""
    scores = _scores(q, k, bias, causal, scale)
    b, g, r, s, _ = scores.shape
    wide = scores.dtype
    weights = _weights(scores)
    grad = grad_out.to(wide).reshape(b, g, r, s, -1)
    delta = (grad * out.to(wide).reshape(b, g, r, s, -1)).sum(-1, keepdim=True)
    dv = (weights.transpose(-1, -2) @ grad).sum(2)
    dscores = weights * (grad @ v.to(wide).unsqueeze(2).transpose(-1, -2) - delta) * scale
    dq = dscores @ k.to(wide).unsqueeze(2)
    dk = (dscores.transpose(-1, -2) @ q.to(wide).reshape(b, g, r, s, -1)).sum(2)
    return (
        dq.reshape(q.shape).to(q.dtype).contiguous(),
        dk.to(k.dtype).contiguous(),
        dv.to(v.dtype).contiguous(),
    )
