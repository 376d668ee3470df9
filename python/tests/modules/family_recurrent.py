"""Loops over positions: recurrent layers and cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from module_case import ROWS, Case, energy, net, x
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def recurrent(make: Callable[[], nn.Module], **known: Any) -> Case:
    return net(lambda m, x: energy(m.a(x)[0]), lambda: x(5, 4), a=make, **known)


def cells(m: Any, x: Tensor) -> Tensor:
    h = x.new_zeros(x.shape[0], 3)
    total = []
    for t in range(x.shape[1]):
        h = m.a(x[:, t], h)
        total.append(h)
    return energy(torch.stack(total, 1))


def lstm_cells(m: Any, x: Tensor) -> Tensor:
    h = c = x.new_zeros(x.shape[0], 3)
    for t in range(x.shape[1]):
        h, c = m.a(x[:, t], (h, c))
    return energy(h + c)


def own(m: Any, x: Tensor) -> Tensor:
    h = torch.zeros(x.shape[0], 3)
    for each in x.unbind(1):
        z = m.z(torch.cat([each, h], -1)).sigmoid()
        h = (1 - z) * h + z * m.a(torch.cat([each, h], -1)).tanh()
    return energy(h)


def positions_first(m: Any, x: Tensor) -> Tensor:
    return energy(m.a(x.transpose(0, 1))[0].transpose(0, 1))


def packed(m: Any, x: Tensor) -> Tensor:
    packed = pack_padded_sequence(x, torch.full((x.shape[0],), 3), batch_first=True)
    return energy(m.a(packed)[1][0][0])


def packed_with_lengths(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    """Packs rows of different lengths, one of which may be the padded length."""
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    out, state = m.a(packed)
    padded, ends = pad_packed_sequence(out, batch_first=True, total_length=x.shape[1])
    last = state[0] * state[1] if isinstance(state, tuple) else state
    return energy(padded) + energy(last.transpose(0, 1)) + (ends * padded.sum((1, 2))).mean()


def packed_positions_first(m: Any, x: Tensor, lengths: Tensor) -> Tensor:
    packed = pack_padded_sequence(x.transpose(0, 1), lengths, enforce_sorted=False)
    padded, _ = pad_packed_sequence(m.a(packed)[0], padding_value=-2.0, total_length=x.shape[1])
    return energy(padded.transpose(0, 1))


def lengths() -> tuple[Tensor, Tensor]:
    """Returns rows, and how much of each is there."""
    return x(5, 4), torch.randint(1, 6, (ROWS,))


def last(m: Any, x: Tensor) -> Tensor:
    _, (h, _) = m.a(x)
    return energy(m.b(h[-1]))


def learned_start(m: Any, x: Tensor) -> Tensor:
    h = m.p[0].expand(1, x.shape[0], 3).contiguous()
    return energy(m.a(x, h)[0])


def decoder(m: Any, x: Tensor) -> Tensor:
    """Attention over the encoder's states at each step of the decoder."""
    memory, h = m.a(x)
    state = h[0]
    outs = []
    for _ in range(3):
        weights = (memory @ state.unsqueeze(-1)).softmax(1)
        state = m.c((weights * memory).sum(1), state)
        outs.append(state)
    return energy(torch.stack(outs, 1))


CASES: dict[str, Case] = {
    "rnn": recurrent(lambda: nn.RNN(4, 3, batch_first=True)),
    "rnn_relu": recurrent(lambda: nn.RNN(4, 3, nonlinearity="relu", batch_first=True)),
    "lstm": recurrent(lambda: nn.LSTM(4, 3, batch_first=True)),
    "lstm_of_two": recurrent(lambda: nn.LSTM(4, 3, 2, batch_first=True)),
    "lstm_of_both_directions": recurrent(
        lambda: nn.LSTM(4, 3, batch_first=True, bidirectional=True)
    ),
    "lstm_projected": recurrent(lambda: nn.LSTM(4, 3, batch_first=True, proj_size=2)),
    "lstm_without_bias": recurrent(lambda: nn.LSTM(4, 3, bias=False, batch_first=True)),
    "lstm_last_state": net(
        last,
        lambda: x(5, 4),
        a=lambda: nn.LSTM(4, 3, batch_first=True),
        b=lambda: nn.Linear(3, 2),
    ),
    "lstm_positions_first": net(positions_first, lambda: x(5, 4), a=lambda: nn.LSTM(4, 3)),
    "lstm_packed": net(packed, lambda: x(5, 4), a=lambda: nn.LSTM(4, 3, batch_first=True)),
    "lstm_packed_with_lengths": net(
        packed_with_lengths,
        lengths,
        a=lambda: nn.LSTM(4, 3, 2, batch_first=True, bidirectional=True),
    ),
    "lstm_packed_without_bias": net(
        packed_positions_first, lengths, a=lambda: nn.LSTM(4, 3, bias=False)
    ),
    "gru_packed_with_lengths": net(
        packed_with_lengths, lengths, a=lambda: nn.GRU(4, 3, batch_first=True, bidirectional=True)
    ),
    "rnn_packed_with_lengths": net(
        packed_with_lengths, lengths, a=lambda: nn.RNN(4, 3, 2, batch_first=True)
    ),
    "rnn_relu_packed": net(
        packed_positions_first, lengths, a=lambda: nn.RNN(4, 3, nonlinearity="relu")
    ),
    "lstm_unpacked_to_the_longest": net(
        lambda m, x, n: energy(
            pad_packed_sequence(m.a(pack_padded_sequence(x, n, True, False))[0], True)[0]
        ),
        lengths,
        a=lambda: nn.LSTM(4, 3, batch_first=True),
    ),
    "gru": recurrent(lambda: nn.GRU(4, 3, batch_first=True)),
    "gru_of_both_directions": recurrent(lambda: nn.GRU(4, 3, batch_first=True, bidirectional=True)),
    "gru_from_a_learned_state": net(
        learned_start,
        lambda: x(5, 4),
        a=lambda: nn.GRU(4, 3, batch_first=True),
        p=lambda: nn.ParameterList([torch.zeros(1, 1, 3)]),
    ),
    "rnn_cell": net(cells, lambda: x(5, 4), a=lambda: nn.RNNCell(4, 3)),
    "gru_cell": net(cells, lambda: x(5, 4), a=lambda: nn.GRUCell(4, 3)),
    "lstm_cell": net(lstm_cells, lambda: x(5, 4), a=lambda: nn.LSTMCell(4, 3)),
    "own_cell": net(own, lambda: x(5, 4), a=lambda: nn.Linear(7, 3), z=lambda: nn.Linear(7, 3)),
    "decoder_with_attention": net(
        decoder,
        lambda: x(5, 4),
        a=lambda: nn.GRU(4, 3, batch_first=True),
        c=lambda: nn.GRUCell(3, 3),
    ),
}
