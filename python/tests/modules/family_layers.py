"""Linear layers, embeddings and how they are put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from module_case import Case, classes, energy, layer, net, op, x
from torch import Tensor, nn


def linear(*sizes: int, **options: Any) -> Callable[[], nn.Module]:
    return lambda: nn.Linear(*sizes, **options)


def mlp(*sizes: int) -> Callable[[], nn.Module]:
    """Returns a constructor of linear layers with a GELU between them."""

    def make() -> nn.Module:
        parts: list[nn.Module] = []
        for before, after in zip(sizes, sizes[1:], strict=False):
            parts += [nn.Linear(before, after), nn.GELU()]
        return nn.Sequential(*parts[:-1])

    return make


def embed(make: Callable[[], nn.Module], *sizes: int, count: int = 9, **known: Any) -> Case:
    """Returns the case of an embedding of class numbers."""
    return net(lambda m, i: energy(m.e(i)), lambda: classes(count, *sizes), e=make, **known)


def bag(mode: str, **options: Any) -> Case:
    return embed(lambda: nn.EmbeddingBag(9, 4, mode=mode, **options), 5)


def tied(m: Any, i: Tensor) -> Tensor:
    return F.cross_entropy(F.linear(m.a(m.e(i)), m.e.weight), i)


def dense(m: Any, x: Tensor) -> Tensor:
    for each in m.a:
        x = torch.cat([x, each(x).relu()], -1)
    return energy(x)


def residual(m: Any, x: Tensor) -> Tensor:
    for each in m.a:
        x = x + each(x).tanh()
    return energy(x)


def highway(m: Any, x: Tensor) -> Tensor:
    gate = m.g(x).sigmoid()
    return energy(gate * m.a(x).relu() + (1 - gate) * x)


def lora(m: Any, x: Tensor) -> Tensor:
    return energy(m.a(x) + 0.5 * m.up(m.down(x)))


def frozen(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: make().requires_grad_(False)


def mixer(m: Any, x: Tensor) -> Tensor:
    x = x + m.tokens(m.n(x).mT).mT
    return energy(x + m.channels(m.n(x)))


def shared(m: Any, x: Tensor) -> Tensor:
    return energy(m.a(m.a(m.a(x)).tanh()))


def experts(m: Any, x: Tensor) -> Tensor:
    """All experts on all rows, mixed by the gates of the two best."""
    gates = m.g(x)
    kept = gates.masked_fill(gates < gates.topk(2, -1).values[:, 1:], float("-inf")).softmax(-1)
    return energy(torch.stack([each(x) for each in m.a], -1) @ kept.unsqueeze(-1))


def hyper(m: Any, x: Tensor) -> Tensor:
    return energy(torch.bmm(m.a(x).view(-1, 3, 6), x.unsqueeze(-1)))


def film(m: Any, x: Tensor) -> Tensor:
    scale, shift = m.c(x[:, 0]).chunk(2, -1)
    return energy(m.a(x) * scale.unsqueeze(1) + shift.unsqueeze(1))


def fields(m: Any, i: Tensor, x: Tensor) -> Tensor:
    """DeepFM: embedded fields, their pairwise products and a deep part."""
    e = torch.stack([each(i[:, k]) for k, each in enumerate(m.e)], 1)
    pairs = 0.5 * (e.sum(1) ** 2 - (e**2).sum(1)).sum(-1)
    y = m.a(torch.cat([e.flatten(1), x], -1)).squeeze(-1) + pairs
    return F.binary_cross_entropy_with_logits(y, (x[:, 0] > 0).to(y.dtype))


def lists(count: int, make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.ModuleList(make() for _ in range(count))


CASES: dict[str, Case] = {
    "linear": layer(linear(6, 4), 6),
    "linear_without_bias": layer(linear(6, 4, bias=False), 6),
    "linear_to_one": layer(linear(6, 1), 6),
    "linear_of_sequences": layer(linear(6, 4), 3, 6),
    "linear_of_grids": layer(linear(6, 4), 2, 3, 6),
    "bilinear": net(
        lambda m, x, y: energy(m.a(x, y)),
        lambda: (x(4), x(3)),
        a=lambda: nn.Bilinear(4, 3, 5),
    ),
    "identity": layer(lambda: nn.Sequential(nn.Identity(), nn.Linear(6, 6)), 6),
    "mlp": layer(mlp(6, 9, 9, 4), 6),
    "deep_mlp": layer(mlp(*[5] * 9), 5),
    "scale_parameter": net(
        lambda m, x: energy(m.a(x) * m.p[0]),
        lambda: x(6),
        a=linear(6, 6),
        p=lambda: nn.ParameterList([nn.Parameter(torch.ones(()))]),
    ),
    "parameter_list": net(
        lambda m, x: energy(sum(x * p for p in m.p)),
        lambda: x(6),
        p=lambda: nn.ParameterList([nn.Parameter(torch.randn(6)) for _ in range(3)]),
    ),
    "parameter_dict": net(
        lambda m, x: energy(x @ m.p["w"] + m.p["b"]),
        lambda: x(6),
        p=lambda: nn.ParameterDict({"w": torch.randn(6, 4), "b": torch.zeros(4)}),
    ),
    "module_dict": net(
        lambda m, x: energy(m.d["one"](x) + m.d["two"](x).relu()),
        lambda: x(6),
        d=lambda: nn.ModuleDict({"one": nn.Linear(6, 6), "two": nn.Linear(6, 6)}),
    ),
    "residual": net(residual, lambda: x(6), a=lists(3, linear(6, 6))),
    "dense_connections": net(
        dense, lambda: x(4), a=lambda: nn.ModuleList(nn.Linear(4 + 2 * i, 2) for i in range(3))
    ),
    "highway": net(highway, lambda: x(6), a=linear(6, 6), g=linear(6, 6)),
    "swiglu": net(
        lambda m, x: energy(m.c(F.silu(m.a(x)) * m.b(x))),
        lambda: x(3, 6),
        a=linear(6, 8),
        b=linear(6, 8),
        c=linear(8, 6),
    ),
    "gated_by_halves": net(
        lambda m, x: energy(m.c(F.gelu(m.a(x).chunk(2, -1)[0]) * m.a(x).chunk(2, -1)[1])),
        lambda: x(6),
        a=linear(6, 8),
        c=linear(4, 6),
    ),
    "lora": net(
        lora,
        lambda: x(6),
        a=frozen(linear(6, 6)),
        down=linear(6, 2, bias=False),
        up=linear(2, 6, bias=False),
    ),
    "frozen_below": net(
        lambda m, x: energy(m.b(m.a(x).relu())),
        lambda: x(6),
        a=frozen(linear(6, 5)),
        b=linear(5, 4),
    ),
    "frozen_above": net(
        lambda m, x: energy(m.b(m.a(x).relu())),
        lambda: x(6),
        a=linear(6, 5),
        b=frozen(linear(5, 4)),
    ),
    "unused_layer": net(lambda m, x: energy(m.a(x)), lambda: x(6), a=linear(6, 5), b=linear(5, 4)),
    "shared_layer": net(shared, lambda: x(6), a=linear(6, 6)),
    "squeeze_and_excite": net(
        lambda m, x: energy(x * m.b(m.a(x.mean((2, 3))).relu()).sigmoid()[:, :, None, None]),
        lambda: x(4, 3, 3),
        a=linear(4, 2),
        b=linear(2, 4),
    ),
    "mixer": net(
        mixer,
        lambda: x(4, 6),
        n=lambda: nn.LayerNorm(6),
        tokens=mlp(4, 5, 4),
        channels=mlp(6, 8, 6),
    ),
    "experts_of_all_rows": net(experts, lambda: x(6), g=linear(6, 4), a=lists(4, linear(6, 5))),
    "hypernetwork": net(hyper, lambda: x(6), a=linear(6, 18)),
    "film": net(film, lambda: x(3, 6), a=linear(6, 6), c=linear(6, 12)),
    "maxout": layer(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.Unflatten(1, (4, 2)), nn.MaxPool1d(2)), 6
    ),
    "fourier_features": net(
        lambda m, x: energy(m.a(torch.cat([x.sin(), (2 * x).sin(), (4 * x).cos()], -1))),
        lambda: x(3),
        a=linear(9, 4),
    ),
    "embedding": embed(lambda: nn.Embedding(9, 4), 5),
    "embedding_of_one": embed(lambda: nn.Embedding(9, 4)),
    "embedding_padded": embed(lambda: nn.Embedding(9, 4, padding_idx=2), 5),
    "embedding_by_frequency": embed(lambda: nn.Embedding(9, 4, scale_grad_by_freq=True), 5),
    "embedding_with_a_limit": embed(lambda: nn.Embedding(9, 4, max_norm=1.0), 5),
    "embedding_sparse": embed(lambda: nn.Embedding(9, 4, sparse=True), 5),
    "embedding_bag_sum": bag("sum"),
    "embedding_bag_mean": bag("mean"),
    "embedding_bag_padded": bag("mean", padding_idx=0),
    "embedding_bag_max_padded": bag("max", padding_idx=0),
    "embedding_bag_max": bag("max"),
    "embedding_as_one_hot": net(
        lambda m, i: energy(m.a(F.one_hot(i, 9).to(m.a.weight.dtype))),
        lambda: classes(9, 5),
        a=linear(9, 4),
    ),
    "positions_learned": net(
        lambda m, i: energy(m.e(i) + m.p(torch.arange(i.shape[1]))),
        lambda: classes(9, 5),
        e=lambda: nn.Embedding(9, 4),
        p=lambda: nn.Embedding(5, 4),
    ),
    "positions_of_a_mask": net(
        lambda m, i: energy(m.e(i) + m.p((i > 2).cumsum(1))),
        lambda: classes(9, 5),
        e=lambda: nn.Embedding(9, 4),
        p=lambda: nn.Embedding(6, 4),
    ),
    "tied_embedding": net(tied, lambda: classes(9), e=lambda: nn.Embedding(9, 4), a=linear(4, 4)),
    "fields_of_deepfm": net(
        fields,
        lambda: (classes(5, 3), x(2)),
        e=lists(3, lambda: nn.Embedding(5, 4)),
        a=mlp(14, 8, 1),
    ),
    "dropout": layer(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3)), 6, seeded=True),
    "dropout_of_channels": layer(
        lambda: nn.Sequential(nn.Conv2d(2, 4, 2), nn.Dropout2d(0.4)), 2, 4, 4, seeded=True
    ),
    "dropout_in_place": layer(
        lambda: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.3, True)), 6, seeded=True
    ),
    "dropout_of_zero": layer(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.0)), 6),
    "dropout_in_eval": layer(lambda: nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3).eval()), 6),
    "dropout_of_words": net(
        lambda m, i: energy(m.d(m.e(i))),
        lambda: classes(9, 5),
        e=lambda: nn.Embedding(9, 4),
        d=lambda: nn.Dropout1d(0.4),
        seeded=True,
    ),
    "cosine_similarity": op(lambda h: F.cosine_similarity(h, h.flip(-1), -1), 3, 4),
    "pairwise_distance": op(lambda h: F.pairwise_distance(h, h.flip(-1)), 4),
    "normalized": op(lambda h: F.normalize(h, dim=-1), 3, 4),
}
