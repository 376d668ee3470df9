"""Replacements of PyTorch functions while a model is captured.

- Mean losses become a sum, a normaliser made by ops, and `medley::mean_loss`. The normaliser can
  then be summed over all devices and micro-batches. A division by the number of rows does so too.
- `scaled_dot_product_attention` becomes `medley::attention`, dropout `medley::dropout`, and all
  other random functions `medley::random` (random_ops.py).
- Functions in rewrites.py become ops with a sharding rule.
- Checks that only raise are assumed to pass (assertions.py).

A torch function mode misses calls inside other intercepted functions. Patched attributes miss names
imported earlier. Both are active and cover each other's gaps.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import torch.utils.checkpoint
from torch import Tensor, nn

from medley.capture import assertions, pictures, random_ops, recurrent, rewrites, side_doors
from medley.capture.attention import attention
from medley.capture.bitsandbytes_patches import bitsandbytes_patches
from medley.capture.errors import ROWS_FIRST, CaptureError, RowsError
from medley.capture.modules import ModuleStack, calling_line
from medley.capture.patches import Patch, Replacing, patched
from medley.capture.peft_patches import peft_patches
from medley.capture.row_counts import RowCounts, count, mean_loss
from medley.capture.sequences import ctc_loss, sequence_patches
from medley.capture.transformers_patches import capture_patches, transformers_patches


class Interceptor:
    """The replacements. `prime` is the captured batch size. `scope` is entered around every call of
    a PyTorch function."""

    def __init__(
        self,
        modules: ModuleStack,
        prime: int,
        scope: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> None:
        self.scope = scope
        self.modules = modules
        self.site = modules.site
        self.dropout = functools.partial(random_ops.dropout, modules.site)
        self.prime = prime
        self.ops = 0  # count of the current forward
        self.most_ops: int | None = None
        self._original: dict[str, Callable[..., Any]] = {}
        self.functional: dict[str, Callable[..., Any]] = {
            "scaled_dot_product_attention": functools.partial(attention, self.dropout),
            **random_ops.dropouts(self.dropout),
            "cross_entropy": self._class_loss("cross_entropy"),
            "nll_loss": self._class_loss("nll_loss"),
            **{f"adaptive_avg_pool{dims}d": self.adaptive_pool(dims) for dims in (1, 2, 3)},
            "gaussian_nll_loss": functools.partial(rewrites.gaussian_nll_loss, self.mean),
            "embedding": functools.partial(rewrites.embedding, F.embedding),
            "embedding_bag": functools.partial(rewrites.embedding_bag, F.embedding_bag),
            "bilinear": rewrites.bilinear,
            "ctc_loss": functools.partial(ctc_loss, self.mean),
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
        self.by_function: dict[Any, Callable[..., Any]] = {
            self._original[name]: replacement for name, replacement in self.functional.items()
        }
        self.by_function[torch.dropout] = self.dropout
        for mean in (torch.mean, Tensor.mean):
            self.by_function[mean] = self.mean
        self.by_function[torch._weight_norm] = rewrites.weight_norm
        self.by_function[torch.bucketize] = rewrites.bucketize
        for layers in recurrent.FUNCTIONS:
            self.by_function[layers] = recurrent.layer_by_layer(layers, self.dropout)
        self.by_function.update(RowCounts(lambda: self.prime).replacements())
        for variance in (torch.var, Tensor.var, torch.std, Tensor.std):
            self.by_function[variance] = functools.partial(self.variance, variance)
        self.has_pictures = False  # equally many images in each row of the batch
        for scatter in (torch.masked_scatter, Tensor.masked_scatter):
            self.by_function[scatter] = functools.partial(
                self._of_pictures, pictures.masked_scatter, scatter
            )
        for unbind in (torch.unbind, Tensor.unbind):
            self.by_function[unbind] = functools.partial(self._of_pictures, pictures.unbind, unbind)
        self.refused: list[Exception] = []  # uses of values whose error the model may catch
        self.by_function.update(assertions.replacements(self.refused))
        self.by_function[torch._assert] = assertions.dropped(self.refused, torch._assert)
        self.by_function.update(side_doors.replacements())
        self.by_function[Tensor.__getitem__] = functools.partial(
            rewrites.first_of, Tensor.__getitem__
        )
        self.by_function[Tensor.__setitem__] = functools.partial(
            rewrites.assign, Tensor.__setitem__
        )

    def _of_pictures(
        self, replacement: Callable[..., Any], original: Callable[..., Any], *args: Any, **kw: Any
    ) -> Any:
        if not self.has_pictures:
            return original(*args, **kw)
        return replacement(original, self.prime, *args, **kw)

    def count_op(self) -> None:
        """Counts an op. Raises CaptureError above `most_ops`, which bounds traces of long loops."""
        self.ops += 1
        if self.most_ops is not None and self.ops > self.most_ops:
            raise RowsError(
                f"{calling_line()}: a loop over the rows of the batch: found more than "
                f"{self.most_ops} ops for {self.prime} rows, expected as many for any batch. "
                f"{ROWS_FIRST}"
            )

    # --- losses ---

    def _class_loss(self, name: str) -> Callable[..., Tensor]:
        """Returns the replacement of a classification loss. Its normaliser counts the targets not
        ignored."""

        def loss(*args: Any, **kwargs: Any) -> Tensor:
            original = self._original[name]
            given, reduction = rewrites.bind_loss(original, args, kwargs)
            input, target, weight = given["input"], given["target"], given["weight"]
            if input.dim() > 2 and not target.is_floating_point():
                return rewrites.per_position(loss, **given, reduction=reduction)
            result: Tensor = original(**given, reduction="none" if reduction == "none" else "sum")
            if reduction != "mean":
                return result
            if target.is_floating_point():  # class probabilities: one row per class distribution
                classes = 0 if input.dim() == 1 else 1
                return mean_loss(result, count(target.select(classes, 0)))
            return mean_loss(result, self._target_weight(target, weight, given["ignore_index"]))

        return loss

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
            if name in ("mse_loss", "l1_loss") and given.get("weight") is not None:
                return mean_loss(total, given["weight"].sum())
            if reduction == "batchmean":
                rows = target
                while rows.dim() > 1:
                    rows = rows.select(-1, 0)
                return mean_loss(total, count(rows))
            counted = target
            if input.shape != target.shape:
                counted = target + torch.zeros_like(input.detach())
            return mean_loss(total, count(counted))

        return loss

    def mean(self, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Replaces `mean()`: over everything it is a mean loss, over the batch a division by a
        count."""
        dims = kwargs.get("dim", kwargs.get("axis", args[0] if args else None))
        kwargs_left = {k: v for k, v in kwargs.items() if v is not None}
        if dims is None and not args and not kwargs_left.keys() - {"dtype"}:
            x = input if kwargs.get("dtype") is None else input.to(kwargs["dtype"])
            return mean_loss(x.sum(), count(x)) if x.numel() != 1 or x.dim() else x.clone()
        if dims is not None:
            listed = [dims] if isinstance(dims, int) else list(dims)
            listed = listed or list(range(input.dim()))
            if math.prod(input.shape[dim] for dim in listed) % self.prime == 0:
                keepdim = bool(kwargs.get("keepdim", args[1] if len(args) > 1 else False))
                total = input.sum(listed, keepdim, dtype=kwargs.get("dtype"))
                return total / count(input, listed, keepdim)
        return torch.Tensor.mean(input, *args, **kwargs)

    def variance(self, original: Any, input: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Replaces `var()` and `std()`, which divide by a count over the batch."""
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
        if given or math.prod(input.shape[d] for d in listed) % self.prime:
            return original(input, *args, **kwargs)  # type: ignore[no-any-return]
        found = rewrites.variance(self.mean, count, input, listed, correction, keepdim)
        return found.sqrt() if original in (torch.std, Tensor.std) else found

    # --- pooling ---

    def adaptive_pool(self, spatial: int) -> Callable[..., Tensor]:
        """Returns the replacement of `F.adaptive_avg_pool<spatial>d`: a mean if the output size is
        1."""
        name = f"adaptive_avg_pool{spatial}d"

        def pool(input: Tensor, output_size: Any) -> Tensor:
            sizes = [output_size] * spatial if isinstance(output_size, int) else list(output_size)
            if all(size == 1 for size in sizes):
                return torch.Tensor.mean(input, list(range(-spatial, 0)), True)
            return self._original[name](input, output_size)  # type: ignore[no-any-return]

        return pool


class _NoCheckpoint:
    """Replaces reentrant activation checkpointing: the planner chooses the recomputation."""

    @staticmethod
    def apply(function: Callable[..., Any], preserve: bool, *args: Any) -> Any:
        return function(*args)


def _said_causal(
    mask: Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """Replaces the test of a mask's values. The mask gives the same result without the test."""
    return is_causal is True


def _no_checkpoint(*args: Any, **kwargs: Any) -> Iterator[None]:
    yield


def _cond(*args: Any, **kwargs: Any) -> Any:
    raise CaptureError("torch.cond: compute both branches and choose with torch.where")


def _refuse_conversion(self: nn.Module, change: Callable[[Tensor], Tensor], *_: Any) -> nn.Module:
    """Replaces the conversion of tensors in `module.to()` and the like. A change of device has no
    effect; a change of type is impossible for one call."""
    for name, tensor in (*self.named_parameters(), *self.named_buffers()):
        if (found := change(tensor).dtype) != tensor.dtype:
            raise CaptureError(
                f"forward makes {name!r} of a {type(self).__name__} {found}, which was "
                f"{tensor.dtype}: make it {found} before capture"
            )
    return self


def _forward_inside(self: Any, *args: Any, **kwargs: Any) -> Any:
    """Replaces the forward of data-parallel wrappers: the plan divides the batch."""
    return self.module(*args, **kwargs)


@contextlib.contextmanager
def uncompiled() -> Iterator[None]:
    """Runs code compiled by torch.compile uncompiled inside the block."""
    import torch._dynamo.config  # slow import, needed only in capture

    with (
        torch.compiler.set_stance("force_eager"),
        torch._dynamo.config.patch(error_on_nested_fx_trace=False),
    ):
        yield


def _autocast_on_cpu(original: Callable[..., None]) -> Callable[..., None]:
    """Returns the constructor of torch.autocast for a model of fake tensors on the CPU."""

    def init(
        self: Any, device_type: str, dtype: torch.dtype | None = None, *args: Any, **kwargs: Any
    ) -> None:
        if dtype is None:
            dtype = torch.get_autocast_dtype(device_type)
        original(self, "cpu", dtype, *args, **kwargs)

    return init


def on_one_device(device: torch.device) -> AbstractContextManager[None]:
    """Lets a model run on one device: data-parallel wrappers do nothing, and on a CPU autocast is
    that of the CPU."""
    patches: list[Patch] = [
        (wrapper, "forward", _forward_inside)
        for wrapper in (nn.DataParallel, nn.parallel.DistributedDataParallel)
    ]
    if device.type == "cpu":
        patches.append((torch.autocast, "__init__", _autocast_on_cpu(torch.autocast.__init__)))
    return patched(patches)


@contextlib.contextmanager
def intercept(interceptor: Interceptor) -> Iterator[None]:
    """Activates the replacements inside the block."""
    with (
        patched(_patches(interceptor)),
        uncompiled(),
        on_one_device(torch.device("cpu")),
        Replacing(interceptor.by_function, interceptor.scope),
        random_ops.RandomOps(interceptor.site, interceptor.count_op),
    ):
        yield


def _patches(interceptor: Interceptor) -> Iterator[Patch]:
    for name, replacement in interceptor.functional.items():
        yield F, name, replacement
    yield torch.utils.checkpoint, "CheckpointFunction", _NoCheckpoint
    yield torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", _no_checkpoint
    yield torch, "cond", _cond
    for name, position in (("_check_with", 1), ("_assert", 0), ("_assert_scalar", 0)):
        check = getattr(torch, name)
        yield torch, name, assertions.dropped(interceptor.refused, check, position)
    yield nn.Module, "_apply", _refuse_conversion
    yield nn.modules.transformer, "_detect_is_causal_mask", _said_causal
    yield torch.distributions.Distribution, "_validate_args", False
    norms = nn.modules.batchnorm._BatchNorm
    yield norms, "forward", rewrites.cumulative_batch_norm(norms.forward)
    for owner, name in random_ops.SEEDS:
        yield owner, name, random_ops.refuse_seed
    yield from capture_patches()
    if interceptor.has_pictures:
        yield from pictures.picture_patches(interceptor.prime)
    yield from bitsandbytes_patches()
    yield from peft_patches()
    yield from side_doors.side_door_patches()
    yield from sequence_patches(interceptor.dropout)
    yield from transformers_patches()
