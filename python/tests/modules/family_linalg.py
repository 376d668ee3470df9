"""Matmuls and functions of their results."""

from __future__ import annotations

import torch
from module_case import Case, net, op, x
from torch import Tensor, nn


def einsum(equation: str, *sizes: int) -> Case:
    return op(lambda h: torch.einsum(equation, h, h.sin()), *sizes)


def by_parameter(equation: str, inputs: tuple[int, ...], *sizes: int) -> Case:
    """Returns the case of an einsum of rows and a parameter."""
    return net(
        lambda m, x: torch.einsum(equation, x, m.p[0]).pow(2).mean(),
        lambda: x(*inputs),
        p=lambda: nn.ParameterList([nn.Parameter(torch.randn(sizes))]),
    )


def positive(h: Tensor) -> Tensor:
    return h @ h.mT + 3 * torch.eye(h.shape[-2])


CASES: dict[str, Case] = {
    "matmul": op(lambda h: h @ h.mT, 3, 4),
    "matmul_of_four_dims": op(lambda h: h @ h.mT, 2, 3, 4),
    "matrix_by_vector": op(lambda h: h @ torch.linspace(0, 1, 4), 3, 4),
    "bmm": op(lambda h: torch.bmm(h, h.mT), 3, 4),
    "baddbmm": op(lambda h: torch.baddbmm(h[:, :, :3], h, h.mT, beta=0.5, alpha=2), 3, 4),
    "outer_product_of_rows": op(lambda h: h.unsqueeze(2) * h.unsqueeze(1), 4),
    "einsum_inner": einsum("bi,bi->b", 4),
    "einsum_outer": einsum("bi,bj->bij", 4),
    "einsum_attention": einsum("bqd,bkd->bqk", 3, 4),
    "einsum_heads": einsum("bqhd,bkhd->bhqk", 3, 2, 4),
    "einsum_trace": op(lambda h: torch.einsum("bii->b", h), 4, 4),
    "einsum_of_three": op(lambda h: torch.einsum("bi,bj,bij->b", h[:, 0], h[:, 1], h), 4, 4),
    "einsum_linear": by_parameter("bi,oi->bo", (4,), 5, 4),
    "einsum_heads_of_a_parameter": by_parameter("bti,hio->bhto", (3, 4), 2, 4, 5),
    "einsum_bilinear": by_parameter("bi,iok->bok", (4,), 4, 3, 2),
    "chain_of_matrices": op(lambda h: torch.linalg.multi_dot([h[0].t(), h[0], h[0].t()]), 3, 4),
    "matrix_power": op(lambda h: torch.linalg.matrix_power(0.3 * h, 3), 4, 4),
    "kron_of_a_parameter": net(
        lambda m, x: (x @ torch.kron(m.a.weight, m.a.weight)).pow(2).mean(),
        lambda: x(4),
        a=lambda: nn.Linear(2, 2),
    ),
    "trace_of_a_product": op(lambda h: (h @ h.mT).diagonal(dim1=1, dim2=2).sum(-1), 3, 4),
    "triangular_mask": op(lambda h: (h @ h.mT).tril(), 3, 4),
    "low_rank": net(
        lambda m, x: m.b(m.a(x)).pow(2).mean(),
        lambda: x(6),
        a=lambda: nn.Linear(6, 2, bias=False),
        b=lambda: nn.Linear(2, 6, bias=False),
    ),
    "gram_penalty": op(lambda h: (h @ h.mT - torch.eye(3)).abs(), 3, 4),
    "solve": op(lambda h: torch.linalg.solve(positive(h), h), 3, 4),
    "solve_of_a_transposed": op(
        lambda h: torch.linalg.solve((positive(h) + h[..., :3].tril()).mT, h), 3, 4
    ),
    "determinant_of_a_transposed": op(
        lambda h: torch.linalg.det(0.2 * (positive(h) + h[..., :3].tril()).mT), 3, 4
    ),
    "determinant_of_a_copy": op(
        lambda h: torch.linalg.det(0.2 * (positive(h) + h[..., :3].tril()).mT.contiguous()), 3, 4
    ),
    "inverse": op(lambda h: torch.linalg.inv(positive(h)), 3, 4),
    "determinant": op(lambda h: torch.linalg.det(positive(h)), 3, 4),
    "logdet": op(lambda h: torch.logdet(positive(h)), 3, 4),
    "cholesky": op(lambda h: torch.linalg.cholesky(positive(h)), 3, 4),
    "qr": op(lambda h: torch.linalg.qr(h.mT).R.abs(), 3, 4),
    "svd_values": op(torch.linalg.svdvals, 3, 4),
    "eigenvalues": op(lambda h: torch.linalg.eigvalsh(positive(h)), 3, 4),
    "matrix_exponential": op(lambda h: torch.matrix_exp(0.1 * h), 4, 4),
    "triangular_solve": op(
        lambda h: torch.linalg.solve_triangular(positive(h).tril(), h, upper=False), 3, 4
    ),
    "inverse_of_a_parameter": net(
        lambda m, x: (x @ torch.linalg.inv(m.a.weight + 3 * torch.eye(4))).pow(2).mean(),
        lambda: x(4),
        a=lambda: nn.Linear(4, 4),
    ),
    "power_iteration": op(
        lambda h: (positive(h) @ (positive(h) @ torch.ones(3, 1))).squeeze(-1), 3, 4
    ),
    "fft": op(lambda h: torch.fft.rfft(h).abs(), 6),
    "cosine_transform": op(
        lambda h: h @ torch.cos(torch.outer(torch.arange(6.0) + 0.5, torch.arange(6.0))), 6
    ),
}
