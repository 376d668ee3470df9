"""Public models, made tiny, compared with PyTorch: a few here, nightly all of `benchmarks/zoo`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("transformers")
pytest.importorskip("peft")
from benchmarks.zoo import packages, page
from benchmarks.zoo.__main__ import GOOD, Model, read, train_apart

ROOT = Path(__file__).resolve().parents[2]
CAUSAL = "transformers, causal"
ONCE_REFUSED = [
    # Experts with biases: all of them compute all tokens.
    Model("transformers", CAUSAL, "gpt_oss", "GptOssForCausalLM"),
    # Looks for padding, to warn.
    Model("transformers", CAUSAL, "roformer", "RoFormerForCausalLM"),
    # Asserts that no length is too large.
    Model("transformers", CAUSAL, "xlm", "XLMWithLMHeadModel"),
    # Draws a random value to decide whether to skip a layer, and never skips one.
    Model("peft", "peft", "llama", "LoHa"),
]
OTHERS = [
    Model("timm", "timm", "test_vit", ""),
    Model("torchvision", "torchvision, classes", "shufflenet_v2", ""),
    Model("diffusers", "diffusers", "DiTTransformer2DModel", ""),
    # Its experts make lists of their tokens.
    Model(
        "transformers",
        "transformers, seq2seq",
        "switch_transformers",
        "SwitchTransformersForConditionalGeneration",
    ),
]
LIMIT = 120


@pytest.mark.parametrize("model", ONCE_REFUSED, ids=str)
def test_models_train_as_in_pytorch(model: Model) -> None:
    found = train_apart(model, LIMIT)
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
