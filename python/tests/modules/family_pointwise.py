"""Arithmetic of single elements, with broadcasts and masks."""

from __future__ import annotations

import torch
from module_case import Case, net, op, x
from torch import Tensor, nn


def masked(h: Tensor) -> Tensor:
    return h.masked_fill(torch.tensor([True, False, False, True, False, False]), 0.5)


CASES: dict[str, Case] = {
    "exp": op(torch.exp, 6),
    "expm1": op(torch.expm1, 6),
    "exp2": op(torch.exp2, 6),
    "log": op(lambda h: (h.abs() + 1).log(), 6),
    "log2": op(lambda h: (h.abs() + 1).log2(), 6),
    "log1p": op(lambda h: h.abs().log1p(), 6),
    "sqrt": op(lambda h: (h.abs() + 1).sqrt(), 6),
    "rsqrt": op(lambda h: (h.abs() + 1).rsqrt(), 6),
    "reciprocal": op(lambda h: (h.abs() + 1).reciprocal(), 6),
    "sin_and_cos": op(lambda h: h.sin() * h.cos(), 6),
    "tan": op(lambda h: (0.1 * h).tan(), 6),
    "atan": op(torch.atan, 6),
    "asin": op(lambda h: h.tanh().asin(), 6),
    "acos": op(lambda h: h.tanh().acos(), 6),
    "sinh": op(torch.sinh, 6),
    "cosh": op(torch.cosh, 6),
    "asinh": op(torch.asinh, 6),
    "erf": op(torch.erf, 6),
    "erfc": op(torch.erfc, 6),
    "lgamma": op(lambda h: torch.lgamma(h.abs() + 1), 6),
    "abs": op(torch.abs, 6),
    "sign_is_flat": op(lambda h: h + h.sign(), 6),
    "floor_is_flat": op(lambda h: h + h.floor() + h.ceil() + h.trunc() + h.round(), 6),
    "frac": op(torch.frac, 6),
    "square": op(torch.square, 6),
    "cube": op(lambda h: h**3, 6),
    "pow_of_tensors": op(lambda h: (h.abs() + 1) ** h.tanh(), 6),
    "number_to_a_power": op(lambda h: 2.0**h, 6),
    "neg": op(torch.neg, 6),
    "clamp": op(lambda h: h.clamp(-0.3, 0.4), 6),
    "clamp_below": op(lambda h: h.clamp(min=0.1), 6),
    "clamp_by_tensors": op(lambda h: torch.clamp(h, -h.abs() * 0.5, h.abs() * 0.5 + 0.1), 6),
    "minimum": op(lambda h: torch.minimum(h, h.flip(-1)), 6),
    "maximum": op(lambda h: torch.maximum(h, 0.5 * h + 0.1), 6),
    "fmax": op(lambda h: torch.fmax(h, h.flip(-1)), 6),
    "where": op(lambda h: torch.where(h > 0, h, 0.1 * h.exp()), 6),
    "where_of_a_number": op(lambda h: torch.where(h > 0, h, 0.0), 6),
    "masked_fill": op(masked, 6),
    "lerp": op(lambda h: torch.lerp(h, h.sin(), 0.3), 6),
    "lerp_by_tensor": op(lambda h: torch.lerp(h, h.sin(), h.sigmoid()), 6),
    "addcmul": op(lambda h: torch.addcmul(h, h.sin(), h.cos(), value=0.5), 6),
    "addcdiv": op(lambda h: torch.addcdiv(h, h.sin(), h.abs() + 1, value=0.5), 6),
    "atan2": op(lambda h: torch.atan2(h, h.flip(-1) + 2), 6),
    "hypot": op(lambda h: torch.hypot(h, h.flip(-1) + 2), 6),
    "remainder": op(lambda h: torch.remainder(h, 0.7), 6),
    "fmod": op(lambda h: torch.fmod(h, 0.7), 6),
    "logaddexp": op(lambda h: torch.logaddexp(h, h.flip(-1)), 6),
    "xlogy": op(lambda h: torch.xlogy(h, h.abs() + 1), 6),
    "sinc": op(torch.sinc, 6),
    "nan_to_num": op(torch.nan_to_num, 6),
    "logit": op(lambda h: torch.logit(h.sigmoid() * 0.9 + 0.05), 6),
    "rsub": op(lambda h: 1 - h, 6),
    "true_divide": op(lambda h: h / (h.abs() + 1), 6),
    "number_divided": op(lambda h: 1 / (h.abs() + 1), 6),
    "floor_divide_is_flat": op(lambda h: h + h.detach() // 0.5, 6),
    "comparisons_as_weights": op(lambda h: h * (h > 0.1) + h * (h <= -0.1).double(), 6),
    "logical": op(lambda h: h * ((h > 0) & (h < 1) | ~(h > -1)), 6),
    "broadcast_a_vector": net(
        lambda m, x: ((m.a(x) * m.a.bias + m.a.bias) ** 2).mean(),
        lambda: x(4, 6),
        a=lambda: nn.Linear(6, 6),
    ),
    "broadcast_a_column": op(lambda h: h * h[:, :1], 6),
    "polynomial": op(lambda h: h + 0.5 * h**2 - 0.1 * h**4, 6),
    "in_place": op(lambda h: h.sin().mul_(2).add_(1).tanh_(), 6),
    "to_float32_and_back": op(lambda h: h.float().double(), 6),
}
