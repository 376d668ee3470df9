"""Recurrent layers of `torch.nn` with dropout between them, one layer at a time. PyTorch's
decomposition of several layers never drops anything between them: its condition for dropout is
always false (`_rnn_helper` in `torch/_decomp/decompositions.py`, 2.13)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

# Called by `nn.LSTM`, `nn.GRU` and `nn.RNN`.
FUNCTIONS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def layer_by_layer(
    original: Callable[..., Any], dropout: Callable[[Tensor, float], Tensor]
) -> Callable[..., Any]:
    """Returns the replacement of one of FUNCTIONS."""

    def layers(input: Tensor, *args: Any) -> Any:
        if isinstance(args[0], Tensor) and isinstance(args[1], (Tensor, tuple)):
            return original(input, *args)  # a packed sequence
        hidden, weights, bias, count, p, train, both, batch_first = args
        if not train or p == 0.0 or count == 1:
            return original(input, *args)
        last = []
        for layer in range(count):
            if layer > 0:
                input = dropout(input, p)
            input, *ends = original(
                input,
                _of_layer(hidden, layer, count),
                weights[len(weights) // count * layer : len(weights) // count * (layer + 1)],
                bias,
                1,
                0.0,
                train,
                both,
                batch_first,
            )
            last.append(ends)
        return (input, *(torch.cat(each) for each in zip(*last, strict=True)))

    return layers


def _of_layer(hidden: Tensor | Sequence[Tensor], layer: int, count: int) -> Any:
    """Returns the initial values of a layer, of both directions if there are two."""
    if isinstance(hidden, Tensor):
        each = hidden.shape[0] // count
        return hidden[each * layer : each * (layer + 1)]
    return tuple(_of_layer(part, layer, count) for part in hidden)
