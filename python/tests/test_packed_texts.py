"""Texts packed into one row do not attend to each other, as in plain transformers. Positions that
restart separate them if the batch has no mask."""

from __future__ import annotations

from typing import Any

import exactness
import plain_torch
import pytest
import torch
from torch import Tensor, nn

import medley

transformers = pytest.importorskip("transformers")

ROWS, TOKENS, WORDS = plain_torch.ROWS, 12, 61
SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "use_cache": False,
    "attention_dropout": 0.0,
    "pad_token_id": 0,
}
LAYERS = ["full_attention", "sliding_attention"]
MODELS: dict[str, dict[str, Any]] = {
    "full": {"model_type": "llama"},
    "scores written out by the model": {"model_type": "llama", "attn_implementation": "eager"},
    "sliding": {"model_type": "mistral", "sliding_window": 3},
    "full and sliding": {"model_type": "gemma3_text", "sliding_window": 3, "layer_types": LAYERS},
    "chunked": {
        "model_type": "llama4_text",
        "intermediate_size_mlp": 24,
        "attention_chunk_size": 3,
        "num_local_experts": 2,
        "moe_layers": [],
        "no_rope_layers": [1, 0],
        "layer_types": ["chunked_attention", "full_attention"],
    },
    "both directions": {"model_type": "llama", "is_causal": False},
    "sinks": {
        "model_type": "gpt_oss",
        "sliding_window": 3,
        "layer_types": LAYERS,
        "num_local_experts": 2,
        "num_experts_per_tok": 2,
        "experts_implementation": "eager",
    },
}


def language_model(fields: dict[str, Any]) -> nn.Module:
    """Returns a small causal language model in float64, without dropout."""
    torch.manual_seed(0)
    fields = {**SMALL, **fields}
    how = {
        name: fields.pop(name, None)
        for name in ("attn_implementation", "experts_implementation")
        if name in fields
    }
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    model = transformers.AutoModelForCausalLM.from_config(config, **how)
    return model.double()  # type: ignore[no-any-return]


def positions_of(lengths: list[int]) -> Tensor:
    """Returns the positions of texts of these lengths in sequence, [TOKENS]."""
    return torch.cat([torch.arange(length) for length in lengths])


def packed(*lengths: list[int], seed: int = 0) -> dict[str, Tensor]:
    """Returns a batch of ROWS rows, cut into texts of these lengths in turn."""
    ids = torch.randint(1, WORDS, (ROWS, TOKENS), generator=torch.Generator().manual_seed(seed))
    rows = [positions_of(lengths[i % len(lengths)]) for i in range(ROWS)]
    return {"input_ids": ids, "labels": ids.clone(), "position_ids": torch.stack(rows)}


# The last batch has one text per row: the same graph then equals a plain causal mask.
BATCHES = [
    packed([5, 7]),
    packed([1, 2, 9], [12], [4, 4, 4], seed=1),
    packed([12], seed=2),
]


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name != "sliding"]


@pytest.mark.parametrize("name", ["sliding", *SLOW])
def test_packed_texts_do_not_see_one_another(name: str) -> None:
    with exactness.double_precision():
        plain_torch.check(language_model(MODELS[name]), BATCHES, ["two devices"])


@pytest.mark.slow
@pytest.mark.parametrize("plan", plain_torch.PLANS)
def test_packed_texts_train_under_any_plan(plan: str) -> None:
    with exactness.double_precision():
        plain_torch.check(language_model(MODELS["full and sliding"]), BATCHES, [plan])


# A chunk starts with the row, not at a multiple of its length.
@pytest.mark.slow
def test_one_text_may_start_at_any_position() -> None:
    batches = [packed([12]), packed([12], seed=1)]
    batches[1]["position_ids"] += torch.arange(ROWS).unsqueeze(1)
    with exactness.double_precision():
        plain_torch.check(language_model(MODELS["chunked"]), batches, ["two devices"])


class FromWords(nn.Module):
    """Positions that a model makes itself: each word 1 ends a text."""

    def __init__(self) -> None:
        super().__init__()
        self.model = language_model({"model_type": "llama", "num_hidden_layers": 1})

    def forward(self, input_ids: Tensor) -> Tensor:
        """Returns the loss of the next word."""
        places = torch.arange(TOKENS).expand(len(input_ids), -1)
        ends = torch.where(input_ids == 1, places + 1, 0)
        starts = torch.nn.functional.pad(ends.cummax(1).values[:, :-1], (1, 0))
        output = self.model(input_ids, labels=input_ids, position_ids=places - starts)
        return output.loss  # type: ignore[no-any-return]


def test_positions_may_be_made_of_words() -> None:
    batches = [{"input_ids": torch.randint(1, 4, (ROWS, TOKENS))} for _ in range(2)]
    with exactness.double_precision():
        plain_torch.check(FromWords(), batches, ["two stages"])


@pytest.mark.slow
def test_positions_may_be_one_row_for_all() -> None:
    batches = [packed([5, 7]), packed([3, 4, 5], seed=1)]
    for batch in batches:
        batch["position_ids"] = batch["position_ids"][:1]
    model = language_model({"model_type": "llama", "num_hidden_layers": 1})
    with exactness.double_precision():
        plain_torch.check(model, batches, ["two devices"])


class FixedCuts(nn.Module):
    """Positions that are the same in every batch: texts of `length` words each."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.length = length
        self.model = language_model({"model_type": "llama", "num_hidden_layers": 1})

    def forward(self, input_ids: Tensor) -> Tensor:
        """Returns the loss of the next word."""
        positions = torch.arange(TOKENS).remainder(self.length).unsqueeze(0)
        output = self.model(input_ids, labels=input_ids, position_ids=positions)
        return output.loss  # type: ignore[no-any-return]


@pytest.mark.slow
def test_positions_may_be_numbers_of_the_model() -> None:
    batches = [{"input_ids": torch.randint(1, WORDS, (ROWS, TOKENS))}]
    with exactness.double_precision():
        plain_torch.check(FixedCuts(4), batches, ["two devices"])


# The fused kernel of causal attention needs no mask in memory.
def test_one_text_in_each_row_has_no_mask() -> None:
    batch = {"input_ids": torch.randint(1, WORDS, (ROWS, TOKENS))}
    whole = medley.capture(FixedCuts(TOKENS), batch, check=False).text()
    assert "none, true, 0.5) " in whole and "aten.cumsum" not in whole
