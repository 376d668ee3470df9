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

import medley
from medley import _core, _testing
from medley.models import hf

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
    """Returns a LoRA of attention and MLP whose second factor is not zero at the start."""
    targets = more.pop("target_modules", ["q_proj", "v_proj", "down_proj"])
    fields = {"r": 3, "lora_alpha": 6, "init_lora_weights": False} | more
    return peft.LoraConfig(target_modules=targets, task_type="CAUSAL_LM", **fields)


CONFIGS = {
    "lora": lora,
    "rslora with dropout": functools.partial(lora, use_rslora=True, lora_dropout=0.1),
}


def adapted(
    config: str, batch: int = ROWS, **more: Any
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a tiny Llama with an adapter, and a batch."""
    torch.manual_seed(0)
    base, example = hf.llama(batch=batch, **SIZES)
    return peft.get_peft_model(base, CONFIGS[config](**more)), example


MAKERS = {name: functools.partial(adapted, name) for name in CONFIGS}


def plan_by_hand(kind: str, graph: medley.Graph) -> str:
    """Returns a plan of two devices: uneven data parallelism, uneven tensor parallelism, or a
    pipeline."""
    mesh: dict[str, Any] = {"axes": ["x"], "shape": [2], "devices": ["a/0/0", "a/1/0"]}
    one: dict[str, Any] = {"mesh": mesh}
    rows: list[dict[str, Any]] = [{"rows": ROWS, "lengths": [4, 2]}]
    if kind == "tensor":
        rows = [{"rows": ROWS}]
        one["states"] = {"*_proj*.weight": "S(0, part)"}
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
    """Asserts that an adapter trains like with plain PyTorch under plans of these kinds."""
    with exactness.double_precision():
        model, batch, graph = exactness.captured(MAKERS[config], ROWS)
        want = exactness.train_eager(model, batch, STEPS, 1e-3, clip=1.0)
        for kind in kinds:
            got = exactness.train_plan(
                model, graph, plan_of(kind, graph), batch, STEPS, 1e-3, clip=1.0
            )
            worst = exactness.compare(got, want)
            print(f"{config}, {kind}: {worst:.1e}")


def test_lora_trains_like_one_device() -> None:
    train("lora", ["rows", "tensor", "random pipelines 1"])


@pytest.mark.slow
@pytest.mark.parametrize("config", CONFIGS)
def test_adapters_train_like_one_device_under_any_plan(config: str) -> None:
    kinds = ["plan", "pipeline", "pipelines"]
    train(config, ["rows", "tensor", *(f"random {k} {s}" for k in kinds for s in range(3))])


# --- frozen weights -------------------------------------------------------------------------------


def shapes(graph: medley.Graph, trained: bool, model: nn.Module) -> dict[str, list[int]]:
    """Returns the shapes of the parameters that are trained, or frozen, as the graph has them."""
    own = {n for n, p in model.named_parameters() if p.requires_grad == trained}
    return {
        name: [int(size) for size in shape.strip("[]").split(", ")]
        for kind, name, _, shape in graph.core.inputs
        if kind == "parameter" and name in own
    }


def test_frozen_weights_have_no_gradient_and_no_state() -> None:
    model, batch = MAKERS["lora"]()
    graph = medley.capture(model, batch)
    frozen, trained = shapes(graph, False, model), shapes(graph, True, model)
    text = graph.text()
    assert set(re.findall(r'output gradient "([^"]*)"', text)) == trained.keys()
    # A product that made the gradient of a frozen weight would have its shape, or be turned.
    made = re.findall(r"aten\.\w*mm\.default\(.*: \w+\[([^]]*)\] @backward", text)
    wanted = {tuple(sizes) for sizes in trained.values()}
    for sizes in made:
        if "b" in sizes:
            continue
        shape = tuple(int(size) for size in sizes.split(", "))
        assert shape in wanted or shape[::-1] in wanted, shape
    assert frozen


def test_frozen_weights_cost_no_gradient_byte() -> None:
    model, batch = MAKERS["lora"]()
    graph = medley.capture(model, batch)
    elements = {
        kept: sum(torch.Size(sizes).numel() for sizes in shapes(graph, kept, model).values())
        for kept in (False, True)
    }
    plan = plan_by_hand("rows", graph)
    result: dict[str, Any] = _core.simulate_plan(graph.core, plan, exactness.cluster())
    # Of two devices each sends half of the gradients and half of their sums, and a few scalars.
    gradients = 4 * elements[True]
    for sent in result["bytes_by_link"].values():
        assert gradients * 0.9 <= sent <= gradients + 64
    for device in result["devices"].values():
        # Two moments and the gradient; of what is frozen, the weights.
        lasting = 4 * (elements[False] + 4 * elements[True])
        assert elements[True] * 16 < device["persistent"] - 4 * elements[False]
        assert device["persistent"] <= lasting + 4096


def test_stages_before_the_first_adapter_have_no_backward_phase() -> None:
    model, batch = adapted("lora", layers_to_transform=[LAYERS - 1])
    graph = medley.capture(model, batch)
    names = [f"a/{i}/0" for i in range(2)]
    plan = json.loads(_testing.random_pipeline(graph.core.text(), names, ROWS, 0))
    backward = [line for line in graph.text().splitlines() if " @backward" in line]
    assert not [line for line in backward if "layers.0." in line]
    assert plan


# --- files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["lora"])
def test_peft_reads_what_save_adapter_writes(config: str, tmp_path: Path) -> None:
    model, batch = MAKERS[config]()
    base, _ = hf.llama(batch=ROWS, **SIZES)
    base.load_state_dict(MAKERS[config]()[0].get_base_model().state_dict(), strict=False)
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, exactness.cluster(2), global_batch=ROWS)
    trainer = medley.Trainer(model, graph, plan, medley.AdamW(lr=1e-2), local=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    trainer.step(batch)
    trainer.save_adapter(tmp_path)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    fresh, _ = hf.llama(batch=ROWS, **SIZES)
    loaded = peft.PeftModel.from_pretrained(fresh, tmp_path)
    found = dict(loaded.named_parameters())
    for name, value in trainer.parameters().items():
        if "lora_" in name:
            assert torch.equal(found[name], value), name


def test_a_model_without_an_adapter_is_refused() -> None:
    with exactness.double_precision():
        pass
    from zoo import ZOO

    model, batch = ZOO["mlp"]()
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, exactness.cluster(2), global_batch=4)
    trainer = medley.Trainer(model, graph, plan, local=True)
    with pytest.raises(ValueError, match=r"expected what peft.get_peft_model"):
        trainer.save_adapter("nowhere")
