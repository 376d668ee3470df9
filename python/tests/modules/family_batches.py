"""Forms of batches: dicts, tuples, types, sizes without rows, values that are no tensors."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from module_case import Case, Net, classes, energy, net, x
from torch import Tensor, nn


def linear() -> nn.Module:
    return nn.Linear(6, 5)


def named(m: Any, input_ids: Tensor, labels: Tensor | None = None, flag: bool = True) -> Tensor:
    h = m.e(input_ids)
    return energy(h) if labels is None else F.cross_entropy(m.a(h), labels if flag else 1 - labels)


def embedding() -> nn.Module:
    return nn.Embedding(9, 6)


def of(batch: Any, **known: Any) -> Case:
    return net(named, batch, e=embedding, a=linear, **known)


CASES: dict[str, Case] = {
    "tensor": net(lambda m, x: energy(m.a(x)), lambda: x(6), a=linear),
    "tuple": net(lambda m, x, y: F.mse_loss(m.a(x), y), lambda: (x(6), x(5)), a=linear),
    "list": net(lambda m, x, y: F.mse_loss(m.a(x), y), lambda: [x(6), x(5)], a=linear),
    "dict": of(lambda: {"input_ids": classes(9), "labels": classes(5)}),
    "dict_with_a_default": of(lambda: {"input_ids": classes(9)}),
    "dict_with_none": of(lambda: {"input_ids": classes(9), "labels": None}),
    "dict_with_a_number": of(lambda: {"input_ids": classes(9), "labels": classes(5), "flag": True}),
    "mask_of_bools": net(
        lambda m, x, k: energy(m.a(x) * k), lambda: (x(6), classes(2, 1).bool()), a=linear
    ),
    "integers_of_32_bits": net(
        lambda m, i: energy(m.a(m.e(i))), lambda: classes(9, 3).int(), e=embedding, a=linear
    ),
    "bytes": net(
        lambda m, i: energy(m.a(i / 255)), lambda: classes(256, 6).to(torch.uint8), a=linear
    ),
    "floats_of_32_bits": net(lambda m, x: energy(m.a(x.double())), lambda: x(6).float(), a=linear),
    "without_rows": net(
        lambda m, x, s: energy(m.a(x) * s), lambda: (x(6), torch.tensor(2.0)), a=linear
    ),
    "shared_by_all_rows": net(
        lambda m, x, s: energy(m.a(x) * s), lambda: (x(6), torch.linspace(0, 1, 5)), a=linear
    ),
    "one_column": net(
        lambda m, x: energy(m.a(x.unsqueeze(-1))), lambda: x(), a=lambda: nn.Linear(1, 4)
    ),
    "unused_input": net(lambda m, x, y: energy(m.a(x)), lambda: (x(6), x(3)), a=linear),
    "same_input_twice": net(lambda m, x, y: energy(m.a(x) * m.a(y)), lambda: [x(6)] * 2, a=linear),
    "input_with_a_gradient": net(
        lambda m, x: energy(m.a(x)), lambda: x(6).requires_grad_(), a=linear
    ),
    "view_of_a_tensor": net(lambda m, x: energy(m.a(x)), lambda: x(12)[:, ::2], a=linear),
    "rows_in_an_expanded_tensor": net(
        lambda m, x: energy(m.a(x)), lambda: torch.randn(6).expand(7, 6), a=linear
    ),
    "size_of_zero": net(lambda m, x, y: energy(m.a(x)) + y.sum(), lambda: (x(6), x(0)), a=linear),
    "nested_dict": net(lambda m, x: energy(m.a(x["a"])), lambda: {"x": {"a": x(6)}}, a=linear),
    "no_rows": net(lambda m, x: energy(m.a(x)), lambda: torch.randn(0, 6), a=linear),
    "complex": net(lambda m, x: energy(m.a(x.abs())), lambda: x(6) * 1j, a=linear),
    "sparse": net(lambda m, x: energy(m.a(x.to_dense())), lambda: x(6).to_sparse(), a=linear),
    "a_number": Case(lambda: (Net(lambda m, x: energy(m.a(x)), a=linear()), 3)),
    "keys_that_are_no_names": Case(
        lambda: (Net(lambda m, x: energy(m.a(x)), a=linear()), {1: x(6)})
    ),
}
