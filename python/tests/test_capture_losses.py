"""Every form of loss, batch and call that capture replaces or accepts, against eager PyTorch."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import graph_interpreter
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from captured import capture_text
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as imported_before
from torch.utils.checkpoint import checkpoint

from medley import custom_ops
from medley.capture import capture_full, substitute

RNG = custom_ops.make_rng(5, 6)
X = torch.randn(4, 3, 8, dtype=torch.float64)
CLASSES = torch.tensor([[0, 5, -100], [1, 2, 3], [-100, -100, 7], [4, 4, 4]])
WEIGHT = torch.rand(8, dtype=torch.float64) + 0.5


class Model(nn.Module):
    """A linear layer, and a function of its output and the targets."""

    def __init__(self, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8, dtype=torch.float64)
        self.loss = loss
        self.register_buffer("weight", WEIGHT.clone())

    def forward(self, x: Tensor, target: Tensor | None = None) -> Any:
        x = self.linear(x)
        return self.loss(x) if target is None else self.loss(x, target)


def check(
    model: nn.Module, batch: tuple[Tensor, ...], expected: Tensor, rows: int | None = None
) -> str:
    """Captures with the first three rows of the batch, runs with all, compares with `expected`."""
    captured = capture_full(model, tuple(t[:3] for t in batch))
    state = dict((*model.named_parameters(), *model.named_buffers(), *captured.constants.items()))
    named = {str(i): t for i, t in enumerate(batch)}
    found = graph_interpreter.run(captured.text, state, named, RNG)
    model.zero_grad()
    expected.backward()
    assert torch.allclose(found.loss, expected, rtol=1e-12, atol=0)
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert torch.allclose(found.gradients[name], parameter.grad, rtol=1e-11, atol=1e-14)
    return captured.text


TARGETS = torch.rand(4, 3, 8, dtype=torch.float64)


@pytest.mark.parametrize(
    ("loss", "target"),
    [
        (lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten()), CLASSES),
        (lambda x, t: F.cross_entropy(x.transpose(1, 2), t, label_smoothing=0.1), CLASSES),
        (lambda x, t: F.cross_entropy(x.transpose(1, 2), t, WEIGHT), CLASSES),
        (lambda x, t: F.cross_entropy(x.flatten(0, 1), t.flatten(), reduction="sum"), CLASSES),
        (lambda x, t: F.cross_entropy(x.transpose(1, 2), t.softmax(-1).mT), TARGETS),
        (lambda x, t: imported_before(x.flatten(0, 1), t.flatten()), CLASSES),
        (lambda x, t: nn.CrossEntropyLoss(ignore_index=4)(x[:, 0], t[:, 1].abs() % 8), CLASSES),
        (lambda x, t: nn.NLLLoss()(x.log_softmax(-1).mT, t), CLASSES),
        (lambda x, t: F.nll_loss(x.log_softmax(-1).mT, t, WEIGHT), CLASSES),
        (lambda x, t: F.mse_loss(x, t), TARGETS),
        (lambda x, t: nn.MSELoss()(x, t), TARGETS),
        (lambda x, t: F.mse_loss(x, t, reduction="none").mean(), TARGETS),
        (lambda x, t: F.l1_loss(x, t), TARGETS),
        (lambda x, t: F.smooth_l1_loss(x, t, beta=0.3), TARGETS),
        (lambda x, t: F.huber_loss(x, t, "mean", 0.3), TARGETS),
        (lambda x, t: F.binary_cross_entropy(x.sigmoid(), t), TARGETS),
        (lambda x, t: F.binary_cross_entropy_with_logits(x, t), TARGETS),
        (lambda x, t: F.binary_cross_entropy_with_logits(x, t, WEIGHT, pos_weight=WEIGHT), TARGETS),
        (lambda x, t: F.kl_div(x.log_softmax(-1), t.softmax(-1), reduction="batchmean"), TARGETS),
        (lambda x, t: F.kl_div(x.log_softmax(-1), t.softmax(-1)), TARGETS),
        (lambda x, t: ((x - t) ** 2).mean(), TARGETS),
        (lambda x, t: torch.mean((x - t).abs()), TARGETS),
        (lambda x, t: (x - t).pow(2).mean(dtype=torch.float64) + 0.1 * x.mean(), TARGETS),
        (lambda x, t: ((x - t) ** 2).sum(-1).mean(0).mean(), TARGETS),
        (lambda x, t: (x.mean((0, 1)) * t.mean(0).mean(0)).sum(), TARGETS),
        (lambda x, t: (x.mean(0, keepdim=True) - t).pow(2).sum(), TARGETS),
        (lambda x, t: F.adaptive_avg_pool1d(x - t, 1).pow(2).mean(), TARGETS),
        (lambda x, t: (x - t).pow(2).mean(-1, True).mean(), TARGETS),
    ],
)
def test_losses_are_exact_at_another_batch_size(
    loss: Callable[[Tensor, Tensor], Tensor], target: Tensor
) -> None:
    model = Model(loss)
    check(model, (X, target), model(X, target))


def without_lines(text: str) -> list[str]:
    return [line.partition(" at ")[0] for line in text.splitlines()]


@dataclasses.dataclass
class Output:
    logits: Tensor
    loss: Tensor


@pytest.mark.parametrize(
    "wrap",
    [
        lambda loss: loss,
        lambda loss: loss.reshape(1),
        lambda loss: {"loss": loss, "logits": None},
        lambda loss: Output(loss, loss),
    ],
)
def test_a_loss_may_be_wrapped(wrap: Callable[[Tensor], Any]) -> None:
    model = Model(lambda x: wrap(x.pow(2).mean()))
    check(model, (X,), model.linear(X).pow(2).mean())


def test_a_model_may_return_sum_and_normaliser() -> None:
    def loss(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        kept = target != -100
        return (x.sum(-1) * kept).sum(), kept.sum()

    model = Model(loss)
    total, weight = model(X, CLASSES)
    text = check(model, (X, CLASSES), total / weight)
    assert text.count("medley.mean_loss.default") == 1


def test_batches_are_a_tensor_a_tuple_or_a_dict() -> None:
    model = Model(lambda x, t=X[:4]: x.pow(2).mean())
    plain = capture_text(model, X)
    assert plain == capture_text(model, (X,)) == capture_text(model, [X])
    assert plain.replace('batch "0"', 'batch "x"') == capture_text(model, {"x": X})
    assert capture_text(model, {"x": X, "target": None}).count(" = batch ") == 1


def test_tensors_without_the_batch_keep_their_sizes() -> None:
    model = Model(lambda x, t: (x * t).mean())
    lines = capture_text(model, (X, torch.rand(1, 3, 1, dtype=torch.float64))).splitlines()
    assert [line.split(" : ")[1] for line in lines if " = batch " in line] == [
        "f64[b, 3, 8]",
        "f64[1, 3, 1]",
    ]


def test_a_mean_counts_as_ops_that_follow_the_batch() -> None:
    text = capture_text(Model(lambda x: x.pow(2).mean()), X)
    (loss,) = (line for line in text.splitlines() if "medley.mean_loss.default" in line)
    weight = loss.split("(")[1].split(")")[0].split(", ")[1]
    (made,) = (line for line in text.splitlines() if line.startswith(f"{weight} = "))
    assert "aten.sum.default" in made
    assert " : i64[]" in made


# --- constants ------------------------------------------------------------------------------------


def test_tensors_that_belong_to_no_module_become_ops_or_named_constants() -> None:
    ones, places = torch.full((8,), 2.0, dtype=torch.float64), torch.arange(2, 10)
    other = torch.randn(8, dtype=torch.float64)
    model = Model(lambda x: (x * ones * places * other).mean())
    captured = capture_full(model, X)
    check(model, (X,), model(X))
    assert list(captured.constants) == ["constant:0"]
    assert torch.equal(captured.constants["constant:0"], other)
    assert 'buffer "constant:0" : f64[8]' in captured.text
    assert "aten.full.default([8], 2.0, f64, none, none, none)" in captured.text
    assert "aten.arange.start_step(2, 10, 1, i64, none, none, none)" in captured.text


# --- attention and dropout ------------------------------------------------------------------------


def attend(**options: Any) -> Callable[[Tensor], Tensor]:
    def loss(x: Tensor) -> Tensor:
        q = x.reshape(-1, 3, 4, 2).transpose(1, 2)
        return F.scaled_dot_product_attention(q, q.flip(3), q * 2, **options).pow(2).mean()

    return loss


def grouped(x: Tensor) -> Tensor:
    q = x.reshape(-1, 3, 4, 2).transpose(1, 2)
    k = q[:, :2]
    out = F.scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
    return out.pow(2).mean()


def fewer_queries(x: Tensor) -> Tensor:
    q = x.reshape(-1, 3, 4, 2).transpose(1, 2)
    return F.scaled_dot_product_attention(q[:, :, :2], q, q, is_causal=True).pow(2).mean()


def in_blocks(mask: Tensor | None = None) -> Callable[[Tensor], Tensor]:
    """Attention in two heads of two blocks of three positions."""

    def loss(x: Tensor) -> Tensor:
        q = x.reshape(-1, 3, 2, 2, 2).permute(0, 2, 3, 1, 4)
        k = q[:, :1] + 1  # from one head
        return F.scaled_dot_product_attention(q, k, q.flip(2), mask).pow(2).mean()

    return loss


@pytest.mark.parametrize(
    "loss",
    [
        attend(),
        attend(is_causal=True),
        in_blocks(),
        in_blocks(torch.ones(3, 3, dtype=torch.bool).tril()),
        in_blocks(torch.randn(2, 1, 3, 3, dtype=torch.float64)),
        in_blocks(torch.randn(1, 1, 1, 3, 3, dtype=torch.float64)),
        attend(scale=0.3),
        attend(attn_mask=torch.ones(3, 3, dtype=torch.bool).tril()),
        attend(attn_mask=torch.randn(1, 4, 3, 3, dtype=torch.float64)),
        attend(attn_mask=torch.randn(3, 1, dtype=torch.float64)),
        grouped,
        fewer_queries,
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True).pow(2).mean(),
    ],
)
def test_attention_is_one_op_that_computes_what_pytorch_does(
    loss: Callable[[Tensor], Tensor],
) -> None:
    model = Model(loss)
    text = check(model, (X,), model(X))
    assert text.count("medley.attention.default") == text.count("medley.attention_backward") == 1


def test_attention_inside_of_pytorchs_own_module_is_found() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)

        def forward(self, x: Tensor) -> Tensor:
            return self.attention(x, x, x, need_weights=False)[0].pow(2).mean()  # type: ignore[no-any-return]

    model = Model()
    assert "medley.attention.default" in check(model, (X,), model(X))


def test_a_trained_bias_keeps_its_gradient() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bias = nn.Parameter(torch.randn(1, 1, 3, 3, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            x = x.unsqueeze(1)
            return F.scaled_dot_product_attention(x, x, x, self.bias).pow(2).mean()

    model = Model()
    assert "medley.attention" not in check(model, (X,), model(X))


@pytest.mark.parametrize(
    "loss",
    [
        lambda x: F.dropout(x, 0.3).pow(2).mean(),
        lambda x: torch.dropout(x, 0.3, True).pow(2).mean(),
        lambda x: F.dropout1d(x, 0.5).pow(2).mean(),
        lambda x: nn.Dropout(0.2)(x).pow(2).mean() + nn.Dropout(0.2)(x).pow(2).mean(),
        attend(dropout_p=0.3),
        attend(dropout_p=0.3, is_causal=True),
    ],
)
def test_dropout_in_a_graph_equals_dropout_in_eager(loss: Callable[[Tensor], Tensor]) -> None:
    model = Model(loss)
    custom_ops.set_rng(*RNG.tolist())
    with substitute(model):
        expected = model(X)
        assert torch.equal(model(X), expected)
        custom_ops.set_rng(5, 7)
        assert not torch.equal(model(X), expected)
    assert 'scalar "rng" : i64[2]' in check(model, (X,), expected)


@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpointing_is_left_to_the_planner(reentrant: bool) -> None:
    def part(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.3)

    def loss(x: Tensor) -> Tensor:
        return checkpoint(part, x, use_reentrant=reentrant).pow(2).mean()  # type: ignore[no-any-return]

    plain = capture_text(Model(lambda x: part(x).pow(2).mean()), X)
    assert without_lines(capture_text(Model(loss), X)) == without_lines(plain)


def test_autocast_casts_whatever_device_it_names() -> None:
    def loss(x: Tensor, device: str) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            q = F.linear(x, torch.ones(8, 8)).reshape(-1, 3, 4, 2).transpose(1, 2)
            out = F.scaled_dot_product_attention(q, q.float(), q)
        return out.float().pow(2).mean()

    texts = [
        without_lines(capture_text(Model(lambda x, on=on: loss(x.float(), on)), X))
        for on in ("cpu", "cuda")
    ]
    assert texts[0] == texts[1]
    (attention,) = (line for line in texts[0] if "medley.attention.default" in line)
    assert " : bf16[b, 4, 3, 2], f32[b, 4, 3] " in attention


def test_dropout_without_probability_or_training_is_nothing() -> None:
    text = capture_text(Model(lambda x: F.dropout(F.dropout(x, 0.0), 0.5, False).mean()), X)
    assert "dropout" not in text
    assert "rng" not in text


def test_substitute_needs_a_random_state_only_for_dropout() -> None:
    model = Model(lambda x: x.pow(2).mean())
    with substitute(model):
        replaced = model(X)
    assert math.isclose(float(replaced), float(model(X)), rel_tol=1e-14)
