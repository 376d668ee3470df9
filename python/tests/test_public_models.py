"""Public models, made tiny, beside PyTorch: a few here, nightly all of `benchmarks/zoo`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("transformers")
from benchmarks.zoo import packages, page
from benchmarks.zoo.__main__ import GOOD, Model, read, train_apart

ROOT = Path(__file__).resolve().parents[2]
ONCE_REFUSED = [
    ("causal", "gpt_oss", "GptOssForCausalLM"),  # experts with biases: all compute all tokens
    ("causal", "roformer", "RoFormerForCausalLM"),  # looks for padding, to warn
    ("causal", "xlm", "XLMWithLMHeadModel"),  # asserts that no length is too large
    # The experts make lists of their tokens.
    ("seq2seq", "switch_transformers", "SwitchTransformersForConditionalGeneration"),
]
OTHERS = [
    Model("timm", "timm", "test_vit", ""),
    Model("torchvision", "torchvision, classes", "shufflenet_v2", ""),
    Model("diffusers", "diffusers", "DiTTransformer2DModel", ""),
]
LIMIT = 120


@pytest.mark.parametrize(("family", "kind", "name"), ONCE_REFUSED)
def test_models_train_as_in_pytorch(family: str, kind: str, name: str) -> None:
    found = train_apart(Model("transformers", f"transformers, {family}", kind, name), LIMIT)
    assert found["result"] in GOOD, found


@pytest.mark.slow
@pytest.mark.parametrize("model", OTHERS, ids=str)
def test_models_of_other_packages_train_as_in_pytorch(model: Model) -> None:
    # Looked for without importing it: other tests do not have these packages.
    if not (packages.SITE / model.zoo).is_dir() and importlib.util.find_spec(model.zoo) is None:
        pytest.skip(f"needs {model.zoo} (scripts/setup.sh --nightly)")
    found = train_apart(model, LIMIT)
    assert found["result"] in GOOD, found


def test_the_page_says_what_was_found() -> None:
    results = list(read(ROOT / "benchmarks" / "results" / "zoo.jsonl").values())
    assert (ROOT / "docs" / "models.md").read_text() == page.text(results)
