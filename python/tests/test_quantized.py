"""Weights of four bits: QLoRA as peft and bitsandbytes do it, trained like on one device."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch
from test_adapters import ROWS, lora, plan_of
from torch import Tensor, nn

import medley
from medley import quantized
from medley.capture import CaptureError, weightless
from medley_extras.models import hf

peft = pytest.importorskip("peft")
bnb = pytest.importorskip("bitsandbytes")

STEPS = 8
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,  # a multiple of 64: bitsandbytes reads others wrongly with AVX512
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tokens": 6,
}


def quantize(model: nn.Module, **kind: Any) -> None:
    """Converts the linear layers of a Llama's blocks to those of bitsandbytes."""
    for path, module in list(model.named_modules()):
        if not isinstance(module, nn.Linear) or "layers." not in path:
            continue
        packed = bnb.nn.Linear4bit(
            module.in_features, module.out_features, module.bias is not None, **kind
        )
        packed.weight = bnb.nn.Params4bit(
            module.weight.detach().float().clone(),
            quant_type=packed.weight.quant_type,
            compress_statistics=packed.weight.compress_statistics,
            module=packed,
        )
        packed.bias = module.bias
        model.set_submodule(path, packed.to("cpu"))


def qlora(kind: str, batch: int = ROWS, **sizes: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a tiny Llama of 4-bit weights with a LoRA, and a batch. `kind`: nf4, fp4, or nf4 with
    quantised absmax. `sizes`: replace those of SIZES."""
    torch.manual_seed(0)
    base, example = hf.llama(batch=batch, **{**SIZES, **sizes})
    quantize(base, quant_type=kind[:3], compress_statistics=kind == "nf4 twice")
    base.is_loaded_in_4bit = True
    return peft.get_peft_model(base, lora()), example


@functools.cache
def made(kind: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the same model each time. bitsandbytes quantises its f32 weights before exactness
    changes their dtype."""
    return qlora(kind)


def maker(kind: str, batch: int = ROWS) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a copy of it."""
    assert batch == ROWS
    return copy.deepcopy(made(kind))


MAKERS = {kind: functools.partial(maker, kind) for kind in ("nf4", "fp4", "nf4 twice")}
PLANS = {
    "nf4 twice": ["tensor", "random pipelines 1"],
    "nf4": [
        "rows",
        "tensor",
        *(f"random {what} {s}" for what in ("plan", "pipelines") for s in range(4)),
    ],
    "fp4": ["rows", "random pipeline 2"],
}
OTHERS = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("nf4", "fp4")]


@pytest.mark.parametrize("kind", ["nf4 twice", *OTHERS])
def test_qlora_trains_like_one_device(kind: str) -> None:
    plain = dense(made(kind)[0])  # bitsandbytes has no f64
    with exactness.double_precision():
        model, batch, graph = exactness.captured(MAKERS[kind], ROWS)
        want = exactness.train_eager(plain.double(), batch, STEPS, 1e-3, clip=1.0)
        trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        for plan in PLANS[kind]:
            got = exactness.train_plan(
                model, graph, plan_of(plan, graph), batch, STEPS, 1e-3, clip=1.0
            )
            for name, packed in model.named_parameters():
                assert name in trained or torch.equal(got.parameters.pop(name), packed)
            want.parameters = {n: each for n, each in want.parameters.items() if n in trained}
            print(f"{kind}, {plan}: {exactness.compare(got, want):.1e}")


def dense(model: nn.Module) -> nn.Module:
    """Returns the model with dequantised frozen weights: one block after the other, across rows.
    bitsandbytes 0.50 does the same, except for rows that are no multiple of a block on CPUs with
    AVX-512. There it uses the scales of other blocks."""
    model = copy.deepcopy(model)
    for path, module in list(model.named_modules()):
        if isinstance(module, bnb.nn.Linear4bit):
            plain = nn.Linear(module.in_features, module.out_features, module.bias is not None)
            plain.weight = nn.Parameter(numbers_of(module), requires_grad=False)
            plain.bias = module.bias
            model.set_submodule(path, plain)
    return model


def numbers_of(module: Any) -> Tensor:
    state, packed = module.quant_state, module.weight.data.view(-1)
    scales = state.absmax
    if state.nested:
        of_scales = state.state2.absmax.repeat_interleave(state.state2.blocksize)
        scales = state.state2.code[scales.int()] * of_scales[: scales.numel()] + state.offset
    numbers = state.code[torch.stack([packed >> 4, packed & 15], dim=1).int()]
    blocks: Tensor = numbers.view(-1, state.blocksize) * scales[:, None]
    return blocks.view(state.shape)


def test_numbers_are_those_of_bitsandbytes() -> None:
    for kind in MAKERS:
        for module in made(kind)[0].modules():
            if not isinstance(module, bnb.nn.Linear4bit) or module.in_features % 64:
                continue
            theirs = bnb.functional.dequantize_4bit(module.weight.data, module.quant_state)
            assert torch.equal(numbers_of(module), theirs)


def test_a_step_is_that_of_bitsandbytes() -> None:
    model, batch = qlora("nf4 twice", intermediate_size=128)  # see dense()
    graph = medley.capture(model, batch)
    loss = model(**batch).loss
    loss.backward()
    trainer = medley.Trainer(
        model,
        graph,
        medley.Plan(plan_of("rows", graph)),
        medley.AdamW(lr=1e-3),
        local=True,
        cluster=exactness.cluster(),
    )
    assert trainer.step(batch).loss == pytest.approx(loss.item(), rel=1e-6)
    found = trainer.gradients()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            largest = parameter.grad.abs().max()
            assert (found[name] - parameter.grad).abs().max() <= 1e-5 * largest, name


def test_its_adapter_is_read_by_peft_and_its_state_by_another_run(tmp_path: Path) -> None:
    model, batch = maker("nf4 twice")
    graph = medley.capture(model, batch)
    trainers = []
    for plan in ("tensor", "rows"):
        trainers.append(
            medley.Trainer(
                model,
                graph,
                medley.Plan(plan_of(plan, graph)),
                medley.AdamW(lr=1e-3),
                local=True,
                cluster=exactness.cluster(),
            )
        )
    first, second = trainers
    first.step(batch)
    first.save_adapter(tmp_path / "adapter")
    first.save(tmp_path / "state")
    second.load(tmp_path / "state")
    for name, tensor in first.parameters().items():
        assert torch.equal(tensor, second.parameters()[name]), name
    base, _ = made("nf4 twice")
    again = peft.PeftModel.from_pretrained(copy.deepcopy(base).unload(), tmp_path / "adapter")
    for name, tensor in again.named_parameters():
        if "lora_" in name:
            assert torch.equal(tensor, first.parameters()[name]), name


def test_weights_are_bytes_in_the_plan_and_are_not_kept_whole() -> None:
    model, batch = made("nf4 twice")
    graph = medley.capture(model, batch)
    text = graph.text()
    path = "base_model.model.model.layers.0.mlp.up_proj"
    assert f'parameter "{path}.weight"' in text
    uses = [line for line in text.splitlines() if "medley.dequantize_4bit" in line]
    layers = sum(type(module).__name__ == "Linear4bit" for module in model.modules())
    # Once in forward, and again in backward if a gradient flows through.
    assert layers < len(uses) <= 2 * layers


def test_sizes_alone_give_the_same_graph(tmp_path: Any, monkeypatch: Any) -> None:
    torch.manual_seed(0)
    made_model, batch = hf.llama(batch=ROWS, **SIZES)
    real = peft.get_peft_model(quantized.with_4bit(made_model), lora())
    whole = medley.capture(real, batch).text()

    def make() -> tuple[nn.Module, Any]:
        base, example = hf.llama(batch=ROWS, **SIZES)
        return peft.get_peft_model(quantized.with_4bit(base), lora()), example

    model, example = weightless.load(make)
    assert all(parameter.is_meta for parameter in model.parameters())
    assert medley.capture(model, example).text() == whole


def test_eight_bits_are_refused_by_a_sentence() -> None:
    model = nn.Sequential(bnb.nn.Linear8bitLt(8, 8, has_fp16_weights=False))
    with pytest.raises(CaptureError, match="Linear8bitLt.*expected load_in_4bit"):
        medley.capture(Loss(model), torch.randn(4, 8))


class Loss(nn.Module):
    """The mean square of a model's output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """Returns a scalar."""
        loss: Tensor = self.model(x).square().mean()
        return loss
