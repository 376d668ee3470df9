"""Functions of single elements."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from module_case import Case, layer, op
from torch import nn

CASES: dict[str, Case] = {
    "relu": op(F.relu, 6),
    "relu_module": layer(lambda: nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)), 6),
    "gelu": op(F.gelu, 6),
    "gelu_tanh": op(lambda h: F.gelu(h, approximate="tanh"), 6),
    "silu": op(F.silu, 6),
    "mish": op(F.mish, 6),
    "elu": op(F.elu, 6),
    "selu": op(F.selu, 6),
    "celu": op(lambda h: F.celu(h, 0.7), 6),
    "leaky_relu": op(lambda h: F.leaky_relu(h, 0.2), 6),
    "relu6": op(F.relu6, 6),
    "hardtanh": op(F.hardtanh, 6),
    "hardsigmoid": op(F.hardsigmoid, 6),
    "hardswish": op(F.hardswish, 6),
    "hardshrink": op(F.hardshrink, 6),
    "softshrink": op(F.softshrink, 6),
    "tanhshrink": op(F.tanhshrink, 6),
    "threshold": op(lambda h: F.threshold(h, 0.1, -1.0), 6),
    "softplus": op(lambda h: F.softplus(h, 2.0), 6),
    "softsign": op(F.softsign, 6),
    "logsigmoid": op(F.logsigmoid, 6),
    "sigmoid": op(torch.sigmoid, 6),
    "tanh": op(torch.tanh, 6),
    "glu": op(F.glu, 6),
    "prelu_one": layer(lambda: nn.Sequential(nn.Linear(6, 6), nn.PReLU()), 6),
    "prelu_each": layer(lambda: nn.Sequential(nn.Linear(6, 6), nn.PReLU(6)), 6),
    "softmax": op(lambda h: h.softmax(-1), 4, 6),
    "log_softmax": op(lambda h: h.log_softmax(-1), 4, 6),
    "softmin": op(lambda h: F.softmin(h, dim=1), 4, 6),
}
