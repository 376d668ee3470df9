"""Routed experts are one op, whatever implementation transformers would have taken."""

from __future__ import annotations

import pytest
import reference_ops
import torch
from captured import capture_text
from zoo import ZOO

import medley
from medley import _core, custom_ops
from medley_extras import models
from medley_extras.models import hf


@pytest.mark.parametrize(
    ("dtype", "implementation"),
    [
        (torch.float64, None),
        (torch.float32, "eager"),
        (torch.bfloat16, "grouped_mm"),
        (torch.float32, "batched_mm"),
    ],
)
def test_one_op_per_layer_in_every_type(dtype: torch.dtype, implementation: str | None) -> None:
    model, batch = hf.mixtral(experts_implementation=implementation)
    text = capture_text(model.to(dtype), batch, check=False)
    assert text.count(" = medley.experts.default(") == 2
    assert text.count(" = medley.experts_backward.default(") == 2
    for word in ("bmm", "_grouped_mm", "nonzero", "index_add", "histc"):
        assert word not in text


def test_experts_without_a_gate_and_turned_weights() -> None:
    x, indices = torch.randn(4, 3), torch.tensor([[0, 1]] * 4)
    weights, up, down = torch.rand(4, 2), torch.randn(2, 5, 3), torch.randn(2, 3, 5)
    out = custom_ops.experts(x, indices, weights, up, down, "relu")
    each = [torch.relu(x @ up[e].t()) @ down[e].t() * weights[:, e : e + 1] for e in range(2)]
    torch.testing.assert_close(out, each[0] + each[1])
    with pytest.raises(
        ValueError, match="experts: unknown activation 'tanh'; expected one of silu"
    ):
        custom_ops.experts(x, indices, weights, up, down, "tanh")


@pytest.mark.parametrize("activation", custom_ops.ACTIVATIONS)
@pytest.mark.parametrize("gated", [False, True])
def test_experts_are_those_of_the_reference(activation: str, gated: bool) -> None:
    torch.manual_seed(0)
    indices = torch.stack([torch.randperm(4)[:2] for _ in range(6)])
    x, weights = torch.randn(6, 3).double(), torch.rand(6, 2).double()
    up, down = torch.randn(3, 10 if gated else 5, 3).double(), torch.randn(3, 4, 5).double()
    rest = (activation, 1, 4)  # experts 1, 2 and 3 of four
    grad = torch.randn(6, 4).double()
    ops = torch.ops.medley
    torch.testing.assert_close(
        reference_ops.experts(x, indices, weights, up, down, *rest),
        ops.experts(x, indices, weights, up, down, *rest),
    )
    here = reference_ops.experts_backward(grad, x, indices, weights, up, down, *rest)
    there = ops.experts_backward(grad, x, indices, weights, up, down, *rest)
    for mine, theirs in zip(here, there, strict=True):
        torch.testing.assert_close(mine, theirs)


def test_experts_of_another_form_compute_all_tokens_and_say_so() -> None:
    import transformers

    config = transformers.AutoConfig.for_model(
        "gpt_oss",
        vocab_size=64,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        num_local_experts=4,
        layer_types=["full_attention"],
    )
    config._attn_implementation = "eager"
    model, batch = hf.build(config, batch=2, tokens=8)
    with pytest.warns(UserWarning, match="GptOssExperts: experts with biases: all of them"):
        text = capture_text(model, batch)
    assert "medley.experts" not in text


def test_load_balancing_loss_is_cross_sample() -> None:
    def coupling(name: str) -> str:
        return _core.row_coupling(medley.capture(*ZOO[name]()).core)

    assert coupling("hf-mixtral") == ""
    assert coupling("hf-mixtral-balanced") != ""


@pytest.mark.slow
def test_papers_sizes_at_any_number_of_devices() -> None:
    with torch.device("meta"):
        model, batch = models.bert_moe("hap", experts=2 * 29, batch=1)
    assert sum(p.numel() for p in model.parameters()) == pytest.approx(1.75e9, rel=0.02)
    assert "f32[58, 3072, 768]" in capture_text(model, batch, check=False)
