"""Functions of PyTorch as ops that have a sharding rule, or that scale with the rows of the
batch."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

Function = Callable[..., Any]

# Losses whose mean PyTorch divides by a number of elements. Here it is the mean of the result with
# reduction="none".
MEANS = (
    "poisson_nll_loss",
    "hinge_embedding_loss",
    "soft_margin_loss",
    "multi_margin_loss",
    "multilabel_margin_loss",
    "multilabel_soft_margin_loss",
    "margin_ranking_loss",
    "cosine_embedding_loss",
    "triplet_margin_loss",
    "triplet_margin_with_distance_loss",
)


def bind_loss(
    loss: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[dict[str, Any], str]:
    """Returns the arguments of a PyTorch loss by name, and separately the reduction."""
    given = _bound(loss, args, kwargs)
    average, reduce = (given.pop(name, None) for name in ("size_average", "reduce"))
    reduction = given.pop("reduction")
    if average is not None or reduce is not None:  # deprecated flags
        reduction = "none" if reduce is False else "sum" if average is False else "mean"
    return given, reduction


def _bound(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def mean_of_elements(original: Function, mean: Callable[[Tensor], Tensor]) -> Function:
    """Returns a loss whose mean is `mean` of its elements."""

    def loss(*args: Any, **kwargs: Any) -> Tensor:
        given, reduction = bind_loss(original, args, kwargs)
        elements = reduction == "mean"
        result: Tensor = original(**given, reduction="none" if elements else reduction)
        return mean(result) if elements else result

    return loss


def gaussian_nll_loss(
    mean: Callable[[Tensor], Tensor],
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """Replaces `F.gaussian_nll_loss` without reading values: variances are at least `eps`."""
    if not isinstance(var, Tensor):
        var = torch.full_like(input, var)
    if var.dim() == input.dim() - 1 and var.shape == input.shape[:-1]:
        var = var.unsqueeze(-1)
    var = var + (var.clamp(min=eps) - var).detach()
    loss = 0.5 * (var.log() + (input - target) ** 2 / var)
    if full:
        loss = loss + 0.5 * math.log(2 * math.pi)
    if reduction == "mean":
        return mean(loss)
    return loss.sum() if reduction == "sum" else loss


def embedding(original: Function, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces `F.embedding`. The gradient is dense, with the values of a sparse one."""
    found: Tensor = original(**{**_bound(original, args, kwargs), "sparse": False})
    return found


def embedding_bag(original: Function, *args: Any, **kwargs: Any) -> Tensor:
    """Replaces `F.embedding_bag`, with a dense gradient. Bags of one length, a row each, are looked
    up and reduced."""
    given = {**_bound(original, args, kwargs), "sparse": False}
    input: Tensor = given["input"]
    weight, mode = given["weight"], given["mode"]
    if input.dim() != 2 or given["max_norm"] is not None or given["scale_grad_by_freq"]:
        result: Tensor = original(**given)
        return result
    padding_idx, per_sample_weights = given["padding_idx"], given["per_sample_weights"]
    found: Tensor = F.embedding(input, weight)
    kept = None if padding_idx is None else (input != padding_idx % len(weight)).unsqueeze(-1)
    if mode == "max":
        if kept is None:
            return found.max(1).values
        least = found.masked_fill(~kept, -math.inf).max(1).values
        return least.masked_fill(~kept.any(1), 0.0)
    if per_sample_weights is not None:
        found = found * per_sample_weights.unsqueeze(-1)
    if kept is None:
        return found.sum(1) / (input.shape[1] if mode == "mean" else 1)
    total: Tensor = (found * kept).sum(1)
    return total / kept.sum(1).clamp(min=1) if mode == "mean" else total


def bilinear(input1: Tensor, input2: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Replaces `F.bilinear` by a product with the first input, then one with the second."""
    out, first, second = weight.shape
    half = input1 @ weight.permute(1, 0, 2).reshape(first, out * second)
    result: Tensor = (torch.unflatten(half, -1, (out, second)) @ input2.unsqueeze(-1)).squeeze(-1)
    return result if bias is None else result + bias


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """Replaces `torch.nn.utils.weight_norm`."""
    norm: Tensor = torch.norm_except_dim(v, 2, dim)
    return v * (g / norm)


def per_position(
    loss: Function, input: Tensor, target: Tensor, weight: Tensor | None, **options: Any
) -> Tensor:
    """Returns a loss of class indices [n, ...] and scores [n, classes, ...], with rows and
    positions as one dim of rows."""
    scores = input.movedim(1, -1)
    result: Tensor = loss(
        scores.reshape(-1, scores.shape[-1]), target.reshape(-1), weight, **options
    )
    return result.reshape(target.shape) if options["reduction"] == "none" else result


def assign(original: Function, x: Tensor, key: Any, value: Any) -> None:
    """Replaces x[key] = value. A mask with one value becomes a selection by the mask, because the
    selected places have no shape before values exist."""
    is_mask = isinstance(key, Tensor) and key.dtype == torch.bool
    if not is_mask or key.shape != x.shape[: key.dim()]:
        original(x, key, value)
        return
    inner = x.dim() - key.dim()
    mask = key.reshape(*key.shape, *[1] * inner)
    if not isinstance(value, Tensor):
        x.masked_fill_(mask, value)
    elif value.dim() <= inner:
        x.copy_(torch.where(mask, value.to(x.dtype), x))
    else:
        original(x, key, value)


def first_of(original: Function, x: Tensor, key: Any) -> Any:
    """Replaces x[key]. `x[:, :length]` of the full length stays an op, as `x[:length]` does: for a
    shorter batch it is one."""
    found = original(x, key)
    if not isinstance(key, tuple) or not all(isinstance(each, slice) for each in key):
        return found
    for dim, each in enumerate(key):
        if isinstance(each.stop, int) and found.shape[dim] == x.shape[dim] == each.stop > 1:
            found = torch.ops.aten.slice.Tensor(found, dim, 0, each.stop)
    return found


def variance(
    mean: Function,
    count: Function,
    input: Tensor,
    dims: list[int],
    correction: float,
    keepdim: bool,
) -> Tensor:
    """Returns the variance over dims with rows: squares over a count made by ops."""
    squares = (input - mean(input, dims, True)).square().sum(dims, keepdim)
    found: Tensor = squares / (count(input, dims, keepdim) - correction).clamp(min=0)
    return found


def cumulative_batch_norm(original: Function) -> Function:
    """Returns the forward of batch norms. If momentum is None, running statistics are the mean over
    all steps, whose number is a tensor."""

    def forward(norm: Any, input: Tensor) -> Tensor:
        counted: Tensor | None = norm.num_batches_tracked
        if norm.momentum is not None or not norm.training or counted is None:
            return original(norm, input)  # type: ignore[no-any-return]
        norm._check_input_dim(input)
        with torch.no_grad():
            counted.add_(1)
            x, dims = input.detach(), [0, *range(2, input.dim())]
            for running, now in (
                (norm.running_mean, torch.mean(x, dims)),
                (norm.running_var, torch.var(x, dims)),
            ):
                running.add_((now - running) / counted)
        return F.batch_norm(input, None, None, norm.weight, norm.bias, True, 0.0, norm.eps)

    return forward


def bucketize(
    input: Any, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """Replaces `torch.bucketize`: the number of boundaries below a value, or with `right` not above
    it."""
    values = torch.as_tensor(input).unsqueeze(-1)
    below = boundaries <= values if right else boundaries < values
    return below.sum(-1).to(torch.int32 if out_int32 else torch.int64)
