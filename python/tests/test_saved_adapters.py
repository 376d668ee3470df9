"""`save_adapter` writes the tensors and the config of peft's `save_pretrained`, for every type of
adapter."""

from __future__ import annotations

import copy
import json
import pathlib
from typing import Any

import exactness
import pytest
import torch
from torch import Tensor, nn

import medley

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")
safetensors_of = pytest.importorskip("safetensors")

ROWS, WORDS, ADDED = exactness.ROWS, 31, 2
PLAN = {
    "format": "medley-plan",
    "version": 1,
    "global_batch": ROWS,
    "pipelines": [{"microbatches": [{"rows": ROWS}], "stages": [{"mesh": {"devices": ["a/0/0"]}}]}],
}
ALL = ["q_proj", "embed_tokens", "lm_head"]
CAUSAL = {"task_type": "CAUSAL_LM"}


def lora(**fields: Any) -> Any:
    """Returns a LoRA of two ranks."""
    return peft.LoraConfig(
        **{"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False} | fields
    )


# The config of an adapter, and fields of the base model's.
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "embeddings": (lambda: lora(target_modules=ALL), {}),
    "embeddings by pattern": (
        lambda: lora(target_modules=r".*(q_proj|embed_tokens)", **CAUSAL),
        {},
    ),
    "tied embeddings": (
        lambda: lora(target_modules=["embed_tokens"]),
        {"tie_word_embeddings": True},
    ),
    "saved modules": (lambda: lora(modules_to_save=["embed_tokens", "lm_head"]), {}),
    "saved norm": (lambda: lora(modules_to_save=["norm"], **CAUSAL), {}),
    "trained tokens": (lambda: lora(trainable_token_indices=[WORDS, WORDS + 1]), {}),
    "trained tokens, tied": (
        lambda: lora(trainable_token_indices=[WORDS]),
        {"tie_word_embeddings": True},
    ),
    "tokens alone": (lambda: peft.TrainableTokensConfig(token_indices=[1, WORDS]), {}),
    "biases": (lambda: lora(bias="all"), {"attention_bias": True}),
    "dora": (lambda: lora(use_dora=True), {}),
    "ia3": (
        lambda: peft.IA3Config(
            target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
        ),
        {},
    ),
    "patterns": (
        lambda: lora(rank_pattern={"q_proj": 3}, alpha_pattern={"q_proj": 5}, use_rslora=True),
        {},
    ),
    "loha": (lambda: peft.LoHaConfig(r=2, target_modules=["q_proj"]), {}),
    "vera": (lambda: peft.VeraConfig(r=2, target_modules=["q_proj"], **CAUSAL), {}),
    "prompt": (lambda: peft.PromptTuningConfig(num_virtual_tokens=2, **CAUSAL), {}),
}


def base(seed: int, folder: pathlib.Path | None = None, **fields: Any) -> nn.Module:
    """Returns a model whose first weights are the same for all seeds, except those of two added
    words. `folder` receives the model before the addition."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=WORDS,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        use_cache=False,
        **fields,
    )
    model = transformers.LlamaForCausalLM(config)
    if folder is not None:
        model.save_pretrained(str(folder))
        model = transformers.LlamaForCausalLM.from_pretrained(str(folder))
    torch.manual_seed(seed)
    model.resize_token_embeddings(WORDS + ADDED, mean_resizing=False)
    return model  # type: ignore[no-any-return]


def config_of(folder: pathlib.Path) -> Any:
    """Returns the config of an adapter as peft reads it, with sets sorted."""
    found = json.loads((folder / "adapter_config.json").read_text())
    return {k: sorted(v) if isinstance(v, list) else v for k, v in found.items()}


def check(
    make: Any, fields: dict[str, Any], path: pathlib.Path, folder: pathlib.Path | None = None
) -> None:
    """Asserts that an adapter that was trained is written as peft writes it."""
    model = peft.get_peft_model(base(1, folder, **fields), make())
    ids = torch.randint(0, WORDS + ADDED, (ROWS, 5))
    batch: dict[str, Tensor] = {"input_ids": ids, "labels": ids.clone()}
    graph = medley.capture(model, batch, check=False)
    trainer = medley.Trainer(
        model,
        graph,
        medley.Plan(json.dumps(PLAN)),
        medley.SGD(lr=0.5),
        local=True,
        cluster=exactness.cluster(),
    )
    trainer.step(batch)
    trained = copy.deepcopy(model)
    own = dict(trained.named_parameters())
    with torch.no_grad():
        for name, value in trainer.parameters().items():
            own[name].copy_(value)
    theirs, ours = path / "theirs", path / "ours"
    trained.save_pretrained(str(theirs))
    trainer.save_adapter(str(ours))
    want, found = (
        safetensors.load_file(str(each / "adapter_model.safetensors")) for each in (theirs, ours)
    )
    assert set(found) == set(want)
    for name, value in want.items():
        assert torch.equal(found[name], value), name
    assert config_of(ours) == config_of(theirs)
    metadata = [
        safetensors_of.safe_open(each / "adapter_model.safetensors", "pt").metadata()
        for each in (theirs, ours)
    ]
    assert metadata[0] == metadata[1]


FEW = ("embeddings", "trained tokens, tied")
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind not in FEW]


@pytest.mark.parametrize("kind", [*FEW, *SLOW])
@pytest.mark.filterwarnings("ignore")
def test_saved_adapters_are_those_of_peft(kind: str, tmp_path: pathlib.Path) -> None:
    check(*KINDS[kind], tmp_path)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_saved_adapters_have_a_vocabulary_that_grew(tmp_path: pathlib.Path) -> None:
    check(lora, {}, tmp_path, tmp_path / "base")
