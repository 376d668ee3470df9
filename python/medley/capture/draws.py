"""Plain PyTorch with the random values of Medley: only the drawing functions are replaced."""

from __future__ import annotations

import contextlib
import functools
import types
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from medley import custom_ops
from medley.capture import random_ops, recurrent
from medley.capture.errors import CaptureError
from medley.capture.modules import ModuleStack
from medley.capture.patches import Patch, Replacing, patched
from medley.capture.random_ops import dropout, dropouts

Function = Callable[..., Any]


@contextlib.contextmanager
def substitute(model: nn.Module, seed: int | None = None, step: int = 0) -> Iterator[None]:
    """Gives `model`, called in plain PyTorch inside the block, the random values of a trainer with
    `seed` in its step `step`: those of dropout and of all other random ops. If the model uses
    activation checkpointing, backward must be inside the block. Without `seed` the state is that of
    the last `medley.custom_ops.set_rng(seed, step)`."""
    modules = ModuleStack()
    rng: Any = contextlib.nullcontext()
    if seed is not None:
        rng = custom_ops.use_rng(custom_ops.make_rng(seed, step))
    with contextlib.ExitStack() as stack:
        stack.enter_context(rng)
        stack.enter_context(modules.watch(model))
        functional = _functional(modules.site)
        for patches in (
            ((F, name, each) for name, each in functional.items()),
            _noted_checkpoints(modules),
            ((kind, "forward", _unpacked(kind.forward)) for kind in (nn.LSTM, nn.GRU, nn.RNN)),
        ):
            stack.enter_context(patched(patches))
        stack.enter_context(Replacing(_by_function(functional)))
        stack.enter_context(random_ops.RandomOps(modules.site, lambda: None))
        yield


_NAMES = ("dropout", "dropout1d", "dropout2d", "dropout3d", "scaled_dot_product_attention")
_ORIGINALS = {name: getattr(F, name) for name in _NAMES}


def _functional(site: Callable[[], int]) -> dict[str, Function]:
    own = functools.partial(dropout, site)
    return {**dropouts(own), "scaled_dot_product_attention": _attention(own)}


def _by_function(functional: dict[str, Function]) -> dict[Any, Function]:
    own = functional["dropout"]
    found = {_ORIGINALS[name]: each for name, each in functional.items()} | {torch.dropout: own}
    for layers in recurrent.FUNCTIONS:
        found[layers] = recurrent.layer_by_layer(layers, own)
    return found


def _attention(own: Function) -> Function:
    """Returns `F.scaled_dot_product_attention` with our dropout mask."""

    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        if dropout_p == 0.0:
            original = _ORIGINALS["scaled_dot_product_attention"]
            return original(  # type: ignore[no-any-return]
                query, key, value, attn_mask, 0.0, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        if torch.is_autocast_enabled(query.device.type):
            dtype = torch.get_autocast_dtype(query.device.type)
            query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
            if attn_mask is not None and attn_mask.is_floating_point():
                attn_mask = attn_mask.to(dtype)
        drawn = [list(each.shape[:-2]) for each in (query, key, value)]
        if enable_gqa:
            drawn = [[*each[:-1], query.shape[-3]] for each in drawn]
        lead = torch.broadcast_shapes(*drawn)  # type: ignore[no-untyped-call]
        ones = query.new_ones([*lead, query.shape[-2], key.shape[-2]])
        kept = own(ones, dropout_p) != 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warns that a mask is given
            mixed: Tensor = torch._scaled_dot_product_attention_math(
                query,
                key,
                value,
                attn_mask,
                dropout_p if dropout_p < 1.0 else 0.0,
                is_causal,
                kept if dropout_p < 1.0 else None,
                scale=scale,
                enable_gqa=enable_gqa,
            )[0]
        return mixed if dropout_p < 1.0 else mixed * 0.0

    return attention


def _noted_checkpoints(modules: ModuleStack) -> Iterator[Patch]:
    """Yields the patches that let activation checkpointing draw the same values again."""

    def noted(function: Function) -> Function:
        before = modules.mark()

        def again(*args: Any, **kwargs: Any) -> Any:
            with modules.resumed(before):
                return function(*args, **kwargs)

        return again

    reentrant = torch.utils.checkpoint.CheckpointFunction.apply
    generator = torch.utils.checkpoint._checkpoint_without_reentrant_generator
    apply = types.SimpleNamespace(
        apply=lambda function, *args: reentrant(noted(function), *args),  # type: ignore[no-untyped-call]
    )
    yield torch.utils.checkpoint, "CheckpointFunction", apply
    yield (
        torch.utils.checkpoint,
        "_checkpoint_without_reentrant_generator",
        lambda function, *args, **kwargs: generator(noted(function), *args, **kwargs),
    )


def _unpacked(original: Function) -> Function:
    """Returns the forward of recurrent layers. It refuses dropout on packed sequences, because
    Medley draws values for padded rows."""

    def forward(module: Any, input: Any, hx: Any = None) -> Any:
        is_packed = isinstance(input, PackedSequence)
        if is_packed and module.training and module.dropout and module.num_layers > 1:
            raise CaptureError(
                "dropout between the layers of a packed sequence: its random numbers depend on "
                "the padded length, which a packed sequence does not have"
            )
        return original(module, input, hx)

    return forward
