"""PyTorch's random ops as draws of `medley::random`. The values depend on the seed, the step and
the place of an element in the whole batch, independent of the division of the work. Ops are
replaced at dispatch, below autograd. The function, module or distribution of the call is
irrelevant."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from medley import custom_ops
from medley.capture.errors import CaptureError

# Functions that seed PyTorch's own generator, by owner and name.
SEEDS = [
    (owner, name)
    for owner in (torch, torch.random, torch.cuda)
    for name in ("manual_seed", "manual_seed_all")
    if hasattr(owner, name)
]


def refuse_seed(*_: Any, **__: Any) -> None:
    """Replaces `torch.manual_seed` during capture."""
    raise CaptureError(
        "torch.manual_seed in forward: the numbers of a step follow the trainer's seed and the "
        "step; numbers that stay the same belong into a buffer (register_buffer)"
    )


def state() -> Tensor:
    """Returns the current seed and step, int64 [2]."""
    rng = custom_ops.current_rng()
    if rng is None:
        raise CaptureError(
            "random numbers: call medley.custom_ops.set_rng(seed, step) before the model"
        )
    return rng


def dropout(
    site: Callable[[], int],
    input: Tensor,
    p: float = 0.5,
    training: bool = True,
    inplace: bool = False,
    **kwargs: Any,
) -> Tensor:
    """Replaces `F.dropout`. The random values depend only on seed, step and place."""
    if "train" in kwargs:  # name of `training` in torch.dropout
        training = bool(kwargs["train"])
    if not 0.0 <= p <= 1.0:
        raise CaptureError(f"dropout: the probability must be between 0 and 1: {p}")
    if not training or p == 0.0:
        return input
    if p == 1.0:
        return input * 0.0
    return torch.ops.medley.dropout(input, state(), float(p), site(), [], [], [])  # type: ignore[no-any-return]


def channel_dropout(dropout: Callable[..., Tensor], spatial: int) -> Callable[..., Tensor]:
    """Returns the replacement of `F.dropout<spatial>d`, which drops whole channels."""

    def channels(
        input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or p == 0.0:
            return input
        ones = input.detach()
        for dim in range(-spatial, 0):
            ones = ones.narrow(dim, 0, 1)
        return input * dropout(torch.ones_like(ones), p, training)

    return channels


def dropouts(own: Callable[..., Tensor]) -> dict[str, Callable[..., Tensor]]:
    """Returns the replacements of `F.dropout` and of the functions that drop channels, by name."""
    channels = {f"dropout{dims}d": channel_dropout(own, dims) for dims in (1, 2, 3)}
    return {"dropout": own, **channels}


class Draw:
    """Draws tensors. Each call has its own site."""

    def __init__(self, site: Callable[[], int]) -> None:
        self._site = site

    def _draw(
        self,
        distribution: str,
        shape: Sequence[int],
        dtype: torch.dtype,
        device: torch.device | None = None,
    ) -> Tensor:
        rng = state()
        if device is not None and device != rng.device:
            rng = rng.to(device)
        return torch.ops.medley.random(  # type: ignore[no-any-return]
            rng, distribution, self._site(), list(shape), [], [], [], dtype
        )

    uniform = functools.partialmethod(_draw, "uniform")  # values in [0, 1)
    normal = functools.partialmethod(_draw, "normal")  # mean 0, deviation 1

    def exponential(self, like: Tensor) -> Tensor:
        """Returns positive values of mean 1, in the shape of `like`."""
        dtype = _wide(like.dtype)
        drawn = self.uniform(like.shape, dtype, like.device)
        return -torch.log1p(-drawn.clamp(min=torch.finfo(dtype).eps / 2))


class RandomOps(TorchDispatchMode):
    """Replaces the ops of _OPS inside the block. `site` names the next draw; `count` is called for
    each op."""

    supports_higher_order_operators = True

    def __init__(self, site: Callable[[], int], count: Callable[[], None] = lambda: None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draw = Draw(site)
        self._count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self._count()
        replacement = None
        if isinstance(func, torch._ops.OpOverload) and func.namespace == "aten":
            replacement = _OPS.get(func._opname.removesuffix("_"))
        if replacement is None:
            return func(*args, **kwargs)
        given = _bound(func, args, kwargs)
        if given.get("generator") is not None:
            raise CaptureError(
                f"{func}: a torch.Generator of the model's own: leave generator= out, and the "
                "numbers follow the trainer's seed and the step"
            )
        result = replacement(self._draw, given)
        return given["self"].copy_(result) if func._opname.endswith("_") else result


def _bound(func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a call by name, with defaults for missing ones. A default dtype is a
    number in schemas, and is left out here."""
    schema = func._schema.arguments
    given = {
        each.name: each.default_value
        for each in schema
        if each.has_default_value() and each.name != "dtype"
    }
    given.update({each.name: value for each, value in zip(schema, args, strict=False)})
    return given | kwargs


# --- the ops: functions of the draw and the arguments ---------------------------------------------

_Given = dict[str, Any]


def _wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which draws are compared or transformed, of at least 24 digits."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _target(given: _Given) -> tuple[list[int], torch.dtype, torch.device | None]:
    """Returns shape, dtype and device of a new tensor, or of one like `self`."""
    like, dtype = given.get("self"), given.get("dtype")
    if like is None:
        device = given.get("device")
        shape = given["size"] if "size" in given else [given["n"]]
        return list(shape), dtype or torch.get_default_dtype(), device
    return list(like.shape), dtype or like.dtype, like.device


def _uniform(draw: Draw, given: _Given) -> Tensor:
    least, end = given.get("from", 0.0), given.get("to", 1.0)
    drawn: Tensor = draw.uniform(*_target(given))
    if (least, end) != (0.0, 1.0):
        drawn = drawn * (end - least) + least
    return drawn


def _normal(draw: Draw, given: _Given) -> Tensor:
    mean, std = given.get("mean", 0.0), given.get("std", 1.0)
    shaped = [each for each in (mean, std) if isinstance(each, Tensor)]
    if not shaped:
        drawn: Tensor = draw.normal(*_target(given))
        if (mean, std) != (0.0, 1.0):
            drawn = drawn * std + mean
        return drawn
    shape = torch.broadcast_shapes(*(x.shape for x in shaped))  # type: ignore[no-untyped-call]
    found: Tensor = draw.normal(shape, shaped[0].dtype, shaped[0].device) * std + mean
    return found


def _log_normal(draw: Draw, given: _Given) -> Tensor:
    return _normal(draw, given).exp()


def _integers(draw: Draw, given: _Given) -> Tensor:
    shape, dtype, device = _target(given)
    if given.get("self") is None and given.get("dtype") is None:
        dtype = torch.int64
    least = given.get("low", given.get("from")) or 0
    end = given.get("high", given.get("to"))
    if end is None or not 0 < end - least <= 2**53:
        raise CaptureError(f"random integers: expected a range of 1 to 2**53: [{least}, {end})")
    drawn = (draw.uniform(shape, torch.float64, device) * float(end - least)).floor()
    return (drawn if least == 0 else drawn + float(least)).to(dtype)


def _permutation(draw: Draw, given: _Given) -> Tensor:
    shape, dtype, device = _target(given)
    order = draw.uniform(shape, torch.float64, device).argsort()
    return order.to(given.get("dtype") or torch.int64)


def _bernoulli(draw: Draw, given: _Given) -> Tensor:
    x: Tensor = given["self"]
    p = given.get("p", x)
    dtype = _wide(p.dtype if isinstance(p, Tensor) else x.dtype)
    kept: Tensor = draw.uniform(x.shape, dtype, x.device) < p
    return kept.to(x.dtype)


def _exponential(draw: Draw, given: _Given) -> Tensor:
    found: Tensor = draw.exponential(given["self"]) / given["lambd"]
    return found


def _geometric(draw: Draw, given: _Given) -> Tensor:
    return (draw.exponential(given["self"]) / -math.log1p(-given["p"])).floor() + 1


def _cauchy(draw: Draw, given: _Given) -> Tensor:
    x: Tensor = given["self"]
    angle = (draw.uniform(x.shape, _wide(x.dtype), x.device) - 0.5) * math.pi
    found: Tensor = angle.tan() * given["sigma"] + given["median"]
    return found


def _multinomial(draw: Draw, given: _Given) -> Tensor:
    """Draws with given weights: the index of the largest weight divided by an exponential value."""
    weights: Tensor = given["self"]
    count: int = given["num_samples"]
    if not given["replacement"] and count > 1:
        return (weights / draw.exponential(weights)).topk(count).indices
    choices = weights.unsqueeze(-2).expand(*weights.shape[:-1], count, -1)
    return (choices / draw.exponential(choices)).argmax(-1)


def _rrelu(draw: Draw, given: _Given) -> Tensor:
    x: Tensor = given["self"]
    lower, upper = given["lower"], given["upper"]
    if given["training"]:
        slope = draw.uniform(x.shape, x.dtype, x.device) * (upper - lower) + lower
        slope = torch.where(x > 0, 1.0, slope)
        given["noise"].copy_(slope)
    else:
        slope = torch.where(x > 0, 1.0, (lower + upper) / 2)
    return x * slope


def _dropout(draw: Draw, given: _Given) -> tuple[Tensor, Tensor]:
    x: Tensor = given["input"]
    p: float = given["p"]
    if given["train"] is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    keep = draw.uniform(x.shape, _wide(x.dtype), x.device) < 1 - p  # as PyTorch's bernoulli_(1 - p)
    return x * keep * (1.0 / (1.0 - p) if p < 1 else 0.0), keep


# Keyed by the name of the op. The variant with a trailing "_" fills `self`.
_OPS: dict[str, Callable[[Draw, _Given], Any]] = {
    "rand": _uniform,
    "rand_like": _uniform,
    "uniform": _uniform,
    "randn": _normal,
    "randn_like": _normal,
    "normal": _normal,
    "normal_functional": _normal,
    "log_normal": _log_normal,
    "randint": _integers,
    "randint_like": _integers,
    "random": _integers,
    "randperm": _permutation,
    "bernoulli": _bernoulli,
    "exponential": _exponential,
    "geometric": _geometric,
    "cauchy": _cauchy,
    "multinomial": _multinomial,
    "rrelu_with_noise": _rrelu,
    "native_dropout": _dropout,
}
