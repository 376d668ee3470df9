"""What is replaced inside the transformers package while one of its models is captured.

- looks into the values of masks, which fake tensors have not, are skipped;
- routed experts become one op, `medley::experts`, whichever implementation the config names;
- the load balancing loss counts its rows by ops instead of by a number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from medley import custom_ops
from medley.capture.errors import CaptureError

# Activations that the op knows, by the name of their class.
_ACTIVATIONS = {
    "SiLU": "silu",
    "SiLUActivation": "silu",
    "GELUActivation": "gelu",
    "GELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh",
    "ReLU": "relu",
}


def transformers_patches() -> Iterator[tuple[Any, str, Any]]:
    """Yields (owner, name, replacement) for what of transformers has been imported."""
    masking = sys.modules.get("transformers.masking_utils")
    if hasattr(masking, "is_tracing"):
        yield masking, "is_tracing", lambda *_: True
    if hasattr(masking, "find_packed_sequence_indices"):
        yield masking, "find_packed_sequence_indices", lambda *_, **__: None


def capture_patches() -> Iterator[tuple[Any, str, Any]]:
    """Yields the replacements that only a capture needs; an eager run takes the originals."""
    moe = sys.modules.get("transformers.integrations.moe")
    if moe is not None and hasattr(moe, "ExpertsInterface"):
        yield moe.ExpertsInterface, "get_interface", lambda *_: experts_forward
    for name, module in list(sys.modules.items()):
        if name.startswith("transformers.models.") and ".modeling_" in name:
            loss = vars(module).get("load_balancing_loss_func")
            if loss is not None:
                yield module, "load_balancing_loss_func", _with_counted_rows(loss)


def experts_forward(module: Any, x: Tensor, indices: Tensor, weights: Tensor) -> Tensor:
    """The forward of transformers' experts: x [tokens, width], indices and weights [tokens, k]."""
    act = type(getattr(module, "act_fn", None))
    activation = _ACTIVATIONS.get(act.__name__)
    own_gate = getattr(type(module)._apply_gate, "__name__", "") != "_default_apply_gate"
    for unusual, what in (
        (module.has_bias, "biases"),
        (module.has_gate and own_gate, "a gate of their own"),
        (module.has_gate and not module.is_concatenated, "interleaved gates"),
        (module.has_post_expert_norm, "a norm behind each expert"),
        (activation is None, f"the activation {act.__name__}"),
    ):
        if unusual:
            raise CaptureError(
                f"{type(module).__name__}: experts with {what} are not supported; expected two "
                f"weights and one of {', '.join(custom_ops.ACTIVATIONS)}"
            )
    first = module.gate_up_proj if module.has_gate else module.up_proj
    second = module.down_proj
    if module.is_transposed:
        first, second = first.transpose(1, 2), second.transpose(1, 2)
    assert activation is not None
    return custom_ops.experts(x, indices, weights, first, second, activation)


def _with_counted_rows(loss: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the load balancing loss with a mask of ones where it got none: the loss then divides
    by the sum of the mask, not by a number of rows that holds only for the captured batch."""

    def counted(
        gate_logits: Any, num_experts: Any = None, top_k: int = 2, attention_mask: Any = None
    ) -> Any:
        if attention_mask is None and isinstance(gate_logits, tuple):
            attention_mask = torch.ones_like(gate_logits[0].detach()[:, 0], dtype=torch.float32)
        return loss(gate_logits, num_experts, top_k, attention_mask)

    return counted
