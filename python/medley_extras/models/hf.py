"""Models of the transformers package, random weights: GPT-2, Llama, BERT, ViT, or any config."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from medley.files import read_text

_TINY: dict[str, dict[str, Any]] = {
    "gpt2": {"vocab_size": 256, "n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4},
    "llama": {
        "vocab_size": 256,
        "max_position_embeddings": 32,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    "mixtral": {
        "vocab_size": 256,
        "max_position_embeddings": 32,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 5,
    },
    "qwen3_moe": {
        "vocab_size": 256,
        "max_position_embeddings": 32,
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_experts": 6,
        "num_experts_per_tok": 3,
        "decoder_sparse_step": 2,
    },
    "t5": {
        "vocab_size": 256,
        "n_positions": 16,
        "d_model": 64,
        "d_kv": 16,
        "d_ff": 128,
        "num_layers": 2,
        "num_heads": 4,
        "relative_attention_num_buckets": 8,
        "relative_attention_max_distance": 12,
    },
    "bert": {
        "vocab_size": 256,
        "max_position_embeddings": 32,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
    "vit": {
        "image_size": 16,
        "patch_size": 4,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_labels": 10,
    },
}
KINDS = tuple(_TINY)
_OWN = ("batch", "tokens", "dropout")  # arguments of build()
_DROPOUTS = re.compile("dropout|pdrop$|layerdrop|drop_path_rate")  # fields of configs
_IMAGE_SIZE = 224  # for configs without one: convolutions take any
_FAMILIES = (
    "AutoModelForImageClassification",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForSeq2SeqLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
)


def _family(config: Any) -> str:
    """Returns the auto class of transformers that builds the model for training."""
    import transformers

    names = " ".join(config.architectures)
    for family in _FAMILIES:
        if family.removeprefix("AutoModel") in names:
            return family
    for family in _FAMILIES:
        if type(config) in getattr(transformers, family)._model_mapping:
            return family
    raise ValueError(
        f"{config.model_type}: expected a language model (causal, masked, sequence to sequence) "
        "or a classifier (of images, sequences, tokens)"
    )


def _longest(model: Any) -> int:
    """Returns the maximum number of tokens of the model, or 128 without a limit."""
    config = model.config
    for name in ("max_position_embeddings", "n_positions"):
        if limit := getattr(config, name, None):
            # RoBERTa counts positions from the one after padding.
            for path, module in model.named_modules():
                padding = getattr(module, "padding_idx", None)
                if path.endswith("position_embeddings") and padding is not None:
                    limit -= padding + 1
            return int(limit)
    return 128


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split())


def build(
    config: Any, batch: int = 4, tokens: int | None = None, dropout: float | None = 0.0
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model of a transformers config, in training mode, and an example batch.

    `tokens` defaults to the maximum of the model, or 128. `dropout` includes stochastic depth; None
    keeps the config's own. Raises ValueError if transformers cannot build the model.
    """
    import transformers

    config.use_cache = False
    config.architectures = config.architectures or []
    if dropout is not None:
        for name, value in config.to_dict().items():
            if _DROPOUTS.search(name) and isinstance(value, float):
                setattr(config, name, dropout)
    family = _family(config)
    if family == "AutoModelForSeq2SeqLM" and not hasattr(config, "decoder_start_token_id"):
        config.decoder_start_token_id = config.pad_token_id or 0
    if family == "AutoModelForSequenceClassification" and config.pad_token_id is None:
        config.pad_token_id = 0
    try:
        model: nn.Module = getattr(transformers, family).from_config(config)
    except Exception as error:  # fields that do not match each other
        raise ValueError(f"hf:{config.model_type}: {_in_a_line(error)}") from None
    model.train()
    if family == "AutoModelForImageClassification":
        size = getattr(config, "image_size", _IMAGE_SIZE)
        height, width = size if isinstance(size, list | tuple) else (size, size)
        shape = (batch, getattr(config, "num_channels", 3), height, width)
        images = torch.randn(shape, device="cpu")
        labels = torch.randint(0, config.num_labels, (batch,), device="cpu")
        return model, {"pixel_values": images, "labels": labels}
    if not hasattr(config, "vocab_size"):
        raise ValueError(
            f"hf:{config.model_type}: its config has no vocab_size, expected a model of tokens or "
            "of images; for any other write a function that returns it and an example batch"
        )
    tokens = tokens or _longest(model)
    ids = torch.randint(0, config.vocab_size, (batch, tokens), device="cpu")
    if family == "AutoModelForCausalLM":
        return model, {"input_ids": ids, "labels": ids.clone()}
    if family == "AutoModelForSeq2SeqLM":
        labels = torch.randint(0, config.vocab_size, (batch, max(tokens // 2, 1)), device="cpu")
        return model, {"input_ids": ids, "labels": labels}
    lengths = torch.randint(tokens // 2, tokens + 1, (batch, 1), device="cpu")
    padded = {
        "input_ids": ids,
        "attention_mask": (torch.arange(tokens, device="cpu")[None, :] < lengths).long(),
    }
    if "Classification" in family:
        labelled = ids[:, 0] if "Sequence" in family else ids
        return model, padded | {"labels": labelled % config.num_labels}
    masked = torch.rand((batch, tokens), device="cpu") < 0.15
    masked[:, 0] = True
    return model, padded | {"labels": torch.where(masked, ids, -100)}


def make(kind: str, size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model of one of KINDS: its tiny size, or transformers' default.

    Overrides: fields of the config, and batch, tokens, dropout of `build`.
    """
    if size not in ("tiny", "default"):
        raise ValueError(f"hf.{kind}: unknown size {size!r}; expected tiny or default")
    return _configured(kind, _TINY[kind] if size == "tiny" else {}, overrides)


def _configured(
    kind: str, fields: dict[str, Any], overrides: dict[str, Any]
) -> tuple[nn.Module, dict[str, Tensor]]:
    own = {name: overrides.pop(name) for name in _OWN if name in overrides}
    for name in ("batch", "tokens"):
        value = own.get(name, 1)
        if not (isinstance(value, int) and value > 0):
            raise ValueError(f"hf:{kind}: {name}: found {value!r}, expected a whole number > 0")
    return build(_config(kind, fields, overrides), **own)


def _config(kind: str, fields: dict[str, Any], overrides: dict[str, Any]) -> Any:
    import transformers

    known = transformers.AutoConfig.for_model(kind)
    unknown = sorted(
        name  # choices of kernels are stored as _attn_implementation and similar
        for name in overrides
        if not hasattr(known, name) and not hasattr(known, f"_{name}")
    )
    if unknown:
        raise ValueError(
            f"hf:{kind}: unknown {unknown}; expected {', '.join(_OWN)} or fields of "
            f"{type(known).__name__}"
        )
    try:
        return transformers.AutoConfig.for_model(kind, **{**fields, **overrides})
    except Exception as error:  # missing in other versions of the package
        raise ValueError(f"hf:{kind}: {_in_a_line(error)}") from None


def load(
    name: str, options: dict[str, Any], batch: tuple[int, int] | None
) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model of `hf:name?options` and its example batch, with `batch` = (rows, length)
    if given. The name is one of KINDS or a config.json. Raises ValueError for any other."""
    if importlib.util.find_spec("transformers") is None:
        raise ValueError(f"hf:{name}: needs a package: pip install transformers")
    if batch is not None:
        options = {**options, "batch": batch[0], "tokens": batch[1]}
    if name in KINDS:
        return make(name, **options)
    if not Path(name).is_file():
        raise ValueError(f"{name}: cannot be read: no such file, and none of {', '.join(KINDS)}")
    return from_file(name, **options)


def gpt2(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns GPT-2 (causal language model). Overrides: fields of GPT2Config, batch, dropout."""
    return make("gpt2", size, **overrides)


def llama(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns Llama with grouped queries. Overrides: fields of LlamaConfig, batch, tokens."""
    return make("llama", size, **overrides)


def mixtral(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns Mixtral, every layer routed. Overrides: fields of MixtralConfig, batch, tokens."""
    return make("mixtral", size, **overrides)


def qwen3_moe(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns Qwen3-MoE. Overrides: fields of Qwen3MoeConfig, batch, tokens."""
    return make("qwen3_moe", size, **overrides)


def t5(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns T5 (sequence to sequence). Overrides: fields of T5Config, batch, tokens, dropout."""
    return make("t5", size, **overrides)


def bert(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns BERT (masked language model, padded). Overrides: fields of BertConfig, batch."""
    return make("bert", size, **overrides)


def vit(size: str = "tiny", **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns ViT (image classifier). Overrides: fields of ViTConfig, batch, dropout."""
    return make("vit", size, **overrides)


def from_file(path: str, **overrides: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model of a config.json, for names such as `hf:config.json`. Overrides as in
    `make`. Raises ValueError if transformers does not know the model of the config."""
    return _configured(*_read(path), overrides)


def config_of(path: str, **overrides: Any) -> Any:
    """Returns the transformers config of a config.json, with other values for some fields. Raises
    ValueError if transformers does not know the model of the config."""
    return _config(*_read(path), overrides)


def _read(path: str) -> tuple[str, dict[str, Any]]:
    """Returns the model type and the fields of a config.json."""
    import transformers

    text = read_text(path)
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: expected the config.json of a model: {error}") from None
    kind = fields.pop("model_type", None) if isinstance(fields, dict) else None
    if not isinstance(kind, str):
        raise ValueError(f"{path}: found no model_type, expected the config.json of a model")
    if kind not in transformers.CONFIG_MAPPING:
        raise ValueError(f"{path}: model_type: not known to transformers: {kind!r}")
    return kind, fields
