"""Rearrangement of elements: views, cuts, joins and indices."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from module_case import Case, classes, net, op, x
from torch import Tensor, nn


def assigned(h: Tensor) -> Tensor:
    out = torch.zeros_like(h)
    out[:, 1:3] = h[:, :2] * 2
    out[:, 4] += h[:, 5]
    return out


def windows(h: Tensor) -> Tensor:
    """Shifted windows: roll, cut into windows, put together."""
    h = h.roll((1, 1), (1, 2)).reshape(h.shape[0], 2, 2, 2, 2, 3)
    return h.transpose(2, 3).reshape(h.shape[0], 4, 12).softmax(-1)


CASES: dict[str, Case] = {
    "view": op(lambda h: h.view(-1, 2, 3).sum(-1), 6),
    "view_of_the_size": op(lambda h: h.view(h.size(0), 2, 3).sum(-1), 6),
    "reshape": op(lambda h: h.reshape(h.shape[0], -1), 2, 3, 4),
    "flatten": op(lambda h: h.flatten(1), 2, 3, 4),
    "flatten_rows": op(lambda h: h.flatten(0, 1), 3, 4),
    "unflatten": op(lambda h: h.unflatten(1, (2, 3)).sum(1), 6),
    "rows_of_pairs": op(lambda h: h.reshape(-1, 3).softmax(-1), 6),
    "permute": op(lambda h: h.permute(0, 3, 1, 2), 2, 3, 4),
    "transpose": op(lambda h: h.transpose(1, 2).exp(), 3, 4),
    "movedim": op(lambda h: h.movedim(1, -1), 2, 3, 4),
    "matrix_transpose": op(lambda h: h.mT @ h, 3, 4),
    "squeeze_and_unsqueeze": op(lambda h: h.unsqueeze(1).squeeze(1).unsqueeze(-1), 6),
    "expand": op(lambda h: h.unsqueeze(1).expand(-1, 3, -1).sin(), 6),
    "repeat": op(lambda h: h.repeat(1, 3), 6),
    "tile": op(lambda h: h.tile(2), 6),
    "repeat_interleave": op(lambda h: h.repeat_interleave(2, 1), 6),
    "cat": op(lambda h: torch.cat([h, h.sin(), h[:, :2]], 1), 6),
    "cat_of_rows": op(lambda h: torch.cat([h, h.sin()]), 6),
    "stack": op(lambda h: torch.stack([h, h.cos()], 1), 6),
    "split": op(lambda h: h.split([2, 3, 1], 1)[1].exp(), 6),
    "chunk": op(lambda h: torch.cat([c * i for i, c in enumerate(h.chunk(3, 1), 1)], 1), 6),
    "tensor_split": op(lambda h: h.tensor_split(4, 1)[0], 6),
    "unbind": op(lambda h: h.unbind(1)[0] * h.unbind(1)[2], 3, 4),
    "narrow": op(lambda h: h.narrow(1, 1, 3), 6),
    "select": op(lambda h: h[:, -1], 3, 4),
    "slices": op(lambda h: h[:, 1:-1, ::2], 4, 6),
    "slice_of_a_step": op(lambda h: h[:, ::3], 6),
    "ellipsis": op(lambda h: h[..., None, 1:4], 3, 6),
    "index_by_list": op(lambda h: h[:, [0, 3, 3, 1]], 6),
    "index_by_two_lists": op(lambda h: h[:, [0, 2], [1, 3]], 3, 4),
    "index_select": op(lambda h: h.index_select(1, torch.tensor([0, 5, 5])), 6),
    "index_by_the_batch": net(
        lambda m, x, i: m.a(x)[torch.arange(x.shape[0]), i].pow(2).mean(),
        lambda: (x(6), classes(6)),
        a=lambda: nn.Linear(6, 6),
    ),
    "gather": net(
        lambda m, x, i: m.a(x).gather(1, i).pow(2).mean(),
        lambda: (x(6), classes(6, 3)),
        a=lambda: nn.Linear(6, 6),
    ),
    "take_along_dim": net(
        lambda m, x, i: m.a(x).take_along_dim(i, 1).pow(2).mean(),
        lambda: (x(6), classes(6, 3)),
        a=lambda: nn.Linear(6, 6),
    ),
    "scatter": net(
        lambda m, x, i: torch.zeros(x.shape[0], 9).scatter(1, i, m.a(x)[:, :1]).cos().mean(),
        lambda: (x(6), classes(9, 1)),
        a=lambda: nn.Linear(6, 6),
    ),
    "scatter_add": net(
        lambda m, x, i: torch.zeros(x.shape[0], 4).scatter_add(1, i, m.a(x)).pow(2).mean(),
        lambda: (x(6), classes(4, 6)),
        a=lambda: nn.Linear(6, 6),
    ),
    "index_add": op(
        lambda h: torch.zeros_like(h).index_add(1, torch.tensor([0, 1, 1, 2, 2, 2]), h), 6
    ),
    "assigned_in_place": op(assigned, 6),
    "masked_scatter_of_where": op(lambda h: torch.where(h > 0, h.flip(-1), h), 6),
    "flip": op(lambda h: h.flip(1) * h, 6),
    "roll": op(lambda h: h.roll(2, 1) * h, 6),
    "rot90": op(lambda h: torch.rot90(h, 1, (1, 2)), 3, 4),
    "shifted_windows": op(windows, 4, 4, 3),
    "pad_by_a_number": op(lambda h: F.pad(h, (1, 2), value=0.5), 6),
    "pad_reflected": op(lambda h: F.pad(h, (2, 1), mode="reflect"), 3, 6),
    "pad_replicated": op(lambda h: F.pad(h, (2, 1), mode="replicate"), 3, 6),
    "pad_around": op(lambda h: F.pad(h, (2, 1), mode="circular"), 3, 6),
    "pad_cropped": op(lambda h: F.pad(h, (-1, -2)), 6),
    "sliding_windows": op(lambda h: h.unfold(1, 3, 1).mean(-1), 6),
    "unfold_of_images": op(lambda h: F.unfold(h, 2), 3, 4, 4),
    "fold_of_images": op(lambda h: F.fold(F.unfold(h, 2), (4, 4), 2), 3, 4, 4),
    "patches": op(lambda h: h.reshape(-1, 3, 2, 2, 2, 2).permute(0, 2, 4, 1, 3, 5), 3, 4, 4),
    "pixel_shuffle": op(lambda h: F.pixel_shuffle(h, 2), 4, 3, 3),
    "pixel_unshuffle": op(lambda h: F.pixel_unshuffle(h, 2), 2, 4, 4),
    "channel_shuffle": op(lambda h: F.channel_shuffle(h, 2), 4, 3, 3),
    "diagonal": op(lambda h: h.diagonal(dim1=1, dim2=2), 4, 4),
    "diag_embed": op(lambda h: h.diag_embed() @ h.unsqueeze(-1), 6),
    "tril": op(torch.tril, 4, 4),
    "triu": op(lambda h: h.triu(1), 4, 4),
    "one_hot_of_the_batch": net(
        lambda m, x, i: (m.a(x) * F.one_hot(i, 6)).pow(2).mean(),
        lambda: (x(6), classes(6)),
        a=lambda: nn.Linear(6, 6),
    ),
    "positions": op(lambda h: h * torch.arange(h.shape[1]), 6),
    "grid": op(lambda h: h + torch.stack(torch.meshgrid(*[torch.arange(3.0)] * 2)).sum(0), 3, 3),
    "zeros_of_the_shape": op(lambda h: h + torch.zeros(h.shape) + torch.ones_like(h), 6),
    "new_full": op(lambda h: h * h.new_full((h.shape[0], 1), 1.5), 6),
    "linspace": op(lambda h: h * torch.linspace(0, 1, 6), 6),
    "numbers_of_the_rows": op(lambda h: h * torch.arange(h.shape[0])[:, None], 6),
}
