"""Our kernels compared with plain PyTorch. torch.ops.medley.* are those of the C++ extension."""

from __future__ import annotations

import itertools

import pytest
import torch
from reference_ops import dropout, random
from torch import Tensor

from medley import custom_ops
from medley_extras.doctor.written_out import whole_attention, whole_attention_backward

pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")
ops = torch.ops.medley
DTYPES = [torch.float64, torch.float32, torch.bfloat16]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 4e-2}


def close(a: Tensor, b: Tensor, dtype: torch.dtype | None = None) -> None:
    tolerance = TOLERANCE[dtype or a.dtype]
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, check_stride=False)


def test_random_numbers_need_a_seed_and_a_step() -> None:
    for rng in (torch.tensor([3]), torch.tensor([3, 1, 2])):
        with pytest.raises(RuntimeError, match="numel"):
            ops.random(rng, "uniform", 7, [], [], [], [], torch.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "groups", "queries", "keys", "width", "causal", "bias"),
    [
        (4, 4, 7, 7, 8, True, None),
        (4, 4, 7, 7, 8, False, None),
        (6, 2, 5, 5, 8, True, None),  # grouped queries
        (4, 2, 3, 9, 8, True, None),  # the last queries of a longer sequence
        (4, 4, 6, 6, 8, True, (2, 1, 6, 6)),
        (4, 4, 6, 5, 8, False, (1, 4, 6, 5)),
        (4, 4, 6, 6, 4, True, None),  # values narrower than keys
        (0, 0, 6, 6, 8, True, None),  # a shard without heads
    ],
)
def test_attention(
    dtype: torch.dtype,
    heads: int,
    groups: int,
    queries: int,
    keys: int,
    width: int,
    causal: bool,
    bias: tuple[int, ...] | None,
) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, queries, heads, 8, dtype=dtype).transpose(1, 2)
    k = torch.randn(2, groups, keys, 8, dtype=dtype)
    v = torch.randn(2, groups, keys, width, dtype=dtype)
    b = torch.randn(bias, dtype=dtype) if bias else None
    out, lse = ops.attention(q, k, v, b, causal, 0.3)
    grad = torch.randn_like(out)
    if heads == 0:
        assert out.shape == (2, 0, queries, 8) and lse.shape == (2, 0, queries)
        gradients = ops.attention_backward(grad, q, k, v, b, out, lse, causal, 0.3)
        assert [g.shape for g in gradients] == [q.shape, k.shape, v.shape]
        return
    expected, expected_lse = whole_attention(q, k, v, b, causal, 0.3)
    close(out, expected)
    close(lse, expected_lse, dtype)
    # The heads of a position are neighbours: joining them is a view, as memory is predicted.
    assert out.transpose(1, 2).is_contiguous()
    expected_grads = whole_attention_backward(grad, q, k, v, b, expected, expected_lse, causal, 0.3)
    actual = ops.attention_backward(grad, q, k, v, b, out, lse, causal, 0.3)
    for a, e in zip(actual, expected_grads, strict=True):
        close(a, e)


@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout_is_that_of_the_reference(dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, 7, dtype=dtype)
    rng = custom_ops.make_rng(2**40 + 3, 2**33 + 5)
    close(
        ops.dropout(x, rng, 0.3, 2**31 + 17, [], [], []),
        dropout(x, rng, 0.3, 2**31 + 17, [], [], []),
    )


# Any box drops the elements that the whole tensor drops there, also beyond element 2**32.
@pytest.mark.parametrize(
    ("origin", "sizes", "full"),
    [
        ([1, 2, 0], [2, 3, 7], [3, 5, 7]),
        ([1, 2, 3], [1, 2, 3], [3, 5, 7]),
        ([0, 2, 3], [3, 0, 3], [3, 5, 7]),
        ([2**31, 1], [4, 2], [2**31 + 4, 3]),
    ],
)
def test_dropout_of_a_box(origin: list[int], sizes: list[int], full: list[int]) -> None:
    x = torch.ones(sizes)
    rng = custom_ops.make_rng(7, 9)
    close(
        ops.dropout(x, rng, 0.5, 3, sizes, origin, full),
        dropout(x, rng, 0.5, 3, sizes, origin, full),
    )


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_random_numbers_are_those_of_the_reference(dtype: torch.dtype, distribution: str) -> None:
    rng = custom_ops.make_rng(2**40 + 3, 2**33 + 5)
    given = (rng, distribution, 2**30 + 17, [3, 5, 7])
    whole = ops.random(*given, [], [], [], dtype)
    expected = random(*given, [], [], [], dtype)
    assert whole.dtype == dtype
    if distribution == "uniform":
        assert torch.equal(whole, expected)
    else:
        torch.testing.assert_close(
            whole, expected, rtol=1e-2 if dtype.itemsize == 2 else 1e-6, atol=1e-9
        )
    part = ops.random(*given[:3], [2, 12], [2, 3, 4], [1, 2, 3], [3, 5, 7], dtype)
    assert torch.equal(part, whole[1:, 2:, 3:].reshape(2, 12))
    assert ops.random(*given[:3], [0, 7], [0, 7], [3, 0], [3, 7], dtype).shape == (0, 7)
    assert ops.random(*given[:3], [], [], [], [], dtype).shape == ()


# Kolmogorov and Smirnov: one in a thousand exceeds 1.95 / sqrt(n). Steps and sites differ.
@pytest.mark.parametrize("distribution", ["uniform", "normal"])
def test_random_numbers_have_their_distribution(distribution: str) -> None:
    count = 100_000
    draws = [
        ops.random(custom_ops.make_rng(seed, step), distribution, site, [count], [], [], [], dtype)
        for seed, step, site, dtype in [
            (0, 0, 7, torch.float64),
            (0, 0, 9, torch.float64),
            (0, 1, 7, torch.float32),
            (1, 0, 7, torch.float32),
        ]
    ]
    for drawn in draws:
        found = drawn.double().sort().values
        if distribution == "normal":
            found = torch.special.ndtr(found)
        assert found.min() >= 0 and found.max() < 1
        even = (torch.arange(count, dtype=torch.float64) + 0.5) / count
        assert (found - even).abs().max() < 1.95 / count**0.5
        neighbours = torch.corrcoef(torch.stack([drawn[:-1], drawn[1:]]).double())[0, 1]
        assert neighbours.abs() < 4 / count**0.5
    together = torch.corrcoef(torch.stack([each.double() for each in draws]))
    assert (together - torch.eye(4)).abs().max() < 4 / count**0.5


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("master", [False, True])
def test_adamw_is_that_of_pytorch(dtype: torch.dtype, master: bool) -> None:
    torch.manual_seed(0)
    parameter = torch.randn(5, 3, dtype=dtype, requires_grad=True)
    optimizer = torch.optim.AdamW([parameter], lr=0.01, weight_decay=0.1, fused=True)
    ours = parameter.detach().clone()
    copy = ours.clone() if master else None
    first, second = torch.zeros_like(ours), torch.zeros_like(ours)
    for step in range(1, 4):
        grad = torch.randn_like(ours)
        parameter.grad = grad * 0.5
        optimizer.step()
        scalars = torch.tensor([0.01, step, 0.5], dtype=torch.float64)
        before = ours.clone()
        after = ops.adamw(ours, grad, first, second, copy, scalars, 0.9, 0.999, 1e-8, 0.1)
        assert torch.equal(ours, before)
        ours, first, second, copy = after
        assert torch.equal(ours, parameter.detach())


# The fused kernel treats its inputs as flat: transposed dims would pair other elements.
@pytest.mark.parametrize("clip", [1.0, 0.5])
@pytest.mark.parametrize("turned", range(4), ids=["parameter", "gradient", "first", "second"])
def test_adamw_does_not_mind_turned_dims(turned: int, clip: float) -> None:
    torch.manual_seed(0)
    plain = [torch.rand(5, 3) for _ in range(4)]
    given = [x.t().contiguous().t() if i == turned else x for i, x in enumerate(plain)]
    scalars = torch.tensor([0.01, 1, clip], dtype=torch.float64)
    want = ops.adamw(*plain, None, scalars, 0.9, 0.999, 1e-8, 0.1)
    got = ops.adamw(*given, None, scalars, 0.9, 0.999, 1e-8, 0.1)
    assert all(torch.equal(a, b) for a, b in zip(got[:3], want[:3], strict=True))


def test_adamw_of_bf16_with_a_master_keeps_f32() -> None:
    master = torch.randn(100)
    ours, first, second = master.bfloat16(), torch.zeros(100), torch.zeros(100)
    parameter = master.clone().requires_grad_()
    optimizer = torch.optim.AdamW([parameter], lr=1e-5, weight_decay=0.0)
    for step in range(1, 6):
        grad = torch.randn(100).bfloat16()
        parameter.grad = grad.float()
        optimizer.step()
        scalars = torch.tensor([1e-5, step, 1.0], dtype=torch.float64)
        ours, first, second, master = ops.adamw(
            ours, grad, first, second, master, scalars, 0.9, 0.999, 1e-8, 0.0
        )
    torch.testing.assert_close(master, parameter.detach(), rtol=1e-6, atol=1e-7)
    assert torch.equal(ours, master.bfloat16())


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_is_that_of_pytorch(nesterov: bool) -> None:
    torch.manual_seed(0)
    parameter = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD(
        [parameter], lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=nesterov
    )
    ours = parameter.detach().clone()
    momentum = torch.zeros_like(ours)
    for step in range(1, 4):
        grad = torch.randn_like(ours)
        parameter.grad = grad.clone()
        optimizer.step()
        scalars = torch.tensor([0.1, step, 1.0], dtype=torch.float64)
        ours, momentum, _ = ops.sgd(ours, grad, momentum, None, scalars, 0.9, 0.01, nesterov)
    close(ours, parameter.detach())


def test_clipping() -> None:
    tensors = [torch.randn(4, 4), torch.randn(7, dtype=torch.float64), torch.zeros(0, 3)]
    total = ops.add_n([ops.sum_squares(t) for t in tensors])
    assert total.dtype == torch.float64
    norm, scale = ops.clip_scale(total, 2.0)
    expected = torch.cat([t.double().flatten() for t in tensors]).norm()
    torch.testing.assert_close(norm, expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(scale, torch.clamp(2.0 / (expected + 1e-6), max=1.0))
    scalars = ops.scale_scalars(torch.tensor([0.1, 3.0, 1.0], dtype=torch.float64), scale)
    assert scalars[2] == scale and scalars[0] == 0.1


def test_vocabulary_shards_of_embedding_and_loss_add_up() -> None:
    torch.manual_seed(0)
    weight = torch.randn(11, 4, dtype=torch.float64)
    indices = torch.tensor([[0, 10, 3], [3, 5, 7]])
    cuts = [(0, 4), (4, 4), (4, 11)]
    parts = [ops.embedding_select(weight[a:b], indices, a) for a, b in cuts]
    close(sum(parts), torch.embedding(weight, indices))

    grad = torch.randn(2, 3, 4, dtype=torch.float64)
    for by_frequency in (False, True):
        rows = [
            ops.embedding_backward_select(grad, indices, b - a, 5, by_frequency, a) for a, b in cuts
        ]
        close(
            torch.cat(rows),
            torch.ops.aten.embedding_dense_backward(grad, indices, 11, 5, by_frequency),
        )

    scores = torch.randn(6, 11, dtype=torch.float64).log_softmax(-1)
    target = torch.tensor([0, 10, -100, 3, 4, 7])
    class_weight = torch.rand(11, dtype=torch.float64)
    for w, reduction in itertools.product((None, class_weight), (0, 2)):
        expected, total = torch.ops.aten.nll_loss_forward(scores, target, w, reduction, -100)
        outs = [ops.nll_select(scores[:, a:b], target, w, reduction, -100, a) for a, b in cuts]
        close(sum(out[0] for out in outs), expected)
        for out in outs:
            close(out[1], total)
        g = torch.randn_like(expected)
        pieces = [
            ops.nll_backward_select(g, scores[:, a:b], target, w, reduction, -100, total, a)
            for a, b in cuts
        ]
        close(
            torch.cat(pieces, 1),
            torch.ops.aten.nll_loss_backward(g, scores, target, w, reduction, -100, total),
        )


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rows", [0, 7, 300])  # zero, one block, several
def test_cross_entropy(dtype: torch.dtype, reduction: str, weighted: bool, rows: int) -> None:
    torch.manual_seed(0)
    inside = torch.float64 if dtype is torch.float64 else torch.float32
    logits = (4 * torch.randn(rows, 3001)).to(dtype)
    logits[:, 0] = -torch.inf  # a class that is masked, where ignored targets look
    target = torch.randint(1, 3001, (rows,))
    target[::3] = -100
    weight = torch.rand(3001, dtype=inside) if weighted else None
    x = logits.clone().to(inside).requires_grad_()
    expected = torch.nn.functional.cross_entropy(x, target, weight, reduction=reduction)
    grad = torch.randn_like(expected)
    (expected_grad,) = torch.autograd.grad(expected, x, grad)

    number = ["none", "mean", "sum"].index(reduction)
    lse = ops.log_sum_exp(logits)
    loss, total = ops.cross_entropy(logits, lse, target, weight, number, -100)
    assert lse.dtype == loss.dtype == inside
    tolerance = 1e-12 if dtype is torch.float64 else 2e-5
    assert_close = torch.testing.assert_close
    assert_close(loss, expected, rtol=tolerance, atol=tolerance, equal_nan=True)
    arguments = (logits, lse, grad, target, weight, number, -100, total)
    ours = ops.cross_entropy_backward(*arguments)
    assert ours.dtype == dtype
    close(ours, expected_grad.to(dtype), torch.bfloat16 if dtype is torch.float16 else dtype)
    ops.cross_entropy_backward.out(*arguments, out=logits)
    assert torch.equal(logits, ours), "another gradient in the place of the logits"


def test_mean_and_arange_of_a_shard() -> None:
    x = torch.randn(3, 4, 5, dtype=torch.float64)
    close(ops.mean(x, [0, 2], True, None, 30), x.sum((0, 2), keepdim=True) / 30)
    close(ops.mean(x, [], False, None, 7), x.sum() / 7)
    whole = torch.arange(10, 10 + 24 * 2, 2).view(4, 6)
    assert torch.equal(
        ops.arange_shard(10, 2, [2, 3], [1, 2], [4, 6], torch.int64), whole[1:3, 2:5].flatten()
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "relu"])
@pytest.mark.parametrize("gated", [False, True])
def test_experts_shards_add_up(dtype: torch.dtype, activation: str, gated: bool) -> None:
    torch.manual_seed(0)
    f = torch.nn.functional
    act = {
        "silu": f.silu,
        "gelu": f.gelu,
        "gelu_tanh": lambda t: f.gelu(t, approximate="tanh"),
        "relu": f.relu,
    }[activation]
    tokens, k, experts, h, width, out = 9, 2, 5, 4, 6, 3
    x = torch.randn(tokens, h, dtype=dtype, requires_grad=True)
    indices = torch.stack([torch.randperm(experts)[:k] for _ in range(tokens)])
    weights = torch.rand(tokens, k, dtype=dtype, requires_grad=True)
    up = torch.randn(experts, (2 if gated else 1) * width, h, dtype=dtype, requires_grad=True)
    down = torch.randn(experts, out, width, dtype=dtype, requires_grad=True)
    hidden = torch.einsum("nh,efh->nef", x, up)
    hidden = act(hidden[..., :width]) * hidden[..., width:] if gated else act(hidden)
    every = torch.einsum("nef,eof->neo", hidden, down)
    chosen = every.gather(1, indices.unsqueeze(-1).expand(-1, -1, out))
    expected = (chosen * weights.unsqueeze(-1)).sum(1)
    grad = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, [x, weights, up, down], grad)

    cuts = [(0, 2), (2, 2), (2, 5)]
    parts = [
        ops.experts(x, indices, weights, up[a:b], down[a:b], activation, a, experts)
        for a, b in cuts
    ]
    close(sum(parts), expected)
    backs = [
        ops.experts_backward(grad, x, indices, weights, up[a:b], down[a:b], activation, a, experts)
        for a, b in cuts
    ]
    close(sum(b[0] for b in backs), gradients[0])
    close(sum(b[1] for b in backs), gradients[1])
    close(torch.cat([b[2] for b in backs]), gradients[2])
    close(torch.cat([b[3] for b in backs]), gradients[3])


@pytest.mark.parametrize("pre", [1, 3])
def test_pack_is_undone_by_unpack(pre: int) -> None:
    x = torch.randn(pre, 7, 4)
    lengths = [2, 0, 5]
    flat = ops.pack(x, pre, lengths, 4)
    pieces = x.split(lengths, 1)
    assert torch.equal(flat, torch.cat([p.flatten() for p in pieces]))
    assert torch.equal(ops.unpack(flat, pre, lengths, 4, [pre, 7, 2, 2]), x.view(pre, 7, 2, 2))
    if pre == 1:
        assert flat.data_ptr() == x.data_ptr()


def test_take_is_undone_by_place() -> None:
    x = torch.randn(3, 7, 4)
    piece = ops.take(x, 3, 7, 4, 2, 3, [3, 12])
    assert torch.equal(piece.view(3, 3, 4), x[:, 2:5])
    whole = ops.place(piece, 3, 7, 4, 2, 3, [21, 4], -1.0)
    expected = torch.full_like(x, -1.0)
    expected[:, 2:5] = x[:, 2:5]
    assert torch.equal(whole, expected.view(21, 4))
    nothing = ops.take(x, 3, 7, 4, 2, 0, [3, 0])
    assert torch.equal(ops.place(nothing, 3, 7, 4, 2, 0, [3, 28], 0.0), torch.zeros(3, 28))


def test_contract_and_keep_first() -> None:
    x, w, b = torch.randn(2, 3, 4), torch.randn(4, 5), torch.randn(5)
    close(ops.contract(x, w), x @ w)
    close(ops.contract_add(x, w, b), x @ w + b)
    assert ops.contract(torch.randn(2, 0, 4), w).shape == (2, 0, 5)
    assert not ops.contract(torch.randn(2, 3, 0), torch.randn(0, 5)).any()
    assert torch.equal(ops.keep_first(x, 0), x) and not ops.keep_first(x, 1).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_mean_of_no_rows_has_no_gradient(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 40, dtype=dtype)
    target = torch.full((3,), -100)
    whole = torch.float64 if dtype == torch.float64 else torch.float32
    sums = torch.ops.medley.log_sum_exp(logits)
    loss, total = torch.ops.medley.cross_entropy(logits, sums, target, None, 1, -100)
    assert loss.isnan()  # as PyTorch's is
    grad = torch.ones((), dtype=whole)
    found = torch.ops.medley.cross_entropy_backward(
        logits, sums, grad, target, None, 1, -100, total
    )
    expected = logits.clone().requires_grad_()
    torch.nn.functional.cross_entropy(expected, target).backward()
    assert torch.equal(found, expected.grad)
