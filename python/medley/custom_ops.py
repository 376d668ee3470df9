"""Medley's own operators, as PyTorch sees them: fake kernels and gradients. Schemas and kernels are
those of the C++ extension (medley/executor/library.cpp).

    attention   q [b, h, s, d], k [b, g, t, d], v [b, g, t, e], bias [b|1, h|1, s, t] or None
                -> out [b, h, s, e], lse [b, h, s]. h is a multiple of g; query head i reads key
                head i // (h / g). `causal`: query i sees keys j <= i + t - s. A row without any key
                gives zeros and lse = -inf. lse is fp32 (fp64 for fp64 inputs).
    dropout     keeps element i iff philox(seed, step, site, global index of i) >= p.
    random      numbers of a distribution, "uniform" in [0, 1) or "normal", one for each element,
                from philox(seed, step, site, global index).
    mean_loss   sum / weight; only the sum has a gradient.
    dequantize_4bit  packed u8 [n, e / 2], absmax f32 [n], code f32 [16] -> [n, e]: code[4 bits] *
                absmax of each block, the upper 4 bits of a byte first.
    experts     x [n, h], indices i64 [n, k], weights [n, k], gate_up [E, c * f, h], down [E, o, f]
                -> [n, o]: for each row the sum over its k experts i of weight * down[i] @ hidden.
                c = 2: hidden = act(gate) * up, gate the first f rows of gate_up[i] @ x; c = 1:
                hidden = act(gate_up[i] @ x). Models call `medley.experts`.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from medley import _runtime as _runtime  # defines the operators

_rng: contextvars.ContextVar[Tensor | None] = contextvars.ContextVar("medley_rng", default=None)


# --- random numbers -------------------------------------------------------------------------------


def make_rng(seed: int, step: int) -> Tensor:
    """Returns the int64 tensor [2] that random ops read: (seed, step)."""
    return torch.tensor([seed, step], dtype=torch.int64)


def set_rng(seed: int, step: int) -> None:
    """Sets the random state that `medley.capture.substitute` gives to random ops in eager runs."""
    _rng.set(make_rng(seed, step))


def current_rng() -> Tensor | None:
    """Returns the tensor of the last `set_rng` or the innermost `use_rng`, or None."""
    return _rng.get()


@contextlib.contextmanager
def use_rng(rng: Tensor) -> Iterator[None]:
    """Gives random ops the random state `rng` (int64 [2]: seed, step) inside the block."""
    token = _rng.set(rng)
    try:
        yield
    finally:
        _rng.reset(token)


def _fake_random(rng: Tensor, distribution: str, site: int, shape: list[int], *rest: Any) -> Tensor:
    return rng.new_empty(shape, dtype=rest[-1])


# --- attention ------------------------------------------------------------------------------------


def _fake_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    b, h, s, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty([b, h, s, v.shape[-1]]), q.new_empty([b, h, s], dtype=wide)


def _fake_attention_backward(
    grad_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in (q, k, v))


# --- experts --------------------------------------------------------------------------------------

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")


def experts(
    x: Tensor, indices: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, activation: str
) -> Tensor:
    """Sends each row of x to the experts that `indices` names. It is one op, divisible by experts.
    `x` is [n, h]; `indices` and `weights` are [n, k]; `gate_up` is [E, c * f, h] and `down` [E, o,
    f]. Returns [n, o]. Under autocast x and the weights of the experts are cast, as for a linear
    layer. Raises ValueError for an activation outside ACTIVATIONS."""
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"experts: unknown activation {activation!r}; expected one of {known}")
    if torch.is_autocast_enabled(x.device.type):  # autocast does not cover our ops
        dtype = torch.get_autocast_dtype(x.device.type)
        x, gate_up, down = x.to(dtype), gate_up.to(dtype), down.to(dtype)
    return torch.ops.medley.experts(  # type: ignore[no-any-return]
        x, indices, weights, gate_up, down, activation, 0, gate_up.shape[0]
    )


def _fake_experts(
    x: Tensor, _: Tensor, weights: Tensor, up: Tensor, down: Tensor, *__: Any
) -> Tensor:
    return x.new_empty([x.shape[0], down.shape[1]])


def _fake_experts_backward(
    grad: Tensor, x: Tensor, indices: Tensor, weights: Tensor, up: Tensor, down: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in (x, weights, up, down))


# --- weights of four bits -------------------------------------------------------------------------


def _fake_dequantize_4bit(
    packed: Tensor, absmax: Tensor, code: Tensor, dtype: torch.dtype
) -> Tensor:
    return packed.new_empty([packed.shape[0], 2 * packed.shape[1]], dtype=dtype)


# --- gradients ------------------------------------------------------------------------------------


def _save_attention(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, bias, causal, scale = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(q, k, v, bias, *output)
    ctx.causal, ctx.scale = causal, scale


def _attention_gradient(ctx: Any, grad_out: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if grad_out is None:
        return (None,) * 6
    q, k, v, bias, out, lse = ctx.saved_tensors
    grads = torch.ops.medley.attention_backward(
        grad_out, q, k, v, bias, out, lse, ctx.causal, ctx.scale
    )
    return (*grads, None, None, None)


def _save_experts(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:5])
    ctx.rest = inputs[5:]


def _experts_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    back = torch.ops.medley.experts_backward(grad, *ctx.saved_tensors, *ctx.rest)
    dx, dweights, dgate_up, ddown = back
    return dx, None, dweights, dgate_up, ddown, None, None, None


def _save_dropout(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])
    ctx.rest = inputs[2:]


def _dropout_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (rng,) = ctx.saved_tensors
    return (torch.ops.medley.dropout_backward(grad, rng, *ctx.rest), *(None,) * 6)


def _save_mean_loss(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(inputs[1])


def _mean_loss_gradient(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
    (weight,) = ctx.saved_tensors
    return torch.ops.medley.mean_loss_backward(grad, weight), None


# --- registration ---------------------------------------------------------------------------------


def _same_as_first(x: Tensor, *_: Any) -> Tensor:
    return x.new_empty(x.shape)


_FAKES: dict[str, Any] = {
    "attention": _fake_attention,
    "attention_backward": _fake_attention_backward,
    "dequantize_4bit": _fake_dequantize_4bit,
    "dropout": _same_as_first,
    "dropout_backward": _same_as_first,
    "experts": _fake_experts,
    "experts_backward": _fake_experts_backward,
    "random": _fake_random,
    "mean_loss": _same_as_first,
    "mean_loss_backward": _same_as_first,
}
_GRADIENTS: dict[str, tuple[Any, Any]] = {
    "attention": (_save_attention, _attention_gradient),
    "experts": (_save_experts, _experts_gradient),
    "dropout": (_save_dropout, _dropout_gradient),
    "mean_loss": (_save_mean_loss, _mean_loss_gradient),
}


def _register() -> torch.library.Library:
    library = torch.library.Library("medley", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, fake in _FAKES.items():
        torch.library.register_fake(f"medley::{name}", fake, lib=library)
    for name, (save, gradient) in _GRADIENTS.items():
        torch.library.register_autograd(
            f"medley::{name}", gradient, setup_context=save, lib=library
        )
    return library


_library = _register()
