"""Norms of layers, batches and weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from module_case import Case, energy, layer, net, x
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize


def behind(norm: Callable[[], nn.Module], *sizes: int, **known: Any) -> Case:
    """Returns the case of a norm after a linear layer. The last size of `sizes` is that of the
    rows."""
    return layer(lambda: nn.Sequential(nn.Linear(sizes[-1], sizes[-1]), norm()), *sizes, **known)


def wrapped(wrap: Callable[[nn.Module], nn.Module], **known: Any) -> Case:
    return layer(
        lambda: nn.Sequential(wrap(nn.Linear(6, 5)), nn.ReLU(), nn.Linear(5, 4)), 6, **known
    )


class Positive(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return F.softplus(w)


def positive(module: nn.Module) -> nn.Module:
    parametrize.register_parametrization(module, "weight", Positive())
    return module


def standardized(m: Any, x: Tensor) -> Tensor:
    """Weight standardization: the kernel is normed before it is used."""
    w = m.a.weight
    w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
    return energy(F.conv2d(x, w, m.a.bias))


def own_rms(m: Any, x: Tensor) -> Tensor:
    h = m.a(x)
    return energy(h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6) * m.p[0])


CASES: dict[str, Case] = {
    "layer_norm": behind(lambda: nn.LayerNorm(6), 3, 6),
    "layer_norm_plain": behind(lambda: nn.LayerNorm(6, elementwise_affine=False), 3, 6),
    "layer_norm_without_bias": behind(lambda: nn.LayerNorm(6, bias=False), 3, 6),
    "layer_norm_of_two": behind(lambda: nn.LayerNorm((3, 6)), 3, 6),
    "layer_norm_of_images": layer(
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1), nn.LayerNorm([4, 3, 3])), 3, 3, 3
    ),
    "rms_norm": behind(lambda: nn.RMSNorm(6), 3, 6),
    "rms_norm_own": net(
        own_rms,
        lambda: x(3, 6),
        a=lambda: nn.Linear(6, 6),
        p=lambda: nn.ParameterList([torch.ones(6)]),
    ),
    "group_norm": behind(lambda: nn.GroupNorm(2, 4), 4, 6),
    "group_norm_of_one": behind(lambda: nn.GroupNorm(1, 4), 4, 6),
    "instance_norm": behind(lambda: nn.InstanceNorm1d(4), 4, 6),
    "instance_norm_affine": behind(lambda: nn.InstanceNorm2d(3, affine=True), 3, 4, 6),
    "instance_norm_tracked": behind(lambda: nn.InstanceNorm1d(4, track_running_stats=True), 4, 6),
    "local_response_norm": behind(lambda: nn.LocalResponseNorm(2), 4, 3, 3),
    "batch_norm1d": behind(lambda: nn.BatchNorm1d(6), 6),
    "batch_norm1d_of_sequences": behind(lambda: nn.BatchNorm1d(4), 4, 6),
    "batch_norm2d": behind(lambda: nn.BatchNorm2d(3), 3, 4, 6),
    "batch_norm3d": behind(lambda: nn.BatchNorm3d(2), 2, 2, 2, 3),
    "batch_norm_plain": behind(lambda: nn.BatchNorm1d(6, affine=False), 6),
    "batch_norm_untracked": behind(lambda: nn.BatchNorm1d(6, track_running_stats=False), 6),
    "batch_norm_cumulative": behind(lambda: nn.BatchNorm1d(6, momentum=None), 6),
    "batch_norm_slow": behind(lambda: nn.BatchNorm1d(6, momentum=0.01), 6),
    "batch_norm_in_eval": behind(lambda: nn.BatchNorm1d(6).eval(), 6),
    "batch_norm_frozen": behind(lambda: nn.BatchNorm1d(6).eval().requires_grad_(False), 6),
    "batch_norm_twice": layer(
        lambda: nn.Sequential(
            nn.Conv2d(2, 3, 2), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 1), nn.BatchNorm2d(3)
        ),
        2,
        4,
        4,
    ),
    "weight_norm_old": wrapped(nn.utils.weight_norm),
    "weight_norm_of_columns": layer(
        lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 5), dim=1)), 6
    ),
    "weight_norm_new": wrapped(parametrizations.weight_norm),
    "spectral_norm_old": wrapped(nn.utils.spectral_norm),
    "spectral_norm_new": wrapped(parametrizations.spectral_norm),
    "orthogonal": wrapped(parametrizations.orthogonal),
    "positive_weights": wrapped(positive),
    "standardized_weights": net(standardized, lambda: x(3, 4, 4), a=lambda: nn.Conv2d(3, 4, 2)),
}
