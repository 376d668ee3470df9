"""Medley's own operators (medley/custom_ops.py) in plain PyTorch: the reference of our kernels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

_MASK32 = 0xFFFFFFFF
_DIGITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


def _low32(x: Tensor) -> Tensor:
    return x & _MASK32


def _high32(x: Tensor) -> Tensor:
    return (x >> 32) & _MASK32


def philox(rng: Tensor, site: int, block: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 (Salmon et al., SC'11) with key (low(seed) ^ site, high(seed)), counter
    (low(block), high(block), low(step), high(step)). `rng` is int64 [2], `block` int64 of any
    shape. Returns four tensors of that shape with unsigned 32-bit numbers as int64."""
    seed, step = rng[0], rng[1]
    key0, key1 = _low32(seed) ^ (site & _MASK32), _high32(seed)
    c0, c1 = _low32(block), _high32(block)
    c2, c3 = _low32(step).expand_as(c0), _high32(step).expand_as(c0)
    for turn in range(10):
        if turn:
            key0, key1 = _low32(key0 + 0x9E3779B9), _low32(key1 + 0xBB67AE85)
        # The product of two unsigned 32-bit numbers wraps in int64, but its 64 bits are right.
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            _high32(p1) ^ c1 ^ key0,
            _low32(p1),
            _high32(p0) ^ c3 ^ key1,
            _low32(p0),
        )
    return c0, c1, c2, c3


def places(
    sizes: Sequence[int], origin: Sequence[int], full: Sequence[int], device: torch.device
) -> Tensor:
    """Returns the row-major indices in a tensor of shape `full` of its box of `sizes` at
    `origin`."""
    index = torch.zeros([1] * len(sizes), dtype=torch.int64, device=device)
    stride = 1
    for dim in reversed(range(len(sizes))):
        place = torch.arange(origin[dim], origin[dim] + sizes[dim], device=device) * stride
        index = index + place.reshape([-1 if d == dim else 1 for d in range(len(sizes))])
        stride *= full[dim]
    return index


def keep_mask(
    rng: Tensor,
    p: float,
    site: int,
    sizes: Sequence[int],
    origin: Sequence[int],
    full: Sequence[int],
) -> Tensor:
    """Returns the elements that dropout keeps: bool of shape `sizes`. The element at position x of
    the shard has the row-major index L of x + `origin` in a tensor of shape `full`. It is kept iff
    word L % 4 of the philox block L // 4 is at least p * 2**32."""
    index = places(sizes, origin, full, rng.device)
    words = torch.stack(philox(rng, site, index >> 2))
    word = words.gather(0, (index & 3).unsqueeze(0)).squeeze(0)
    return word >= int(p * 2.0**32)


def dropout(
    x: Tensor,
    rng: Tensor,
    p: float,
    site: int,
    sizes: list[int],
    origin: list[int],
    full: list[int],
) -> Tensor:
    if p >= 1.0:
        return torch.zeros_like(x)
    shape = sizes or list(x.shape)
    keep = keep_mask(rng, p, site, shape, origin or [0] * len(shape), full or shape)
    return torch.where(keep.reshape(x.shape), x * (1.0 / (1.0 - p)), 0.0)


def _unit(low: Tensor, high: Tensor) -> Tensor:
    """Returns the highest 53 of the 64 bits low + 2**32 * high, over 2**53."""
    return ((high << 21) + (low >> 11)).to(torch.float64) * 2.0**-53


def random(
    rng: Tensor,
    distribution: str,
    site: int,
    shape: list[int],
    sizes: list[int],
    origin: list[int],
    full: list[int],
    dtype: torch.dtype,
) -> Tensor:
    box = sizes or shape
    words = philox(rng, site, places(box, origin or [0] * len(box), full or box, rng.device))
    if distribution == "normal":
        radius = (-2.0 * torch.log1p(-_unit(words[0], words[1]))).sqrt()
        drawn = radius * torch.cos(2.0 * math.pi * _unit(words[2], words[3]))
    elif dtype == torch.float64:
        drawn = _unit(words[0], words[1])
    else:
        digits = _DIGITS[dtype]
        drawn = (words[0] >> (32 - digits)).to(torch.float32) * 2.0**-digits
    return drawn.to(dtype).reshape(shape)


def _hidden(both: Tensor, width: int, activation: str) -> Tensor:
    """Returns the input of the second matmul, from the output of the first."""
    act = _ACTIVATIONS[activation]
    gated = both.shape[-1] != width
    return act(both[..., :width]) * both[..., width:] if gated else act(both)


def experts(
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activation: str,
    offset: int,
    experts: int,
) -> Tensor:
    out = x.new_zeros(x.shape[0], down.shape[1])
    for expert in range(gate_up.shape[0]):
        rows, slots = (indices == expert + offset).nonzero(as_tuple=True)
        hidden = _hidden(x[rows] @ gate_up[expert].t(), down.shape[2], activation)
        y = hidden @ down[expert].t() * weights[rows, slots].unsqueeze(1)
        out.index_add_(0, rows, y.to(out.dtype))
    return out


def _hidden_and_gradient(
    both: Tensor, width: int, activation: str
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Returns `_hidden` and the function from its gradient to that of `both`."""
    hidden, pull_back, *_ = torch.func.vjp(lambda t: _hidden(t, width, activation), both)
    return hidden, lambda grad: pull_back(grad)[0]


def experts_backward(
    grad: Tensor,
    x: Tensor,
    indices: Tensor,
    weights: Tensor,
    gate_up: Tensor,
    down: Tensor,
    activation: str,
    offset: int,
    experts: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dx, dweights = torch.zeros_like(x), torch.zeros_like(weights)
    dgate_up, ddown = torch.zeros_like(gate_up), torch.zeros_like(down)
    for expert in range(gate_up.shape[0]):
        rows, slots = (indices == expert + offset).nonzero(as_tuple=True)
        both = x[rows] @ gate_up[expert].t()
        hidden, pull_back = _hidden_and_gradient(both, down.shape[2], activation)
        weight = weights[rows, slots].unsqueeze(1)
        back = grad[rows] @ down[expert]
        dweights[rows, slots] = (back * hidden).sum(1).to(weights.dtype)
        ddown[expert] = (grad[rows] * weight).to(grad.dtype).t() @ hidden
        dboth = pull_back((back * weight).to(hidden.dtype))
        dgate_up[expert] = dboth.t() @ x[rows]
        dx.index_add_(0, rows, dboth @ gate_up[expert])
    return dx, dweights, dgate_up, ddown
