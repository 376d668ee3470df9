"""Public models, made tiny, beside PyTorch: one of each kind here, all in `benchmarks/zoo`."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")
from benchmarks.zoo import training
from benchmarks.zoo.__main__ import FAMILIES, names, train

ONCE_REFUSED = [
    ("gpt_oss", "GptOssForCausalLM"),  # experts with biases: all of them compute all tokens
    ("roformer", "RoFormerForCausalLM"),  # looks for padding, to warn
]


@pytest.mark.parametrize(("kind", "name"), ONCE_REFUSED)
def test_models_train_as_in_pytorch(kind: str, name: str) -> None:
    found = train(kind, name)
    assert found["result"] in (training.EXACT, training.EXACT_SINGLE), found


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_tenth_model_of_a_family(family: str) -> None:
    for kind, name in names(family)[::10]:
        found = train(kind, name)
        assert found["result"] not in (training.WRONG, training.CRASHED), (kind, found)
