"""Our own ops, by whichever side they are implemented: kernels, gradients, fake kernels."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from reference_ops import philox
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from medley import custom_ops

OPS = torch.ops.medley


def hexadecimal(words: tuple[Tensor, ...]) -> list[str]:
    return [f"{int(word):08x}" for word in words]


# Known answers of the authors' Random123 library (kat_vectors, philox 4x32 10).
@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ([0] * 4, [0] * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
)
def test_philox_gives_the_published_numbers(
    counter: list[int], key: list[int], answer: str
) -> None:
    def signed(low: int, high: int) -> int:
        value = low | high << 32
        return value - 2**64 if value >= 2**63 else value

    rng = custom_ops.make_rng(signed(*key), signed(*counter[2:]))
    block = torch.tensor(signed(*counter[:2]))
    assert hexadecimal(philox(rng, 0, block)) == answer.split()
    site = 0x12345678  # the same key, reached through the site
    rng = custom_ops.make_rng(signed(key[0] ^ site, key[1]), signed(*counter[2:]))
    assert hexadecimal(philox(rng, site, block)) == answer.split()


def test_dropout_keeps_by_the_word_of_each_element() -> None:
    rng = custom_ops.make_rng(2**40 + 3, 9)
    out = OPS.dropout(torch.ones(3, 7), rng, 0.4, 77, [], [], []).flatten()
    for place in range(21):
        word = philox(rng, 77, torch.tensor(place // 4))[place % 4]
        assert float(out[place]) == pytest.approx(1 / 0.6 if int(word) >= 0.4 * 2**32 else 0)


def test_dropout_of_shards_is_dropout_of_the_whole() -> None:
    rng = custom_ops.make_rng(1, 2)
    x = torch.randn(5, 4, 6)
    whole = OPS.dropout(x, rng, 0.5, 3, [], [], [])
    for rows in (slice(0, 2), slice(2, 2), slice(2, 5)):
        for columns in (slice(0, 1), slice(1, 6)):
            part = x[rows, :, columns]
            origin = [rows.start, 0, columns.start]
            found = OPS.dropout(part, rng, 0.5, 3, list(part.shape), origin, [5, 4, 6])
            assert torch.equal(found, whole[rows, :, columns])
    # The sizes may have more dims than the tensor: a dim may be a product of factors.
    part = x[1:3].reshape(2, 24)[:, 6:12]
    found = OPS.dropout(part, rng, 0.5, 3, [2, 1, 6], [1, 1, 0], [5, 4, 6])
    assert torch.equal(found, whole[1:3].reshape(2, 24)[:, 6:12])


def test_dropout_drops_p_of_a_million() -> None:
    kept = OPS.dropout(torch.ones(1000, 1000), custom_ops.make_rng(0, 0), 0.3, 1, [], [], []) > 0
    assert abs(float(kept.double().mean()) - 0.7) < 0.002
    other = OPS.dropout(torch.ones(1000, 1000), custom_ops.make_rng(0, 1), 0.3, 1, [], [], []) > 0
    assert abs(float((kept & other).double().mean()) - 0.49) < 0.002


def inputs(h: int, g: int, s: int, t: int) -> list[Tensor]:
    shapes = [(2, h, s, 4), (2, g, t, 4), (2, g, t, 3)]
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("h", "g"), [(4, 4), (4, 2), (3, 1)])
def test_attention_and_its_gradients_equal_pytorchs(h: int, g: int, causal: bool) -> None:
    q, k, v = inputs(h, g, 5, 5)
    out, lse = OPS.attention(q, k, v, None, causal, 0.7)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=0.7, enable_gqa=True)
    assert torch.allclose(out, expected, rtol=1e-12, atol=1e-14)
    assert lse.shape == (2, h, 5)
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), grad)
    for one, other in zip(found, torch.autograd.grad(expected, (q, k, v), grad), strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("shape", [(2, 4, 5, 6), (1, 4, 5, 6), (2, 1, 5, 6), (1, 1, 5, 6)])
def test_attention_adds_a_bias(shape: tuple[int, ...]) -> None:
    q, k, v = inputs(4, 2, 5, 6)
    bias = torch.randn(shape, dtype=torch.float64)
    out, _ = OPS.attention(q, k, v, bias, False, 0.5)
    expected = F.scaled_dot_product_attention(q, k, v, bias, scale=0.5, enable_gqa=True)
    assert torch.allclose(out, expected, rtol=1e-12, atol=1e-14)
    found = torch.autograd.grad(out.pow(2).sum(), (q, k, v))
    for one, other in zip(
        found, torch.autograd.grad(expected.pow(2).sum(), (q, k, v)), strict=True
    ):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-13)


def test_a_row_without_keys_gives_zeros_and_no_gradient() -> None:
    q, k, v = inputs(2, 2, 3, 3)
    bias = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    bias[0, 0, 1] = -torch.inf
    out, lse = OPS.attention(q, k, v, bias, False, 0.5)
    assert torch.equal(out[:, :, 1], torch.zeros(2, 2, 3, dtype=torch.float64))
    assert bool((lse[:, :, 1] == -torch.inf).all())
    dq, dk, dv = torch.autograd.grad(out.pow(2).sum(), (q, k, v))
    assert torch.equal(dq[:, :, 1], torch.zeros(2, 2, 4, dtype=torch.float64))
    assert bool(dk.isfinite().all()) and bool(dv.isfinite().all())


@pytest.mark.parametrize("hidden", [-torch.finfo(torch.float64).max, -1e9, -1e4])
def test_a_query_hidden_by_a_finite_number_gives_a_mean(hidden: float) -> None:
    q, k, v = inputs(4, 2, 3, 5)
    bias = torch.zeros(1, 1, 3, 5, dtype=torch.float64)
    bias[0, 0, 1] = hidden
    out, _ = OPS.attention(q, k, v, bias, False, 0.5)
    mean = v.mean(2).repeat_interleave(2, 1)
    if hidden < -1e300:
        assert torch.allclose(out[:, :, 1], mean, rtol=1e-12, atol=1e-14)
    expected = F.scaled_dot_product_attention(q, k, v, bias, scale=0.5, enable_gqa=True)
    assert torch.allclose(out, expected, rtol=1e-12, atol=1e-14)
    grad = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), grad)
    for one, other in zip(found, torch.autograd.grad(expected, (q, k, v), grad), strict=True):
        assert torch.allclose(one, other, rtol=1e-11, atol=1e-13)


def test_causal_attention_of_the_last_queries_sees_all_earlier_keys() -> None:
    q, k, v = inputs(2, 2, 6, 6)
    whole, _ = OPS.attention(q, k, v, None, True, 0.5)
    last, _ = OPS.attention(q[:, :, 4:], k, v, None, True, 0.5)
    assert torch.allclose(last, whole[:, :, 4:], rtol=1e-12, atol=1e-14)


def test_mean_loss_divides_by_counts_and_gives_the_normaliser_no_gradient() -> None:
    total = torch.tensor(6.0, requires_grad=True)
    loss = OPS.mean_loss(total, torch.tensor(4))
    loss.backward()
    assert (float(loss.detach()), loss.dtype, float(total.grad)) == (1.5, torch.float32, 0.25)


Q, K, V = (torch.randn(2, 2, 3, 4) for _ in range(3))
EMPTY: list[int] = []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("attention", (Q, K, V, None, True, 0.5)),
        ("attention", (Q, K, V, torch.zeros(1, 1, 3, 3), False, 0.5)),
        ("attention_backward", (Q, Q, K, V, None, Q, Q[..., 0].contiguous(), True, 0.5)),
        ("dropout", (Q, custom_ops.make_rng(1, 2), 0.5, 3, EMPTY, EMPTY, EMPTY)),
        ("dropout_backward", (Q, custom_ops.make_rng(1, 2), 0.5, 3, EMPTY, EMPTY, EMPTY)),
        (
            "random",
            (custom_ops.make_rng(1, 2), "normal", 3, [2, 4], EMPTY, EMPTY, EMPTY, torch.float32),
        ),
        ("mean_loss", (torch.tensor(1.0), torch.tensor(3))),
        ("mean_loss_backward", (torch.tensor(1.0), torch.tensor(3))),
    ],
)
def test_schema_and_fake_kernel_match_the_kernel(name: str, arguments: tuple[Any, ...]) -> None:
    overload = getattr(OPS, name).default
    torch.library.opcheck(overload, arguments, test_utils="test_schema")
    results = overload(*arguments)
    with FakeTensorMode() as mode:
        fakes = overload(*(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments))
    pairs = [(results, fakes)] if isinstance(results, Tensor) else zip(results, fakes, strict=True)
    for result, fake in pairs:  # strides are the kernel's own business
        assert (result.shape, result.dtype) == (fake.shape, fake.dtype)
