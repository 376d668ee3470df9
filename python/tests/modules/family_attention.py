"""Attention and transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from module_case import Case, classes, energy, layer, net, x
from torch import Tensor, nn

ATTEND = F.scaled_dot_product_attention


def heads(h: Tensor, count: int = 2) -> Tensor:
    return h.unflatten(-1, (count, -1)).transpose(1, 2)


def dotted(attend: Callable[[Tensor, Tensor, Tensor], Tensor], **known: Any) -> Case:
    """Returns the case of attention over 4 positions, 2 heads of 3."""

    def forward(m: Any, x: Tensor) -> Tensor:
        q, k, v = (heads(h) for h in m.a(x).chunk(3, -1))
        return energy(m.b(attend(q, k, v).transpose(1, 2).flatten(2)))

    return net(
        forward,
        lambda: x(4, 6),
        a=lambda: nn.Linear(6, 18),
        b=lambda: nn.Linear(6, 6),
        **known,
    )


def explicit(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT / math.sqrt(3)).softmax(-1) @ v


def linear(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k = F.elu(q) + 1, F.elu(k) + 1
    return q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)


def banded(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    near = (torch.arange(4)[:, None] - torch.arange(4)).abs() < 2
    return ATTEND(q, k, v, near)


def alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    slopes = torch.tensor([0.5, 0.25])[:, None, None]
    return ATTEND(q, k, v, -slopes * (torch.arange(4)[:, None] - torch.arange(4)).abs())


def rotated(h: Tensor) -> Tensor:
    angle = torch.outer(torch.arange(4.0), 10.0 ** -torch.arange(2.0))
    a, b = h[..., :2], h[..., 2:]
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def rotary(m: Any, x: Tensor) -> Tensor:
    q, k, v = (heads(h) for h in m.a(x).chunk(3, -1))
    return energy(ATTEND(rotated(q), rotated(k), v, is_causal=True))


def rotary_complex(m: Any, x: Tensor) -> Tensor:
    h = torch.view_as_complex(heads(m.a(x)).unflatten(-1, (-1, 2)))
    turned = torch.polar(torch.ones(4, 2), torch.outer(torch.arange(4.0), torch.arange(2.0)))
    return energy(torch.view_as_real(h * turned).flatten(-2))


def grouped(m: Any, x: Tensor) -> Tensor:
    q, k, v = heads(m.q(x), 4), heads(m.k(x)), heads(m.v(x))
    return energy(ATTEND(q, k, v, is_causal=True, enable_gqa=True))


def latents(m: Any, x: Tensor) -> Tensor:
    return energy(m.a(m.p[0].expand(x.shape[0], -1, -1), x, x)[0])


def padded(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    mask = torch.arange(4) >= lengths[:, None]
    return energy(m.a(x, x, x, key_padding_mask=mask)[0] * ~mask[..., None])


def biased(m: Any, x: Tensor) -> Tensor:
    """A learned bias for each distance."""
    q, k, v = (heads(h) for h in m.a(x).chunk(3, -1))
    bias = m.e(torch.arange(4)[:, None] - torch.arange(4) + 3).permute(2, 0, 1)
    return energy(ATTEND(q, k, v, bias.unsqueeze(0)))


def multi(**options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.MultiheadAttention(6, 2, batch_first=True, **options)


def encoder(**options: Any) -> Callable[[], nn.Module]:
    options = {"dropout": 0.0, "batch_first": True} | options
    return lambda: nn.TransformerEncoderLayer(6, 2, 8, **options)


def gpt(m: Any, i: Tensor) -> Tensor:
    mask = nn.Transformer.generate_square_subsequent_mask(i.shape[1])
    h = m.e(i) + m.p(torch.arange(i.shape[1]))
    logits = m.head(m.t(h, mask, is_causal=True))
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), i[:, 1:].flatten())


def vit(m: Any, x: Tensor, y: Tensor) -> Tensor:
    h = m.a(x).flatten(2).mT
    h = torch.cat([m.p[0].expand(x.shape[0], -1, -1), h], 1) + m.p[1]
    return F.cross_entropy(m.head(m.t(h)[:, 0]), y)


CASES: dict[str, Case] = {
    "explicit": dotted(explicit),
    "one_op": dotted(ATTEND),
    "causal": dotted(lambda q, k, v: ATTEND(q, k, v, is_causal=True)),
    "scaled": dotted(lambda q, k, v: ATTEND(q, k, v, scale=0.3)),
    "banded": dotted(banded),
    "alibi": dotted(alibi),
    "with_dropout": dotted(lambda q, k, v: ATTEND(q, k, v, dropout_p=0.2), seeded=True),
    "linear": dotted(linear),
    "rotary": net(rotary, lambda: x(4, 8), a=lambda: nn.Linear(8, 24)),
    "rotary_complex": net(rotary_complex, lambda: x(4, 8), a=lambda: nn.Linear(8, 8)),
    "grouped_queries": net(
        grouped,
        lambda: x(4, 8),
        q=lambda: nn.Linear(8, 8),
        k=lambda: nn.Linear(8, 4),
        v=lambda: nn.Linear(8, 4),
    ),
    "learned_bias": net(
        biased, lambda: x(4, 6), a=lambda: nn.Linear(6, 18), e=lambda: nn.Embedding(7, 2)
    ),
    "multihead": net(lambda m, x: energy(m.a(x, x, x)[0]), lambda: x(4, 6), a=multi()),
    "multihead_without_weights": net(
        lambda m, x: energy(m.a(x, x, x, need_weights=False)[0]), lambda: x(4, 6), a=multi()
    ),
    "multihead_weights_in_the_loss": net(
        lambda m, x: energy(m.a(x, x, x)[0]) + energy(m.a(x, x, x)[1]), lambda: x(4, 6), a=multi()
    ),
    "multihead_with_key_bias": net(
        lambda m, x: energy(m.a(x, x, x)[0]),
        lambda: x(4, 6),
        a=multi(add_bias_kv=True, add_zero_attn=True),
    ),
    "multihead_of_other_widths": net(
        lambda m, x, y: energy(m.a(x, y, y)[0]),
        lambda: (x(4, 6), x(3, 5)),
        a=multi(kdim=5, vdim=5),
    ),
    "multihead_padded": net(padded, lambda: (x(4, 6), classes(4) + 1), a=multi()),
    "learned_queries": net(
        latents, lambda: x(4, 6), a=multi(), p=lambda: nn.ParameterList([torch.randn(1, 3, 6)])
    ),
    "encoder_layer": layer(encoder(), 4, 6),
    "encoder_layer_norm_first": layer(encoder(norm_first=True, activation="gelu"), 4, 6),
    "encoder_with_dropout": layer(encoder(dropout=0.2), 4, 6, seeded=True),
    "encoder_of_two": layer(lambda: nn.TransformerEncoder(encoder()(), 2), 4, 6),
    "decoder_layer": net(
        lambda m, x, y: energy(m.a(x, y)),
        lambda: (x(4, 6), x(3, 6)),
        a=lambda: nn.TransformerDecoderLayer(6, 2, 8, 0.0, batch_first=True),
    ),
    "transformer": net(
        lambda m, x, y: energy(m.a(x, y)),
        lambda: (x(4, 6), x(3, 6)),
        a=lambda: nn.Transformer(6, 2, 1, 1, 8, 0.0, batch_first=True),
    ),
    "gpt": net(
        gpt,
        lambda: classes(9, 5),
        e=lambda: nn.Embedding(9, 6),
        p=lambda: nn.Embedding(5, 6),
        t=encoder(),
        head=lambda: nn.Linear(6, 9, bias=False),
    ),
    "vit": net(
        vit,
        lambda: (x(3, 4, 4), classes(5)),
        a=lambda: nn.Conv2d(3, 6, 2, 2),
        t=encoder(),
        p=lambda: nn.ParameterList([torch.zeros(1, 1, 6), torch.randn(1, 5, 6)]),
        head=lambda: nn.Linear(6, 5),
    ),
}
