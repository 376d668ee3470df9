"""CTC and packed sequences. PyTorch takes their sizes from values of the lengths; here they come
from padded tensors with masks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import rnn

from medley.capture.errors import CaptureError
from medley.capture.modules import holders
from medley.capture.patches import Patch, patched

IMPOSSIBLE = -1e30  # log of a zero probability, with finite gradients

# --- CTC ------------------------------------------------------------------------------------------


def ctc_loss(
    mean: Callable[[Tensor], Tensor],
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Replaces `F.ctc_loss` for scores [positions, rows, classes] and targets [rows, longest],
    position after position."""
    if log_probs.dim() != 3 or targets.dim() != 2:
        raise CaptureError(
            f"ctc_loss: found scores of shape {list(log_probs.shape)} and targets of shape "
            f"{list(targets.shape)}, expected [positions, rows, classes] and [rows, longest]: "
            "targets in one row have no shape of their own"
        )
    rows = targets.shape[0]
    inputs, lengths = (_lengths(each, rows) for each in (input_lengths, target_lengths))
    chance = _chance(log_probs, targets, inputs, lengths, blank)
    lost = chance < IMPOSSIBLE / 2
    loss = torch.where(lost, 0.0 if zero_infinity else torch.inf, -chance)
    if reduction == "mean":
        return mean(loss / lengths.clamp(min=1))
    return loss.sum() if reduction == "sum" else loss


def without_blanks() -> AbstractContextManager[None]:
    """Lets `F.ctc_loss` refuse targets equal to the blank: PyTorch's gradients are wrong."""
    original = F.ctc_loss

    def checked(
        log_probs: Tensor, targets: Tensor, inputs: Any, lengths: Any, *args: Any, **kw: Any
    ) -> Tensor:
        blank = kw.get("blank", args[0] if args else 0)
        used = targets
        if targets.dim() == 2:
            ends = torch.as_tensor(lengths, device=targets.device).unsqueeze(1)
            used = targets[torch.arange(targets.shape[1], device=targets.device) < ends]
        if (used == blank).any():
            raise ValueError(f"ctc_loss: found targets that are the blank, {blank}")
        return original(log_probs, targets, inputs, lengths, *args, **kw)

    return patched([(F, "ctc_loss", checked)])


def _lengths(given: Any, rows: int) -> Tensor:
    if isinstance(given, Tensor):
        return given
    found = set(given)
    if len(given) != rows or len(found) != 1:
        raise CaptureError("ctc_loss: found lengths in a list, expected a tensor of the batch")
    return torch.full((rows,), int(found.pop()), dtype=torch.int64)


def _chance(scores: Tensor, targets: Tensor, inputs: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """Returns the log of the probability of each row's targets."""
    positions, rows, _ = scores.shape
    # blank, target, blank, ..., blank
    blanks = torch.full_like(targets, blank)
    first = torch.full((rows, 1), blank, dtype=targets.dtype)
    states = torch.cat([first, torch.stack([targets, blanks], 2).flatten(1)], 1)
    count = states.shape[1]
    emitted = scores.gather(2, states.unsqueeze(0).expand(positions, -1, -1)).unbind(0)
    # From a target to the next one, if these differ.
    skips = (states[:, 2:] != blank) & (states[:, 2:] != states[:, :-2])
    skips = F.pad(skips, (min(2, count), 0))
    closed = torch.zeros(skips.shape, dtype=scores.dtype).masked_fill(~skips, IMPOSSIBLE)
    begins = torch.arange(count) < 2
    chances = emitted[0].masked_fill(~begins, IMPOSSIBLE)
    for position in range(1, positions):
        wide = F.pad(chances, (2, 0), value=IMPOSSIBLE)
        ways = torch.stack([chances, wide[:, 1:-1], wide[:, :-2] + closed])
        following = (ways.logsumexp(0) + emitted[position]).clamp(min=IMPOSSIBLE)
        chances = torch.where((position < inputs).unsqueeze(1), following, chances)
    last = 2 * lengths.unsqueeze(1)
    ends = torch.cat([last, (last - 1).clamp(min=0)], 1)
    found = chances.gather(1, ends)
    empty = torch.cat([torch.zeros_like(lengths), (lengths == 0).to(lengths.dtype)]).view(2, rows)
    return found.masked_fill(empty.t() > 0, IMPOSSIBLE).logsumexp(1)


# --- packed sequences -----------------------------------------------------------------------------


class Packed:
    """Replaces a PackedSequence: rows first, and the length of each."""

    def __init__(self, padded: Tensor, lengths: Tensor) -> None:
        self.padded, self.lengths = padded, lengths

    def __getattr__(self, name: str) -> Any:
        raise CaptureError(
            f"a packed sequence: found .{name}, whose shape depends on the lengths: "
            "pad_packed_sequence(..., total_length=x.shape[1]) has one that does not"
        )


def pack(
    input: Tensor, lengths: Any, batch_first: bool = False, enforce_sorted: bool = True
) -> Packed:
    """Replaces `pack_padded_sequence`."""
    if not isinstance(lengths, Tensor):
        raise CaptureError("packing: found lengths in a list, expected a tensor of the batch")
    return Packed(input if batch_first else input.transpose(0, 1), lengths)


def unpack(
    sequence: Any,
    batch_first: bool = False,
    padding_value: float = 0.0,
    total_length: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Replaces `pad_packed_sequence`."""
    padded, lengths = sequence.padded, sequence.lengths
    if total_length != padded.shape[1]:
        raise CaptureError(
            f"pad_packed_sequence: found total_length={total_length}, expected the positions of "
            f"what was packed, total_length=x.shape[1] ({padded.shape[1]}): the longest row of a "
            "batch depends on the values in it"
        )
    if padding_value:
        padded = padded.masked_fill(~_inside(padded, lengths), padding_value)
    return (padded if batch_first else padded.transpose(0, 1)), lengths


def _inside(padded: Tensor, lengths: Tensor) -> Tensor:
    return (torch.arange(padded.shape[1]) < lengths.unsqueeze(1)).unsqueeze(-1)


def sequence_patches(
    dropout: Callable[[Tensor, float], Tensor],
) -> Iterator[Patch]:
    """Yields (owner, name, replacement), also for modules that imported the functions."""
    for original, replacement in (
        (rnn.pack_padded_sequence, pack),
        (rnn.pad_packed_sequence, unpack),
    ):
        name = original.__name__
        for module in holders(name):
            if vars(module)[name] is original:
                yield module, name, replacement
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        yield kind, "forward", _forward(kind.forward, dropout)


def _forward(original: Callable[..., Any], dropout: Callable[[Tensor, float], Tensor]) -> Any:
    def forward(module: Any, input: Any, hx: Any = None) -> Any:
        if not isinstance(input, Packed):
            return original(module, input, hx)
        return _layers(module, input, hx, dropout)

    return forward


def _layers(
    module: Any, input: Packed, hx: Any, dropout: Callable[[Tensor, float], Tensor]
) -> tuple[Packed, Any]:
    """Returns the results of recurrent layers for a packed sequence."""
    x, is_lstm = input.padded, module.mode == "LSTM"
    both = 2 if module.bidirectional else 1
    widths = [module.proj_size or module.hidden_size, module.hidden_size][: 2 if is_lstm else 1]
    if hx is None:
        start = [x.new_zeros(both * module.num_layers, x.shape[0], width) for width in widths]
    else:
        start = list(hx) if is_lstm else [hx]
    inside = _inside(x, input.lengths)
    steps = inside.unbind(1)
    ends: list[Sequence[Tensor]] = []
    for layer in range(module.num_layers):
        if layer and module.training and module.dropout:
            x = dropout(x, module.dropout)
        found = []
        for way in range(both):
            state = [each[both * layer + way] for each in start]
            out, state = _one_layer(module, x, state, steps, layer, way)
            found.append(out)
            ends.append(state)
        x = torch.cat(found, -1)
    last = [torch.stack(each) for each in zip(*ends, strict=True)]
    return Packed(x, input.lengths), tuple(last) if is_lstm else last[0]


def _one_layer(
    module: Any, x: Tensor, state: list[Tensor], steps: Sequence[Tensor], layer: int, way: int
) -> tuple[Tensor, list[Tensor]]:
    """Returns the outputs, 0 after the end of a row, and the states at the end."""
    suffix = f"_l{layer}" + ("_reverse" if way else "")
    weights: list[Any] = [
        getattr(module, name + suffix, None)
        for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")
    ]
    w_ih, w_hh, b_ih, b_hh, w_hr = weights
    given = F.linear(x, w_ih, b_ih).unbind(1)
    outs: list[Tensor] = []
    order = range(len(given))
    for position in reversed(order) if way else order:
        following = _cell(module.mode, given[position], state, w_hh, b_hh, w_hr)
        inside = steps[position]
        state = [torch.where(inside, a, b) for a, b in zip(following, state, strict=True)]
        outs.append(torch.where(inside, following[0], 0.0))
    return torch.stack(outs[::-1] if way else outs, 1), state


def _cell(
    mode: str, given: Tensor, state: list[Tensor], w_hh: Tensor, b_hh: Any, w_hr: Any
) -> list[Tensor]:
    """Returns the state after a position, from its input and the state before."""
    before = F.linear(state[0], w_hh, b_hh)
    if mode == "LSTM":
        i, f, g, o = (given + before).chunk(4, 1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return [h if w_hr is None else F.linear(h, w_hr), c]
    if mode == "GRU":
        (r, z, n), (r_h, z_h, n_h) = given.chunk(3, 1), before.chunk(3, 1)
        n = (n + (r + r_h).sigmoid() * n_h).tanh()
        return [n + (z + z_h).sigmoid() * (state[0] - n)]
    total = given + before
    return [total.tanh() if mode == "RNN_TANH" else total.relu()]
