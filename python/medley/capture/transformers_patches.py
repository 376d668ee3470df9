"""Replacements inside transformers while one of its models is captured.

- Reads of mask and token values, which fake tensors lack, are skipped.
- Texts packed into one row get a mask, unless positions from sizes alone make one text.
- Routed experts become one op, `medley::experts`, for every implementation in the config. For
  unsupported forms, all experts compute all tokens.
- Experts of Switch Transformers, which make lists of their tokens, all compute all tokens.
- The load balancing loss counts its rows by ops instead of by a number.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from medley import custom_ops
from medley.capture.known_values import is_known
from medley.capture.modules import holders
from medley.capture.patches import Patch

# Warns if the first and last tokens are padding.
_PADDING_WARNING = "warn_if_padding_and_no_attention_mask"
# Find the texts packed into one row, and separate them in the mask.
_TEXTS = "find_packed_sequence_indices"
_KEEP_APART = "packed_sequence_compatibility_function"
_SWITCH_EXPERTS = "SwitchTransformersExperts"
_BALANCING_LOSS = "load_balancing_loss_func"
# Activations of the op, by the name of their class.
_ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "ReLU": "relu",
}


def transformers_patches() -> Iterator[Patch]:
    """Yields (owner, name, replacement) for the imported parts of transformers."""
    masking = sys.modules.get("transformers.masking_utils")
    if hasattr(masking, "is_tracing"):
        yield masking, "is_tracing", lambda *_: True
    modeling = sys.modules.get("transformers.modeling_utils")
    if modeling is not None and hasattr(modeling, "PreTrainedModel"):
        yield modeling.PreTrainedModel, _PADDING_WARNING, lambda *_, **__: None


def capture_patches() -> Iterator[Patch]:
    """Yields the replacements that only a capture needs. An eager run uses the originals."""
    masking = sys.modules.get("transformers.masking_utils")
    if hasattr(masking, _TEXTS):
        yield masking, _TEXTS, _texts_of_rows(getattr(masking, _TEXTS))
        yield masking, _KEEP_APART, _kept_apart(getattr(masking, _KEEP_APART))
    moe = sys.modules.get("transformers.integrations.moe")
    if moe is not None and hasattr(moe, "ExpertsInterface"):
        yield moe.ExpertsInterface, "get_interface", lambda *_: experts_forward
    switch = sys.modules.get("transformers.models.switch_transformers.modeling_switch_transformers")
    if hasattr(switch, _SWITCH_EXPERTS):
        yield getattr(switch, _SWITCH_EXPERTS), "forward", _switch_experts
    for module in holders(_BALANCING_LOSS):
        if re.match(r"transformers\.models\..*\.modeling_", module.__name__):
            yield module, _BALANCING_LOSS, _with_counted_rows(vars(module)[_BALANCING_LOSS])


def _texts_of_rows(find: Callable[[Tensor], Tensor | None]) -> Callable[[Tensor], Tensor | None]:
    """Returns a function from positions [rows, tokens] to the text of each token. The original
    returns None if each row is one text, so that the mask is plain. A trace knows this for
    positions that depend only on sizes."""

    def texts(position_ids: Tensor) -> Tensor | None:
        is_one = is_known(position_ids, lambda positions: (positions.diff() == 1).all())
        return None if is_one else find(position_ids)

    return texts


def _kept_apart(keep: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `keep` with the positions of tokens [rows, tokens] instead of their indices. A row of
    one text keeps indices, as in a batch without packed rows: a chunk starts with the row,
    independent of the first position."""

    def kept(mask: Any, position_ids: Tensor, texts: Tensor) -> Any:
        indices = torch.arange(position_ids.shape[1], device=position_ids.device)
        return keep(mask, torch.where(texts[:, -1:] == 0, indices, position_ids), texts)

    return kept


def experts_forward(module: Any, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """Replaces the forward of transformers' experts: x [tokens, width], indices and weights
    [tokens, k]."""
    first = module.gate_up_proj if module.has_gate else module.up_proj
    second = module.down_proj
    if module.is_transposed:
        first, second = first.transpose(1, 2), second.transpose(1, 2)
    if _unusual(module):
        return _by_all_experts(module, x, indices, weights, first, second)
    activation = _ACTIVATIONS[type(module.act_fn).__name__]
    return custom_ops.experts(x, indices, weights, first, second, activation)


def unusual_experts(model: nn.Module) -> list[str]:
    """Returns a sentence for each class of experts in a model that compute more than necessary."""
    found = {}
    for module in model.modules():
        name = type(module).__name__
        unusual = _unusual(module) if hasattr(module, "has_post_expert_norm") else ""
        if name == _SWITCH_EXPERTS:
            unusual = "modules of their own"
        if unusual:
            found[name] = (
                f"{name}: experts with {unusual}: all of them compute every token, not only those "
                "that the router chooses"
            )
    return list(found.values())


def _unusual(module: Any) -> str:
    """Returns the feature of these experts that `medley::experts` does not support, or ""."""
    act = type(getattr(module, "act_fn", None))
    own_gate = getattr(type(module)._apply_gate, "__name__", "") != "_default_apply_gate"
    for unusual, what in (
        (module.has_bias, "biases"),
        (module.has_gate and own_gate, "a gate of their own"),
        (module.has_gate and not module.is_concatenated, "interleaved gates"),
        (module.has_post_expert_norm, "a norm behind each expert"),
        (act.__name__ not in _ACTIVATIONS, f"the activation {act.__name__}"),
    ):
        if unusual:
            return what
    return ""


def _by_all_experts(
    module: Any, x: Tensor, indices: Tensor, weights: Tensor, first: Tensor, second: Tensor
) -> Tensor:
    """Computes all tokens in every expert, first [e, hidden, width], second [e, width, hidden].
    Experts that the router has not chosen have weight zero."""
    experts = first.shape[0]
    h = x.expand(experts, -1, -1) @ first.transpose(1, 2)
    if module.has_bias:
        bias = module.gate_up_proj_bias if module.has_gate else module.up_proj_bias
        h = h + bias.unsqueeze(1)
    h = module._apply_gate(h) if module.has_gate else module.act_fn(h)
    y = h @ second.transpose(1, 2)
    if module.has_bias:
        y = y + module.down_proj_bias.unsqueeze(1)
    if module.has_post_expert_norm:
        y = module.post_expert_norm(y)
    is_chosen = indices.unsqueeze(-1) == torch.arange(experts, device=indices.device)
    share = (is_chosen * weights.unsqueeze(-1)).sum(1)  # [tokens, e]
    chosen: Tensor = (y.transpose(0, 1) * share.unsqueeze(-1)).sum(1).to(x.dtype)
    return chosen


def _switch_experts(self: Any, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """Replaces the forward of Switch Transformers' experts: x [tokens, width], chosen [tokens, 1,
    e] of zeros and ones, weights [tokens, 1]."""
    shares = (chosen * weights.unsqueeze(-1)).sum(1)  # [tokens, e]
    found = torch.zeros_like(x)
    for expert in range(self.num_experts):
        y = self[f"expert_{expert}"](x) * shares[:, expert : expert + 1]
        found = found + y.to(x.dtype)
    return found


def _with_counted_rows(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the load balancing loss with a mask of ones by default. The loss then divides by the
    sum of the mask, not by the number of rows of the captured batch."""

    def counted(
        gate_logits: Any, num_experts: Any = None, top_k: int = 2, attention_mask: Any = None
    ) -> Any:
        if attention_mask is None and isinstance(gate_logits, tuple):
            attention_mask = torch.ones_like(gate_logits[0].detach()[:, 0], dtype=torch.float32)
        return loss(gate_logits, num_experts, top_k, attention_mask)

    return counted
