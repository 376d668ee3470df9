"""Values that a trace can compute although its tensors are fake: those made only from sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map_only

_LARGEST = 1 << 26  # most elements of a computed tensor
# These ops read only the sizes of their tensors.
_OF_SIZES = ("full_like", "ones_like", "zeros_like", "new_full", "new_ones", "new_zeros")


def is_known(x: Tensor, fact: Callable[[Tensor], Tensor]) -> bool:
    """Returns whether `fact`, a bool [] computed from a traced tensor, is true. Returns False
    outside of a trace, or if the values depend on the batch, the state of the model or random
    values."""
    mode = get_proxy_mode()
    wrapped = getattr(x, "elem", None)
    if mode is None or not isinstance(wrapped, Tensor):
        return False
    torch._sync(x)  # type: ignore[attr-defined,no-untyped-call]
    found = get_proxy_slot(torch._from_functional_tensor(wrapped), mode.tracer, None)
    if found is None:
        return False
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        root = mode.tracer.root  # type: ignore[union-attr]
        value = _value(found.proxy.node, root, {})
        return value is not None and bool(fact(value))


def _value(node: Node, root: Any, known: dict[Node, Tensor | None]) -> Tensor | None:
    """Computes a node of the graph, with each of its inputs once."""
    if node not in known:
        known[node] = _computed(node, root, known)
    return known[node]


def _computed(node: Node, root: Any, known: dict[Node, Tensor | None]) -> Tensor | None:
    if node.op == "get_attr":
        constant = getattr(root, str(node.target), None)
        is_real = isinstance(constant, Tensor) and not isinstance(constant, FakeTensor)
        return constant if is_real else None
    op, like = node.target, node.meta.get("val")
    if not isinstance(op, torch._ops.OpOverload) or not isinstance(like, Tensor):
        return None
    if like.numel() > _LARGEST or torch.Tag.nondeterministic_seeded in op.tags:
        return None
    of_sizes = op.overloadpacket.__name__ in _OF_SIZES
    given: dict[Node, Any] = {}
    for each in node.all_input_nodes:
        value = each.meta["val"] if of_sizes else _value(each, root, known)
        if value is None:
            return None
        given[each] = torch.empty_like(value, device="cpu") if of_sizes else value
    args, kwargs = tree_map_only(Node, given.__getitem__, (node.args, node.kwargs))
    return op(*args, **kwargs)  # type: ignore[no-any-return]
