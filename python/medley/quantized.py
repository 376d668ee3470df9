"""4-bit weights in the format of bitsandbytes, as tensors with names. Linear4bit of bitsandbytes
has one parameter, the packed values. An object stores the largest value of each block and the
sixteen values of the code. Here those two become tensors of the model, `weight_absmax` and
`weight_code` under the path of the layer. bitsandbytes is not imported."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

BITS = 4
_BLOCK = 64  # values per block, the default of bitsandbytes
_ABSMAX, _CODE = "weight_absmax", "weight_code"
_KEPT = "_medley_absmax"  # dequantised absmax, computed once


def quantized_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Returns the tensors of packed weights by name: absmax f32 [blocks], code f32 [16]."""
    found: dict[str, Tensor] = {}
    for path, module in _layers(model):
        for name, tensor in _tensors(module.quant_state).items():
            found[f"{path}.{name}" if path else name] = tensor
    return found


@contextlib.contextmanager
def as_buffers(model: nn.Module) -> Iterator[None]:
    """Makes these tensors buffers of their layers inside the block."""
    added: list[tuple[dict[str, Any], str]] = []
    try:
        for _, module in _layers(model):
            for name, tensor in _tensors(module.quant_state).items():
                module._buffers[name] = tensor
                added.append((module._buffers, name))
        yield
    finally:
        for buffers, name in added:
            buffers.pop(name, None)


def with_4bit(model: nn.Module) -> nn.Module:
    """Returns a model of transformers with 4-bit weights (nf4) in all linear layers except the
    head. Equals `BitsAndBytesConfig(load_in_4bit=True)`. On the meta device only sizes are
    computed. Raises ValueError if bitsandbytes is missing, or if a weight is not a whole number of
    blocks."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise ValueError("--bits 4: needs a package: pip install bitsandbytes")
    head = getattr(model, "get_output_embeddings", lambda: None)()
    for path, module in list(model.named_modules()):
        if type(module) is nn.Linear and module is not head:
            model.set_submodule(path, _packed(path, module))
    model.is_loaded_in_4bit = True  # type: ignore[assignment]  # peft looks at it
    return model


@dataclasses.dataclass(eq=False)
class _Sizes:
    """Replaces the QuantState of bitsandbytes in a layer without values."""

    shape: torch.Size
    dtype: torch.dtype
    blocksize: int = _BLOCK
    nested: bool = False


def _packed(path: str, linear: nn.Linear) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Params4bit

    weight = linear.weight
    if weight.numel() % _BLOCK:
        raise ValueError(
            f"--bits 4: {path}: a weight of {list(weight.shape)}, expected a multiple of {_BLOCK} "
            "numbers"
        )
    made: Any = Linear4bit(1, 1, linear.bias is not None, quant_type="nf4", device="meta")
    made.in_features, made.out_features = linear.in_features, linear.out_features
    made.bias = linear.bias
    if not weight.is_meta:
        made.weight = Params4bit(weight.detach(), quant_type="nf4", module=made)
        packed: nn.Module = made.to(weight.device)
        return packed
    blocks = weight.numel() // _BLOCK
    made.weight = Params4bit(
        torch.empty(weight.numel() // 2, 1, dtype=torch.uint8, device="meta"),
        quant_type="nf4",
        module=made,
        bnb_quantized=True,
    )
    made.quant_state = _Sizes(weight.shape, weight.dtype)
    for name, size in ((_ABSMAX, blocks), (_CODE, 1 << BITS)):
        made.register_buffer(name, torch.empty(size, device="meta"), persistent=False)
    whole: nn.Module = made
    return whole


def _layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yields paths and layers whose tensors are not yet buffers."""
    modules = sys.modules.get("bitsandbytes.nn.modules")
    kind = getattr(modules, "Linear4bit", None)
    if kind is None:
        return
    for path, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, kind) or module.quant_state is None:
            continue
        if _CODE not in module._buffers:
            yield path, module


def _tensors(state: Any) -> dict[str, Tensor]:
    return {_ABSMAX: _absmax(state), _CODE: state.code.float()}


def _absmax(state: Any) -> Tensor:
    if not state.nested:
        return state.absmax.float()  # type: ignore[no-any-return]
    kept: Tensor | None = vars(state).get(_KEPT)
    if kept is None:
        from bitsandbytes import functional

        with torch.no_grad():
            numbers = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
        kept = numbers.float()
        setattr(state, _KEPT, kept)
    return kept
