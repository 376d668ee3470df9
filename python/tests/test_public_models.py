"""Public models, made tiny, beside PyTorch: one of each kind here, all in `benchmarks/zoo`."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
from benchmarks.zoo import training
from benchmarks.zoo.__main__ import FAMILIES, names, train

# Experts with biases and gates of their own: all compute all tokens.
UNUSUAL_EXPERTS = ("gpt_oss", "GptOssForCausalLM")


@pytest.mark.filterwarnings("ignore:GptOssExperts")
def test_experts_of_unusual_forms_train_as_in_pytorch() -> None:
    found = train(*UNUSUAL_EXPERTS)
    assert found["result"] in (training.EXACT, training.EXACT_SINGLE), found


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tenth_model_of_a_family(family: str) -> None:
    for kind, name in names(family)[::10]:
        found = train(kind, name)
        assert found["result"] not in (training.WRONG, training.CRASHED), (kind, found)
