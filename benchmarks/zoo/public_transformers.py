"""Models of transformers, made tiny: all causal, masked, sequence-to-sequence and image models."""

from __future__ import annotations

from torch import Tensor, nn

from benchmarks.zoo import tiny_configs

FAMILIES = {
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "seq2seq": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "image": "MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
}


def listed() -> list[tuple[str, str, str]]:
    """Returns (family, type of config, class) of all models."""
    from transformers.models.auto import modeling_auto

    found = []
    for family, table in FAMILIES.items():
        for kind, classes in getattr(modeling_auto, table).items():
            for each in classes if isinstance(classes, tuple) else (classes,):
                found.append((f"transformers, {family}", kind, each))
    return found


def build(kind: str, name: str, rows: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the tiny form of a model, and a batch."""
    import transformers

    from medley_extras.models import hf

    known = transformers.AutoConfig.for_model(kind)
    # The default kernel of routed experts has no float64; capture is unaffected.
    fields = {**tiny_configs.tiny_fields(known), "experts_implementation": "eager"}
    config = transformers.AutoConfig.for_model(kind, **fields)
    config.architectures = [name]
    return hf.build(config, batch=rows, tokens=tiny_configs.TOKENS)
