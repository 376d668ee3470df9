"""Models of peft, unchanged: adapters train like on one device, and frozen weights cost nothing but
their place."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch
from torch import Tensor, nn
from zoo import ZOO

import medley
from medley import _core, _testing
from medley_extras.models import hf

peft = pytest.importorskip("peft")

STEPS = 20
ROWS = exactness.ROWS
LAYERS = 2
SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tokens": 6,
}


def lora(**more: Any) -> Any:
    """Returns a LoRA of attention and MLP whose second factor is nonzero at the start."""
    targets = more.pop("target_modules", ["q_proj", "v_proj", "down_proj"])
    fields = {"r": 3, "lora_alpha": 6, "init_lora_weights": False} | more
    return peft.LoraConfig(target_modules=targets, task_type="CAUSAL_LM", **fields)


def ia3() -> Any:
    """Returns an IA3 of attention and MLP whose factors differ from one at the start."""
    return peft.IA3Config(
        target_modules=["k_proj", "v_proj", "down_proj"],
        feedforward_modules=["down_proj"],
        task_type="CAUSAL_LM",
        init_ia3_weights=False,
    )


def prompt() -> Any:
    """Returns a prompt of three tokens."""
    return peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)


def prefix() -> Any:
    """Returns keys and values of three tokens before all others."""
    return peft.PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)


CONFIGS = {
    "lora": lora,
    "rslora with dropout": functools.partial(lora, use_rslora=True, lora_dropout=0.1),
    "dora": functools.partial(lora, use_dora=True),
    "ia3": ia3,
    "prompt": prompt,
    "prefix": prefix,
}


def adapted(config: str, batch: int = ROWS, **more: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a tiny Llama with an adapter, and a batch."""
    torch.manual_seed(0)
    base, example = hf.llama(batch=batch, **SIZES)
    return peft.get_peft_model(base, CONFIGS[config](**more)), example


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS if name != "lora"]
MAKERS = {name: functools.partial(adapted, name) for name in CONFIGS}


def plan_by_hand(kind: str, graph: medley.Graph) -> str:
    """Returns a plan of two devices: uneven data parallelism, uneven tensor parallelism, or a
    pipeline."""
    mesh: dict[str, Any] = {"axes": ["x"], "shape": [2], "devices": ["a/0/0", "a/1/0"]}
    one: dict[str, Any] = {"mesh": mesh}
    rows: list[dict[str, Any]] = [{"rows": ROWS, "lengths": [4, 2]}]
    if kind == "tensor":
        rows = [{"rows": ROWS}]
        one["placements"] = {"*_proj*.weight": "S(0, part)"}
    return json.dumps(
        {
            "format": "medley-plan",
            "version": 1,
            "global_batch": ROWS,
            "parts": [{"name": "part", "shares": [3, 1]}],
            "pipelines": [{"microbatches": rows, "stages": [one]}],
        }
    )


def plan_of(kind: str, graph: medley.Graph) -> str:
    """Returns a plan by name: of plan_by_hand(), or drawn at random with a seed."""
    drawn = re.fullmatch(r"random (plan|pipeline|pipelines) (\d+)", kind)
    if drawn is None:
        return plan_by_hand(kind, graph)
    seed = int(drawn[2])
    devices = [f"a/{i}/0" for i in range(2 + seed % 3)]
    return {
        "plan": _testing.random_plan,
        "pipeline": _testing.random_pipeline,
        "pipelines": _testing.random_pipelines,
    }[drawn[1]](graph.core.text(), devices, ROWS, seed)


def train(config: str, kinds: list[str]) -> None:
    """Asserts that an adapter trains as in plain PyTorch under plans of these kinds."""
    with exactness.double_precision():
        model, batch, graph = exactness.captured(MAKERS[config], ROWS)
        want = exactness.train_eager(model, batch, STEPS, 1e-3, clip=1.0)
        for kind in kinds:
            got = exactness.train_plan(
                model, graph, plan_of(kind, graph), batch, STEPS, 1e-3, clip=1.0
            )
            # A prompt's model has its embedding twice, and the graph has it at the second place.
            worst = exactness.compare(got, want, ordered=config not in ("prompt", "prefix"))
            print(f"{config}, {kind}: {worst:.1e}")


def test_lora_trains_like_one_device() -> None:
    train("lora", ["random pipelines 1"])


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_adapters_train_like_one_device_under_any_plan(config: str) -> None:
    kinds = ["plan", "pipeline", "pipelines"]
    train(config, ["rows", "tensor", *(f"random {k} {s}" for k in kinds for s in range(3))])


# --- frozen weights -------------------------------------------------------------------------------


@functools.cache
def captured(config: str) -> tuple[nn.Module, dict[str, Tensor], medley.Graph]:
    """Returns a model with an adapter, its batch and its graph."""
    model, batch = MAKERS[config]()
    return model, batch, medley.capture(model, batch)


def shapes(model: nn.Module, graph: medley.Graph, trained: bool) -> dict[str, torch.Size]:
    """Returns the shapes of the parameters that are trained, or frozen, as the graph has them."""
    own = {n: p.shape for n, p in model.named_parameters() if p.requires_grad == trained}
    inputs = {name for kind, name, _, _ in graph.core.inputs if kind == "parameter"}
    return {name: shape for name, shape in own.items() if name in inputs}


def test_frozen_weights_have_no_gradient_and_no_product_is_made_for_one() -> None:
    model, _, graph = captured("lora")
    trained = shapes(model, graph, True)
    text = graph.text()
    assert set(re.findall(r'output gradient "([^"]*)"', text)) == trained.keys()
    wanted = {tuple(shape) for shape in trained.values()}
    products = re.findall(r"= aten\.mm\.default\(.* : \w+\[([^]]*)\] @backward", text)
    without_rows = [
        tuple(int(size) for size in each.split(", ")) for each in products if "b" not in each
    ]
    # One matmul for the gradient of each adapter, transposed or not, and no other one.
    assert len(without_rows) == len(trained)
    assert all(shape in wanted or shape[::-1] in wanted for shape in without_rows)


def test_frozen_weights_cost_no_gradient_byte() -> None:
    model, _, graph = captured("lora")
    frozen, trained = (
        sum(shape.numel() for shape in shapes(model, graph, kept).values())
        for kept in (False, True)
    )
    plan = plan_by_hand("rows", graph)
    result: dict[str, Any] = _core.simulate(
        _core.Program(graph.core, _core.Plan(plan), exactness.cluster()), exactness.cluster()
    )
    # Each of two devices sends half of the gradients and half of their sums, and a few scalars.
    assert {sent // (4 * trained) for sent in result["bytes_by_link"].values() if sent} == {1}
    assert max(result["bytes_by_link"].values()) <= 4 * trained + 64
    for device in result["devices"].values():
        assert device["persistent"] >= 4 * (frozen + 3 * trained)
        assert device["persistent"] <= 4 * (frozen + 3 * trained) + 64  # two moments, scalars
    assert frozen > 10 * trained


@pytest.mark.slow
def test_stages_before_the_first_adapter_have_no_backward_phase() -> None:
    model, batch = adapted("lora", layers_to_transform=[LAYERS - 1])
    graph = medley.capture(model, batch)
    first = next(name for name in graph.core.stable_names() if f"layers.{LAYERS - 1}." in name)
    stages = [
        {"mesh": {"devices": ["a/0/0"]}},
        {"mesh": {"devices": ["a/1/0"]}, "first": first},
    ]
    pipeline = {"microbatches": [{"rows": ROWS}], "stages": stages}
    plan = medley.Plan.from_dict(
        {"format": "medley-plan", "version": 1, "global_batch": ROWS, "pipelines": [pipeline]}
    )
    trainer = medley.Trainer(model, graph, plan, local=True, cluster=exactness.cluster(2))
    before, behind = trainer.program_text().split("stage devices")[1:]
    assert "@backward" not in before and "@backward" in behind
    assert "medley.adamw" not in before and "medley.adamw" in behind


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["lora", *OTHERS])
def test_peft_reads_what_save_adapter_writes(config: str, tmp_path: Path) -> None:
    model, batch, graph = captured(config)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    plan = medley.plan(graph, exactness.cluster(2), global_batch=ROWS)
    trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=1e-2), local=True)
    trainer.step(batch)
    trainer.save_adapter(tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert {path.name for path in tmp_path.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    loaded = peft.PeftModel.from_pretrained(hf.llama(batch=ROWS, **SIZES)[0], tmp_path)
    found, trained = dict(loaded.named_parameters()), shapes(model, graph, True)
    now = trainer.parameters()
    assert all(torch.equal(found[name], now[name]) for name in trained)
    assert not any(torch.equal(before[name], now[name]) for name in trained)


def test_the_adapter_of_a_wrapped_model_with_constants_is_written(tmp_path: Path) -> None:
    model, batch = adapted("prefix")  # it reads a table of numbers that no module has
    wrapped = nn.DataParallel(model)
    graph = medley.capture(wrapped, batch)
    assert graph.constants
    plan = medley.plan(graph, exactness.cluster(2), global_batch=ROWS)
    trainer = medley.Trainer(wrapped, graph, plan, medley.AdamW(lr=1e-2), local=True)
    trainer.step(batch)
    trainer.save_adapter(tmp_path)
    loaded = peft.PeftModel.from_pretrained(hf.llama(batch=ROWS, **SIZES)[0], tmp_path)
    name = "prompt_encoder.default.embedding.weight"
    found = loaded.get_parameter(name)
    assert torch.equal(found, trainer.parameters()[f"module.{name}"])
    assert not torch.equal(found, model.get_parameter(name))


def test_a_model_without_an_adapter_is_refused() -> None:
    model, batch = ZOO["mlp"]()
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, exactness.cluster(2), global_batch=4)
    trainer = medley.Trainer(model, graph, plan, local=True)
    with pytest.raises(ValueError, match=r"expected what peft.get_peft_model"):
        trainer.save_adapter("nowhere")
