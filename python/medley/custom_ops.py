"""Medley's own operators, as PyTorch sees them: schemas, reference and fake kernels, gradients.

The schemas and the fast kernels live in the C++ extension. Where it is not loaded, the same schemas
are defined here with kernels in plain PyTorch, so that a graph can be captured and checked without
it. Fake kernels and gradient formulas always come from here.

    attention   q [b, h, s, d], k [b, g, t, d], v [b, g, t, e], bias [b|1, h|1, s, t] or None
                -> out [b, h, s, e], lse [b, h, s]. h is a multiple of g; query head i reads key
                head i // (h / g). `causal`: query i sees keys j <= i + t - s. A row without any key
                gives zeros and lse = -inf. lse is fp32 (fp64 for fp64 inputs).
    dropout     keeps element i iff philox(seed, step, site, global index of i) >= p: `keep_mask`.
    random      numbers of a distribution, "uniform" in [0, 1) or "normal", one for each element,
                from philox(seed, step, site, global index): `draw`.
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
import functools
import importlib
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

SCHEMAS: dict[str, str] = {
    "attention": "(Tensor q, Tensor k, Tensor v, Tensor? bias, bool causal, float scale)"
    " -> (Tensor out, Tensor lse)",
    "attention_backward": "(Tensor grad_out, Tensor q, Tensor k, Tensor v, Tensor? bias,"
    " Tensor out, Tensor lse, bool causal, float scale) -> (Tensor dq, Tensor dk, Tensor dv)",
    "dequantize_4bit": "(Tensor packed, Tensor absmax, Tensor code, ScalarType dtype) -> Tensor",
    "dropout": "(Tensor x, Tensor rng, float p, int site, int[] sizes, int[] origin, int[] full)"
    " -> Tensor",
    "dropout_backward": "(Tensor grad, Tensor rng, float p, int site, int[] sizes, int[] origin,"
    " int[] full) -> Tensor",
    "experts": "(Tensor x, Tensor indices, Tensor weights, Tensor gate_up, Tensor down,"
    " str activation, int offset, int experts) -> Tensor",
    "experts_backward": "(Tensor grad, Tensor x, Tensor indices, Tensor weights, Tensor gate_up,"
    " Tensor down, str activation, int offset, int experts) -> (Tensor, Tensor, Tensor, Tensor)",
    "random": "(Tensor rng, str distribution, int site, int[] shape, int[] sizes, int[] origin,"
    " int[] full, ScalarType dtype) -> Tensor",
    "mean_loss": "(Tensor sum, Tensor weight) -> Tensor",
    "mean_loss_backward": "(Tensor grad, Tensor weight) -> Tensor",
}

_MASK32 = 0xFFFFFFFF
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


def _low32(x: Tensor) -> Tensor:
    return x & _MASK32


def _high32(x: Tensor) -> Tensor:
    return (x >> 32) & _MASK32


def philox(rng: Tensor, site: int, block: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10 (Salmon et al., SC'11) with key (low(seed) ^ site, high(seed)), counter
    (low(block), high(block), low(step), high(step)).

    `rng` is int64 [2], `block` int64 of any shape. Returns four tensors of that shape whose values
    are unsigned 32-bit numbers held in int64.
    """
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


def _places(
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
    """Returns which elements dropout keeps: bool of shape `sizes`.

    The element at position x of the shard has the row-major index L of x + `origin` in a tensor of
    shape `full`; it is kept iff word L % 4 of the philox block L // 4 is at least p * 2**32.
    """
    index = _places(sizes, origin, full, rng.device)
    words = torch.stack(philox(rng, site, index >> 2))
    word = words.gather(0, (index & 3).unsqueeze(0)).squeeze(0)
    return word >= int(p * 2.0**32)


def _dropout(
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


_DIGITS = {torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def _random(
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
    words = philox(rng, site, _places(box, origin or [0] * len(box), full or box, rng.device))
    if distribution == "normal":
        radius = (-2.0 * torch.log1p(-_unit(words[0], words[1]))).sqrt()
        drawn = radius * torch.cos(2.0 * math.pi * _unit(words[2], words[3]))
    elif dtype == torch.float64:
        drawn = _unit(words[0], words[1])
    else:
        digits = _DIGITS[dtype]
        drawn = (words[0] >> (32 - digits)).to(torch.float32) * 2.0**-digits
    return drawn.to(dtype).reshape(shape)


def _fake_random(rng: Tensor, distribution: str, site: int, shape: list[int], *rest: Any) -> Tensor:
    return rng.new_empty(shape, dtype=rest[-1])


# --- attention ------------------------------------------------------------------------------------


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
    """Returns the softmax over the last dim; zeros for a row of -inf alone."""
    return scores.softmax(-1).masked_fill(scores.amax(-1, keepdim=True) == -math.inf, 0.0)


def whole_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Returns what the op `attention` does, with all scores at once."""
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
    """Returns what the op `attention_backward` does: the gradients of q, k and v."""
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


def _fake_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    b, h, s, _ = q.shape
    wide = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty([b, h, s, v.shape[-1]]), q.new_empty([b, h, s], dtype=wide)


def _fake_attention_backward(
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
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


# --- experts --------------------------------------------------------------------------------------

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate="tanh"),
    "relu": F.relu,
}


def experts(
    x: Tensor, indices: Tensor, weights: Tensor, gate_up: Tensor, down: Tensor, activation: str
) -> Tensor:
    """Sends each row of x to the experts that `indices` names; one op, which may be cut by experts.

    Shapes as above. Under autocast x and the experts' weights are cast, as for a linear layer.
    Raises ValueError for an activation that is none of ACTIVATIONS.
    """
    if activation not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ValueError(f"experts: unknown activation {activation!r}; expected one of {known}")
    if torch.is_autocast_enabled(x.device.type):  # which does not know our ops
        dtype = torch.get_autocast_dtype(x.device.type)
        x, gate_up, down = x.to(dtype), gate_up.to(dtype), down.to(dtype)
    return torch.ops.medley.experts(  # type: ignore[no-any-return]
        x, indices, weights, gate_up, down, activation, 0, gate_up.shape[0]
    )


def _hidden(both: Tensor, width: int, activation: str) -> Tensor:
    """Returns what enters the second product, from what left the first."""
    act = ACTIVATIONS[activation]
    gated = both.shape[-1] != width
    return act(both[..., :width]) * both[..., width:] if gated else act(both)


def _experts(
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


def _experts_backward(
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


def _fake_experts(
    x: Tensor, _: Tensor, weights: Tensor, up: Tensor, down: Tensor, *__: Any
) -> Tensor:
    return x.new_empty([x.shape[0], down.shape[1]])


def _fake_experts_backward(
    grad: Tensor, x: Tensor, indices: Tensor, weights: Tensor, up: Tensor, down: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return tuple(t.new_empty(t.shape) for t in (x, weights, up, down))


# --- weights of four bits -------------------------------------------------------------------------


def _dequantize_4bit(packed: Tensor, absmax: Tensor, code: Tensor, dtype: torch.dtype) -> Tensor:
    halves = torch.stack([packed >> 4, packed & 15], -1).flatten(1)
    return (code[halves.int()] * absmax.unsqueeze(1)).to(dtype)


def _fake_dequantize_4bit(
    packed: Tensor, absmax: Tensor, code: Tensor, dtype: torch.dtype
) -> Tensor:
    return packed.new_empty([packed.shape[0], 2 * packed.shape[1]], dtype=dtype)


# --- mean loss ------------------------------------------------------------------------------------


def _mean_loss(sum: Tensor, weight: Tensor) -> Tensor:
    return (sum / weight).to(sum.dtype)


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


_KERNELS: dict[str, Any] = {
    "attention": whole_attention,
    "attention_backward": whole_attention_backward,
    "dequantize_4bit": _dequantize_4bit,
    "dropout": _dropout,
    "dropout_backward": _dropout,
    "experts": _experts,
    "experts_backward": _experts_backward,
    "random": _random,
    "mean_loss": _mean_loss,
    "mean_loss_backward": _mean_loss,
}
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


def _is_defined(name: str) -> bool:
    return bool(torch._C._jit_get_schemas_for_operator(f"medley::{name}"))


def _register() -> torch.library.Library:
    """Defines what the C++ extension has not defined; must follow its import."""
    with contextlib.suppress(ImportError):
        importlib.import_module("medley._runtime")
    library = torch.library.Library("medley", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name, schema in SCHEMAS.items():
        if not _is_defined(name):
            library.define(name + schema)  # type: ignore[no-untyped-call]
            library.impl(  # type: ignore[no-untyped-call]
                name, _KERNELS[name], "CompositeExplicitAutograd"
            )
        torch.library.register_fake(f"medley::{name}", _FAKES[name], lib=library)
    for name, (save, gradient) in _GRADIENTS.items():
        torch.library.register_autograd(
            f"medley::{name}", gradient, setup_context=save, lib=library
        )
    return library


_library = _register()
