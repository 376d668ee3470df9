"""What replaces PyTorch's functions while a model is captured, or run eagerly for comparison.

- mean losses become a sum, a weight made by ops, and `medley::mean_loss`, so that the denominator
  can be summed over all devices and micro-batches; so does a division by the number of rows;
- `scaled_dot_product_attention` becomes `medley::attention`, dropout becomes `medley::dropout`,
  what else draws becomes draws of `medley::random` (random_ops.py);
- what rewrites.py has becomes ops that have a rule;
- checks of values that raise are taken to hold (assertions.py).

A torch function mode does not see calls made inside other intercepted functions, and patched
attributes do not see names imported before; both are in force, each covers the other's blind spot.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from medley.capture import assertions, random_ops, recurrent, rewrites
from medley.capture.bitsandbytes_patches import bitsandbytes_patches
from medley.capture.errors import CaptureError
from medley.capture.modules import ModuleStack
from medley.capture.peft_patches import peft_patches
from medley.capture.rewrites import legacy_reduction
from medley.capture.transformers_patches import capture_patches, transformers_patches


def _count(x: Tensor, *dims_and_keepdim: Any) -> Tensor:
    """Returns the number of elements of x, or of those along dims, as ops, so that it follows the
    batch: int64."""
    return torch.ones_like(x, dtype=torch.int64).sum(*dims_and_keepdim)


def mean_loss(total: Tensor, weight: Tensor) -> Tensor:
    """Returns total / weight, both []; the weight is summed over the whole global batch first."""
    if weight.requires_grad:
        weight = weight.detach()
    return torch.ops.medley.mean_loss(total, weight)  # type: ignore[no-any-return]


class Interceptor:
    """The replacements. `prime` is the captured batch size, None in eager runs; `scope` is entered
    around every call of a PyTorch function."""

    def __init__(
        self,
        modules: ModuleStack,
        prime: int | None = None,
        scope: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.scope = scope
        self.site = modules.site
        self.prime = prime
        self._original: dict[str, Callable[..., Any]] = {}
        self.functional: dict[str, Callable[..., Any]] = {
            "scaled_dot_product_attention": self.attention,
            "dropout": self.dropout,
            "dropout1d": self.channel_dropout(1),
            "dropout2d": self.channel_dropout(2),
            "dropout3d": self.channel_dropout(3),
            "cross_entropy": self.cross_entropy,
            "nll_loss": self.nll_loss,
            "adaptive_avg_pool1d": self.adaptive_pool(1),
            "adaptive_avg_pool2d": self.adaptive_pool(2),
            "adaptive_avg_pool3d": self.adaptive_pool(3),
            "gaussian_nll_loss": functools.partial(rewrites.gaussian_nll_loss, self.mean),
            "embedding": functools.partial(rewrites.embedding, F.embedding),
            "embedding_bag": functools.partial(rewrites.embedding_bag, F.embedding_bag),
            "bilinear": rewrites.bilinear,
        }
        for name in rewrites.MEANS:
            self.functional[name] = rewrites.mean_of_elements(getattr(F, name), self.mean)
        for name in (
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "huber_loss",
            "binary_cross_entropy",
            "binary_cross_entropy_with_logits",
            "kl_div",
        ):
            self.functional[name] = self._elementwise_loss(name)
        self._original = {name: getattr(F, name) for name in self.functional}
        self._by_function: dict[Any, Callable[..., Any]] = {
            self._original[name]: replacement for name, replacement in self.functional.items()
        }
        self._by_function[torch.dropout] = self.dropout
        for mean in (torch.mean, Tensor.mean):
            self._by_function[mean] = self.mean
        self._by_function[torch._weight_norm] = rewrites.weight_norm
        for layers in recurrent.FUNCTIONS:
            self._by_function[layers] = recurrent.layer_by_layer(layers, self.dropout)
        for divide in _DIVISIONS:
            self._by_function[divide] = functools.partial(self.divide, divide)
        if prime is not None:
            for function in _ARITHMETIC:
                self._by_function[function] = functools.partial(self.with_rows, function)
            self._by_function[torch.tensor] = self.tensor
        for variance in (torch.var, Tensor.var, torch.std, Tensor.std):
            self._by_function[variance] = functools.partial(self.variance, variance)
        if prime is not None:
            self._by_function.update(assertions.replacements())
            self._by_function[Tensor.__setitem__] = functools.partial(
                rewrites.assign, Tensor.__setitem__
            )

    def replacement(self, function: Any) -> Callable[..., Any] | None:
        """Returns what replaces `function`, if anything does."""
        try:
            return self._by_function.get(function)
        except TypeError:  # not hashable
            return None

    # --- losses ---

    def cross_entropy(
        self,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> Tensor:
        """`F.cross_entropy`; a mean's weight counts the targets that are not ignored."""
        reduction = legacy_reduction(size_average, reduce, reduction)
        if input.dim() > 2 and not target.is_floating_point():
            return rewrites.per_position(
                self.cross_entropy,
                input,
                target,
                weight,
                ignore_index=ignore_index,
                reduction=reduction,
                label_smoothing=label_smoothing,
            )
        result: Tensor = self._original["cross_entropy"](
            input,
            target,
            weight,
            ignore_index=ignore_index,
            reduction="none" if reduction == "none" else "sum",
            label_smoothing=label_smoothing,
        )
        if reduction != "mean":
            return result
        if target.is_floating_point():  # class probabilities: one row per class distribution
            classes = 0 if input.dim() == 1 else 1
            return mean_loss(result, _count(target.select(classes, 0)))
        return mean_loss(result, self._target_weight(target, weight, ignore_index))

    def nll_loss(
        self,
        input: Tensor,
        target: Tensor,
        weight: Tensor | None = None,
        size_average: bool | None = None,
        ignore_index: int = -100,
        reduce: bool | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        """`F.nll_loss`; a mean's weight counts the targets that are not ignored."""
        reduction = legacy_reduction(size_average, reduce, reduction)
        if input.dim() > 2:
            return rewrites.per_position(
                self.nll_loss, input, target, weight, ignore_index=ignore_index, reduction=reduction
            )
        result: Tensor = self._original["nll_loss"](
            input,
            target,
            weight,
            ignore_index=ignore_index,
            reduction="none" if reduction == "none" else "sum",
        )
        if reduction != "mean":
            return result
        return mean_loss(result, self._target_weight(target, weight, ignore_index))

    def _target_weight(self, target: Tensor, weight: Tensor | None, ignore_index: int) -> Tensor:
        valid = target != ignore_index
        if weight is None:
            return valid.sum()
        weights = F.embedding(target.masked_fill(~valid, 0), weight.unsqueeze(-1)).squeeze(-1)
        return weights.masked_fill(~valid, 0.0).sum()

    def _elementwise_loss(self, name: str) -> Callable[..., Tensor]:
        def loss(*args: Any, **kwargs: Any) -> Tensor:
            original = self._original[name]
            given, reduction = rewrites.bind_loss(original, args, kwargs)
            if reduction not in ("mean", "batchmean"):
                return original(**given, reduction=reduction)  # type: ignore[no-any-return]
            total: Tensor = original(**given, reduction="sum")
            input, target = given["input"], given["target"]
            if reduction == "batchmean":
                rows = target
                while rows.dim() > 1:
                    rows = rows.select(-1, 0)
                return mean_loss(total, _count(rows))
            counted = target
            if input.shape != target.shape:
                counted = target + torch.zeros_like(input.detach())
            return mean_loss(total, _count(counted))

        return loss

    def mean(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`mean()` over everything is a mean loss; a mean over the batch divides by a count."""
        dims = kwargs.get("dim", kwargs.get("axis", args[0] if args else None))
        kwargs_left = {k: v for k, v in kwargs.items() if v is not None}
        if dims is None and not args and not kwargs_left.keys() - {"dtype"}:
            x = input if kwargs.get("dtype") is None else input.to(kwargs["dtype"])
            return mean_loss(x.sum(), _count(x)) if x.numel() != 1 or x.dim() else x.clone()
        if self.prime is not None and dims is not None:
            listed = [dims] if isinstance(dims, int) else list(dims)
            listed = listed or list(range(input.dim()))
            if math.prod(input.shape[dim] for dim in listed) % self.prime == 0:
                keepdim = bool(kwargs.get("keepdim", args[1] if len(args) > 1 else False))
                total = input.sum(listed, keepdim, dtype=kwargs.get("dtype"))
                return total / _count(input, listed, keepdim)
        return torch.Tensor.mean(input, *args, **kwargs)

    def divide(self, original: Any, input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        """A division; by a multiple of the rows it is one by a count, of a scalar a mean loss."""
        rows = self._rows(other)
        if rows is None or args or kwargs or not is_floating(input):
            return original(input, other, *args, **kwargs)
        if input.dim() == 0 and original not in _IN_PLACE:
            return mean_loss(input, rows)
        return original(input, rows)

    def with_rows(self, original: Any, input: Any, other: Any, *args: Any, **kwargs: Any) -> Any:
        """A sum or product with a multiple of the rows is one with a count; a product with a share
        of one row, such as 1 / x.shape[0], is a division."""
        if original in _PRODUCTS and is_floating(input) and isinstance(other, float):
            share = Fraction(1 / other).limit_denominator(100) if other else Fraction(0)
            rows = self._rows(share.numerator)
            if rows is not None and abs(float(share) * other - 1.0) < 4e-16:
                if share.denominator != 1:
                    input = original(input, share.denominator)
                return self.divide(torch.div, input, share.numerator)
        rows = self._rows(other)
        return original(input, other if rows is None else rows, *args, **kwargs)

    def tensor(self, data: Any, *args: Any, **kwargs: Any) -> Tensor:
        """`torch.tensor`; of a multiple of the rows it is a count."""
        rows = self._rows(data)
        if rows is None:
            return torch.tensor(data, *args, **kwargs)
        default = torch.get_default_dtype() if isinstance(data, float) else torch.int64
        return rows.to(kwargs.get("dtype") or default)

    def _rows(self, number: Any) -> Tensor | None:
        """Returns a multiple of the rows, []; None for another number."""
        if self.prime is None or isinstance(number, bool) or not isinstance(number, (int, float)):
            return None
        if not number or number % self.prime:
            return None
        return torch.ones(self.prime, dtype=torch.int64).sum() * int(number // self.prime)

    def variance(self, original: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """`var()` and `std()`; over the batch they divide by a count."""
        given = dict(kwargs)
        dims = given.pop("dim", given.pop("axis", None))
        for value in args:  # var(x, unbiased), var(x, dim, unbiased, keepdim)
            if not isinstance(value, bool):
                dims = value
            else:
                given["keepdim" if "unbiased" in given else "unbiased"] = value
        listed = [dims] if isinstance(dims, int) else list(dims or range(input.dim()))
        correction = given.pop("correction", None)
        unbiased = given.pop("unbiased", True)
        if correction is None:
            correction = 1 if unbiased else 0
        keepdim = bool(given.pop("keepdim", False))
        if self.prime is None or given or math.prod(input.shape[d] for d in listed) % self.prime:
            return original(input, *args, **kwargs)  # type: ignore[no-any-return]
        found = rewrites.variance(self.mean, _count, input, listed, correction, keepdim)
        return found.sqrt() if original in (torch.std, Tensor.std) else found

    # --- attention and dropout ---

    def dropout(
        self,
        input: Tensor,
        p: float = 0.5,
        training: bool = True,
        inplace: bool = False,
        **kwargs: Any,
    ) -> Tensor:
        """`F.dropout` with random numbers that depend on the seed, the step and the place only."""
        if "train" in kwargs:  # torch.dropout's name of it
            training = bool(kwargs["train"])
        if not 0.0 <= p <= 1.0:
            raise CaptureError(f"dropout: the probability must be between 0 and 1: {p}")
        if not training or p == 0.0:
            return input
        if p == 1.0:
            return input * 0.0
        rng, site = random_ops.state(), self.site()
        return torch.ops.medley.dropout(input, rng, float(p), site, [], [], [])  # type: ignore[no-any-return]

    def channel_dropout(self, spatial: int) -> Callable[..., Tensor]:
        """Returns the replacement of `F.dropout<spatial>d`, which drops whole channels."""

        def dropout(
            input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
        ) -> Tensor:
            if not training or p == 0.0:
                return input
            ones = input.detach()
            for dim in range(-spatial, 0):
                ones = ones.narrow(dim, 0, 1)
            return input * self.dropout(torch.ones_like(ones), p, training)

        return dropout

    def attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """`F.scaled_dot_product_attention`: one op; with dropout or a trained bias several."""
        scale = 1.0 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
        if torch.is_autocast_enabled(query.device.type):  # which does not know our ops
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
        if query.dim() == 3:
            query, key, value = query.unsqueeze(1), key.unsqueeze(1), value.unsqueeze(1)
            if attn_mask is not None and attn_mask.dim() == 3:
                attn_mask = attn_mask.unsqueeze(1)
            mixed = self.attention(query, key, value, attn_mask, dropout_p, is_causal, scale)
            return mixed.squeeze(1)
        if query.dim() > 4 and query.dim() == key.dim() == value.dim() and not enable_gqa:
            return self._attention_in_blocks(
                query, key, value, attn_mask, dropout_p, is_causal, scale
            )
        if query.dim() != 4 or key.dim() != 4 or value.dim() != 4:
            raise CaptureError(
                "scaled_dot_product_attention: expected query, key and value of shape "
                f"[batch, heads, positions, width]; found {list(query.shape)}, {list(key.shape)}, "
                f"{list(value.shape)}"
            )
        heads, groups = query.shape[1], key.shape[1]
        if (
            not (groups in (1, heads) or (enable_gqa and heads % groups == 0))
            or value.shape[1:3] != key.shape[1:3]
            or key.shape[3] != query.shape[3]
        ):
            raise CaptureError(
                f"scaled_dot_product_attention: found query {list(query.shape)}, key "
                f"{list(key.shape)}, value {list(value.shape)}; expected as many heads in each "
                "(with enable_gqa: a divisor in key and value), query and key of one width, key "
                "and value of as many positions"
            )
        # Keys and values that all rows share, such as learned ones, are of one row.
        rows = next((x.shape[0] for x in (query, key, value) if x.shape[0] != 1), 1)
        query, key, value = (
            x if x.shape[0] == rows else x.expand(rows, -1, -1, -1) for x in (query, key, value)
        )
        bias = self._bias(query, key, attn_mask)
        if is_causal and query.shape[2] != key.shape[2]:
            # PyTorch aligns the mask at the top left, our op at the bottom right.
            seen = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril()
            band = self._bias(query, key, seen)
            bias, is_causal = band if bias is None or band is None else bias + band, False
        if dropout_p > 0.0 or (bias is not None and bias.requires_grad):
            return self._explicit_attention(query, key, value, bias, dropout_p, is_causal, scale)
        out, _ = torch.ops.medley.attention(query, key, value, bias, is_causal, scale)
        return out  # type: ignore[no-any-return]

    def _attention_in_blocks(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float,
    ) -> Tensor:
        """Attention of shape [batch, heads, blocks ..., positions, width]: each block of each head
        is as a head."""
        inner = [
            max(sizes) for sizes in zip(*(x.shape[1:-2] for x in (query, key, value)), strict=True)
        ]
        query, key, value = (
            x.expand(-1, *inner, -1, -1).flatten(1, -3) for x in (query, key, value)
        )
        if mask is not None and mask.dim() > 2:
            mask = mask[(None,) * (len(inner) + 3 - mask.dim())]
            heads = (1,) * len(inner) if max(mask.shape[1:-2]) == 1 else inner
            mask = mask.expand(-1, *heads, -1, -1).flatten(1, -3)
        mixed = self.attention(query, key, value, mask, dropout_p, is_causal, scale)
        return mixed.reshape(mixed.shape[0], *inner, *mixed.shape[2:])

    def _bias(self, query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor | None:
        """Returns the mask as an additive bias [b|1, h|1, s, t] of the query's dtype."""
        if mask is None:
            return None
        if mask.dtype == torch.bool:
            zeros = torch.zeros_like(mask, dtype=query.dtype)
            mask = zeros.masked_fill(mask.logical_not(), -math.inf)
        elif mask.dtype != query.dtype:
            mask = mask.to(query.dtype)
        while mask.dim() < 4:
            mask = mask.unsqueeze(0)
        shape = [mask.shape[0], mask.shape[1], query.shape[2], key.shape[2]]
        return mask if list(mask.shape) == shape else mask.expand(shape)

    def _explicit_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        bias: Tensor | None,
        dropout_p: float,
        is_causal: bool,
        scale: float,
    ) -> Tensor:
        repeats = query.shape[1] // key.shape[1]
        if repeats > 1:
            key = _repeat_heads(key, repeats)
            value = _repeat_heads(value, repeats)
        scores = query @ key.transpose(-1, -2) * scale
        if bias is not None:
            scores = scores + bias
        if is_causal:
            seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
            scores = scores.masked_fill(seen.logical_not(), -math.inf)
        weights = self.dropout(F.softmax(scores, -1), dropout_p)
        return weights @ value

    # --- pooling ---

    def adaptive_pool(self, spatial: int) -> Callable[..., Tensor]:
        """Returns the replacement of `F.adaptive_avg_pool<spatial>d`: a mean if the output is 1."""
        name = f"adaptive_avg_pool{spatial}d"

        def pool(input: Tensor, output_size: Any) -> Tensor:
            sizes = [output_size] * spatial if isinstance(output_size, int) else list(output_size)
            if all(size == 1 for size in sizes):
                return torch.Tensor.mean(input, list(range(-spatial, 0)), True)
            return self._original[name](input, output_size)  # type: ignore[no-any-return]

        return pool


_IN_PLACE = (Tensor.div_, Tensor.__itruediv__)
_DIVISIONS = (
    torch.div,
    torch.true_divide,
    Tensor.div,
    Tensor.true_divide,
    Tensor.__truediv__,
    *_IN_PLACE,
)

_PRODUCTS = (torch.mul, torch.multiply, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
_ARITHMETIC = (
    *_PRODUCTS,
    *(torch.add, Tensor.add, Tensor.__add__, Tensor.__radd__, Tensor.add_, Tensor.__iadd__),
    *(torch.sub, Tensor.sub, Tensor.__sub__, Tensor.sub_, Tensor.__isub__),
)


def is_floating(x: Any) -> bool:
    """Returns whether this is a tensor of floating-point numbers."""
    return isinstance(x, Tensor) and x.is_floating_point()


def _repeat_heads(x: Tensor, repeats: int) -> Tensor:
    b, g, t, d = x.shape
    return x.unsqueeze(2).expand(b, g, repeats, t, d).reshape(b, g * repeats, t, d)


class _Mode(TorchFunctionMode):
    def __init__(self, interceptor: Interceptor) -> None:
        super().__init__()
        self._interceptor = interceptor

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        replacement = self._interceptor.replacement(func)
        with self._interceptor.scope():
            return (replacement or func)(*args, **(kwargs or {}))


class _NoCheckpoint:
    """In place of reentrant activation checkpointing: the planner decides what is recomputed."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _no_checkpoint(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _cond(*args: Any, **kwargs: Any) -> Any:
    raise CaptureError("torch.cond: compute both branches and choose with torch.where")


def _refuse_conversion(self: nn.Module, change: Callable[[Tensor], Tensor], *_: Any) -> nn.Module:
    """In place of what `module.to()` and the like do to parameters and buffers: another device is
    nothing here, another type cannot be had for one call."""
    for name, tensor in (*self.named_parameters(), *self.named_buffers()):
        if (found := change(tensor).dtype) != tensor.dtype:
            raise CaptureError(
                f"forward makes {name!r} of a {type(self).__name__} {found}, which was "
                f"{tensor.dtype}: make it {found} before capture"
            )
    return self


def _forward_inside(self: Any, *args: Any, **kwargs: Any) -> Any:
    """In place of the forward of what divides the batch over devices: the plan does."""
    return self.module(*args, **kwargs)


@contextlib.contextmanager
def _uncompiled() -> Iterator[None]:
    """What torch.compile has compiled runs as it was written inside the block."""
    import torch._dynamo.config  # only who captures waits for it

    with (
        torch.compiler.set_stance("force_eager"),
        torch._dynamo.config.patch(error_on_nested_fx_trace=False),
    ):
        yield


def _autocast_on_cpu(original: Callable[..., None]) -> Callable[..., None]:
    """Returns the constructor of torch.autocast for a model whose tensors are fakes on the cpu."""

    def init(
        self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if dtype is None:
            dtype = torch.get_autocast_dtype(device_type)
        original(self, "cpu", dtype, *args, **kwargs)

    return init


@contextlib.contextmanager
def intercept(interceptor: Interceptor) -> Iterator[None]:
    """Puts the replacements in force inside the block."""
    patched: list[tuple[Any, str, Any]] = []

    def patch(owner: Any, name: str, value: Any) -> None:
        patched.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    try:
        for name, replacement in interceptor.functional.items():
            patch(F, name, replacement)
        patch(torch.utils.checkpoint, "CheckpointFunction", _NoCheckpoint)
        patch(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", _no_checkpoint)
        if interceptor.prime is not None:
            patch(torch.autocast, "__init__", _autocast_on_cpu(torch.autocast.__init__))
            patch(torch, "cond", _cond)
            patch(nn.Module, "_apply", _refuse_conversion)
            for wrapper in (nn.DataParallel, nn.parallel.DistributedDataParallel):
                patch(wrapper, "forward", _forward_inside)
            patch(torch.distributions.Distribution, "_validate_args", False)
            norms = nn.modules.batchnorm._BatchNorm
            patch(norms, "forward", rewrites.cumulative_batch_norm(norms.forward))
            for owner, name in random_ops.SEEDS:
                patch(owner, name, random_ops.refuse_seed)
            for owner, name, replacement in (
                *capture_patches(),
                *bitsandbytes_patches(),
                *peft_patches(),
            ):
                patch(owner, name, replacement)
        for owner, name, replacement in transformers_patches():
            patch(owner, name, replacement)
        with (
            _uncompiled() if interceptor.prime is not None else contextlib.nullcontext(),
            _Mode(interceptor),
            random_ops.RandomOps(interceptor.site),
        ):
            yield
    finally:
        for owner, name, value in reversed(patched):
            setattr(owner, name, value)


@contextlib.contextmanager
def substitute(model: nn.Module) -> Iterator[None]:
    """Runs `model` eagerly with the same replacements as a captured graph: the reference for tests.

    What draws reads the state of `custom_ops.set_rng(seed, step)`; equal states give equal
    numbers.
    """
    modules = ModuleStack()
    with modules.watch(model), intercept(Interceptor(modules)):
        yield
