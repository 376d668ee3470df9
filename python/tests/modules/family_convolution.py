"""Convolutions, pooling and resampling."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from module_case import Case, energy, layer, net, op, x
from torch import Tensor, nn


def conv1d(*sizes: int, **options: Any) -> Case:
    return layer(lambda: nn.Conv1d(*sizes, **options), sizes[0], 8)


def conv2d(*sizes: int, **options: Any) -> Case:
    return layer(lambda: nn.Conv2d(*sizes, **options), sizes[0], 6, 5)


def pooled(module: nn.Module, *sizes: int) -> Case:
    """Returns the case of a pooling after a pointwise convolution."""
    kinds = {2: nn.Conv1d, 3: nn.Conv2d, 4: nn.Conv3d}
    return layer(lambda: nn.Sequential(kinds[len(sizes)](sizes[0], 2, 1), module), *sizes)


def resized(function: Any, *sizes: int) -> Case:
    return op(function, *sizes)


def block(m: Any, x: Tensor) -> Tensor:
    return energy((m.b(m.a(x).relu()) + m.s(x)).relu())


def unet(m: Any, x: Tensor) -> Tensor:
    down = m.a(x).relu()
    up = m.u(m.b(F.max_pool2d(down, 2)).relu())
    return energy(m.c(torch.cat([down, up], 1)))


def causal(m: Any, x: Tensor) -> Tensor:
    for i, each in enumerate(m.a):
        x = x + each(F.pad(x, (2**i, 0))).tanh()
    return energy(x)


CASES: dict[str, Case] = {
    "conv1d": conv1d(3, 4, 3),
    "conv1d_strided": conv1d(3, 4, 3, stride=2, padding=1),
    "conv1d_dilated": conv1d(3, 4, 3, dilation=2),
    "conv1d_same": conv1d(3, 4, 3, padding="same"),
    "conv2d": conv2d(3, 4, 3),
    "conv2d_without_bias": conv2d(3, 4, 3, bias=False),
    "conv2d_strided": conv2d(3, 4, 3, stride=2, padding=1),
    "conv2d_of_a_rectangle": layer(lambda: nn.Conv2d(3, 4, (3, 1), padding=(1, 0)), 3, 6, 5),
    "conv2d_grouped": conv2d(4, 6, 3, groups=2),
    "conv2d_depthwise": conv2d(4, 4, 3, groups=4, padding=1),
    "conv2d_pointwise": conv2d(4, 6, 1),
    "conv2d_dilated": conv2d(3, 4, 2, dilation=2),
    "conv2d_around": conv2d(3, 4, 3, padding=1, padding_mode="circular"),
    "conv2d_reflected": conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
    "conv2d_replicated": conv2d(3, 4, 3, padding=1, padding_mode="replicate"),
    "conv3d": layer(lambda: nn.Conv3d(2, 3, 2), 2, 3, 4, 3),
    "transposed1d": layer(lambda: nn.ConvTranspose1d(3, 4, 3, stride=2), 3, 5),
    "transposed2d": layer(lambda: nn.ConvTranspose2d(3, 4, 2, stride=2, padding=1), 3, 4, 4),
    "transposed2d_grouped": layer(lambda: nn.ConvTranspose2d(4, 4, 2, groups=2), 4, 3, 3),
    "transposed3d": layer(lambda: nn.ConvTranspose3d(2, 2, 2), 2, 2, 3, 2),
    "separable": layer(
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3, groups=4), nn.ReLU(), nn.Conv2d(4, 6, 1)), 4, 5, 5
    ),
    "residual_block": net(
        block,
        lambda: x(3, 6, 6),
        a=lambda: nn.Conv2d(3, 4, 3, 2, 1),
        b=lambda: nn.Conv2d(4, 4, 3, 1, 1),
        s=lambda: nn.Conv2d(3, 4, 1, 2),
    ),
    "unet": net(
        unet,
        lambda: x(2, 4, 4),
        a=lambda: nn.Conv2d(2, 3, 3, padding=1),
        b=lambda: nn.Conv2d(3, 4, 3, padding=1),
        u=lambda: nn.ConvTranspose2d(4, 3, 2, 2),
        c=lambda: nn.Conv2d(6, 2, 1),
    ),
    "causal_dilated": net(
        causal,
        lambda: x(3, 8),
        a=lambda: nn.ModuleList(nn.Conv1d(3, 3, 2, dilation=2**i) for i in range(3)),
    ),
    "patch_embedding": net(
        lambda m, x: energy(m.a(x).flatten(2).mT + m.p[0]),
        lambda: x(3, 4, 4),
        a=lambda: nn.Conv2d(3, 6, 2, 2),
        p=lambda: nn.ParameterList([nn.Parameter(torch.randn(1, 4, 6))]),
    ),
    "convolution_by_a_parameter": net(
        lambda m, x: energy(F.conv2d(x, m.p[0].softmax(0), m.p[1])),
        lambda: x(3, 4, 4),
        p=lambda: nn.ParameterList([torch.randn(4, 3, 2, 2), torch.zeros(4)]),
    ),
    "max_pool1d": pooled(nn.MaxPool1d(2), 3, 6),
    "max_pool2d": pooled(nn.MaxPool2d(2), 3, 4, 4),
    "max_pool2d_overlapping": pooled(nn.MaxPool2d(3, 2, 1), 3, 5, 5),
    "max_pool3d": pooled(nn.MaxPool3d(2), 3, 2, 4, 4),
    "avg_pool1d": pooled(nn.AvgPool1d(2), 3, 6),
    "avg_pool2d": pooled(nn.AvgPool2d(2), 3, 4, 4),
    "avg_pool2d_padded": pooled(nn.AvgPool2d(3, 2, 1, count_include_pad=False), 3, 5, 5),
    "avg_pool3d": pooled(nn.AvgPool3d(2), 3, 2, 4, 4),
    "adaptive_avg_to_one": pooled(nn.AdaptiveAvgPool2d(1), 3, 4, 4),
    "adaptive_avg": pooled(nn.AdaptiveAvgPool2d((2, 2)), 3, 5, 4),
    "adaptive_max": pooled(nn.AdaptiveMaxPool2d(2), 3, 5, 4),
    "lp_pool": pooled(nn.LPPool2d(2, 2), 3, 4, 4),
    "nearest": resized(lambda h: F.interpolate(h, scale_factor=2), 3, 3, 4),
    "bilinear": resized(lambda h: F.interpolate(h, size=(5, 6), mode="bilinear"), 3, 3, 4),
    "bicubic": resized(lambda h: F.interpolate(h, size=(5, 6), mode="bicubic"), 3, 3, 4),
    "linear_resize": resized(lambda h: F.interpolate(h, size=7, mode="linear"), 3, 4),
    "trilinear": resized(lambda h: F.interpolate(h, scale_factor=2, mode="trilinear"), 2, 2, 2, 2),
    "grid_sample": net(
        lambda m, x, g: energy(F.grid_sample(m.a(x), g.tanh(), align_corners=False)),
        lambda: (x(2, 4, 4), x(3, 3, 2)),
        a=lambda: nn.Conv2d(2, 2, 1),
    ),
    "blur": op(lambda h: F.conv2d(h, torch.ones(3, 1, 2, 2) / 4, groups=3), 3, 4, 4),
}
