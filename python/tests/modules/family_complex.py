"""Complex numbers inside: rotary embeddings, Fourier transforms, arithmetic."""

from __future__ import annotations

from typing import Any

import torch
from module_case import Case, energy, net, op, x
from torch import Tensor, nn

ANGLES = torch.outer(torch.arange(4.0), torch.arange(3.0)).double()
TURNS = torch.polar(torch.ones_like(ANGLES), ANGLES)


def pairs(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())


def of_two(function: Any) -> Case:
    """Returns the case of a function of complex activations and complex weights [3]."""

    def forward(m: Any, x: Tensor) -> Tensor:
        return energy(torch.view_as_real(function(pairs(m.a(x)), pairs(m.b.weight[0]))))

    return net(forward, lambda: x(6), a=lambda: nn.Linear(6, 6), b=lambda: nn.Linear(6, 1))


def rotary(m: Any, x: Tensor) -> Tensor:
    """Rotary embedding as in Llama's own code: the rotations are made outside of forward."""
    return energy(torch.view_as_real(pairs(m.a(x)) * TURNS).flatten(-2))


def fourier_mixer(m: Any, x: Tensor) -> Tensor:
    """FNet: attention replaced by the real part of a transform over positions and features."""
    return energy(x + m.a(torch.fft.fft2(m.b(x)).real))


def spectral_convolution(m: Any, x: Tensor) -> Tensor:
    """A Fourier neural operator: the lowest frequencies times weights, the others zero."""
    h = torch.fft.rfft(m.a(x))
    kept = torch.zeros_like(h)
    kept[..., :3] = h[..., :3] * pairs(m.b.weight[0])
    return energy(torch.fft.irfft(kept, n=x.shape[-1]))


def whole(function: Any) -> Any:
    """Returns a function of activations that sees a complex result by its parts."""
    return lambda h: torch.view_as_real(function(h)).flatten(-2)


CASES: dict[str, Case] = {
    "product": of_two(lambda z, w: z * w),
    "quotient": of_two(lambda z, w: z / (w + 2)),
    "sum": of_two(lambda z, w: z + 2 * w - 1j),
    "conjugate": of_two(lambda z, w: z.conj() * w + 1),
    "real_factor": of_two(lambda z, w: z * w.real),
    "exponential": of_two(lambda z, w: (z * w).exp()),
    "square": of_two(lambda z, w: z**2 + w**2),
    "matrix_product": of_two(lambda z, w: z @ torch.stack([w, w.conj(), 1j * w])),
    "absolute_value": op(lambda h: pairs(h).abs(), 6),
    "complex": op(lambda h: torch.complex(h, h.flip(-1)).abs(), 6),
    "polar": op(whole(lambda h: torch.polar(h, h * 2)), 6),
    "cat_and_split": of_two(lambda z, w: sum(torch.cat([z, z * w], -1).split(3, -1))),
    "chosen": of_two(lambda z, w: torch.where(z.real > 0, z, z * w)),
    "rotary": net(rotary, lambda: x(4, 6), a=lambda: nn.Linear(6, 6)),
    "fourier_mixer": net(
        fourier_mixer, lambda: x(4, 6), a=lambda: nn.Linear(6, 6), b=lambda: nn.Linear(6, 6)
    ),
    "spectral_convolution": net(
        spectral_convolution, lambda: x(2, 8), a=lambda: nn.Linear(8, 8), b=lambda: nn.Linear(6, 1)
    ),
    "fft": op(whole(torch.fft.fft), 6),
    "ifft": op(whole(lambda h: torch.fft.ifft(pairs(h), norm="ortho")), 6),
    "rfft": op(whole(torch.fft.rfft), 7),
    "irfft_of_odd": op(lambda h: torch.fft.irfft(pairs(h), n=5), 6),
    "rfft2_and_back": op(lambda h: torch.fft.irfft2(torch.fft.rfft2(h).abs() + 0j), 4, 6),
    "stft": op(
        lambda h: torch.stft(h, 4, 2, window=torch.hann_window(4), return_complex=True).abs(), 12
    ),
    "logarithm": op(whole(lambda h: pairs(h).log()), 6),
    "of_the_rows": op(whole(lambda h: torch.fft.fft(h, dim=0)), 6),
}
