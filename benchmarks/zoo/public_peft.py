"""Adapters of peft on tiny models of transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from benchmarks.zoo import tiny_configs

# By type of the base: task, layers with adapters, and the layer whose input IA3 scales.
BASES: dict[str, tuple[str, list[str], str]] = {
    "llama": ("CAUSAL_LM", ["q_proj", "v_proj", "down_proj"], "down_proj"),
    "gpt2": ("CAUSAL_LM", ["c_attn", "c_proj"], "c_proj"),
    "bert": ("SEQ_CLS", ["query", "value"], "value"),
}
_LORA: dict[str, Any] = {"r": 3, "lora_alpha": 6, "init_lora_weights": False}
# By name: class of the config, and its fields. "targets" and "feedforward" are those of the base.
ADAPTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "LoRA": ("LoraConfig", _LORA),
    "LoRA with biases": ("LoraConfig", _LORA | {"bias": "all"}),
    "rsLoRA": ("LoraConfig", _LORA | {"use_rslora": True}),
    "DoRA": ("LoraConfig", _LORA | {"use_dora": True}),
    "PiSSA": ("LoraConfig", {"r": 3, "lora_alpha": 6, "init_lora_weights": "pissa"}),
    "AdaLoRA": ("AdaLoraConfig", {"init_r": 4, "target_r": 2, "total_step": 10}),
    "BOFT": ("BOFTConfig", {"boft_block_size": 4}),
    "FourierFT": ("FourierFTConfig", {"n_frequency": 16}),
    "HRA": ("HRAConfig", {"r": 4}),
    "IA3": ("IA3Config", {"init_ia3_weights": False, "feedforward": True}),
    "LoHa": ("LoHaConfig", {"r": 3}),
    "LoKr": ("LoKrConfig", {"r": 3}),
    "OFT": ("OFTConfig", {"oft_block_size": 4, "r": 0}),
    "P-tuning": ("PromptEncoderConfig", {"num_virtual_tokens": 3, "encoder_hidden_size": 16}),
    "VeRA": ("VeraConfig", {"r": 4}),
    "VB-LoRA": ("VBLoRAConfig", {"r": 2, "num_vectors": 8, "vector_length": 8, "topk": 2}),
    "prefix tuning": ("PrefixTuningConfig", {"num_virtual_tokens": 3}),
    "prompt tuning": ("PromptTuningConfig", {"num_virtual_tokens": 3}),
}
_EVERYWHERE = ("LoRA", "DoRA", "IA3", "prompt tuning")
_OF_PROMPTS = ("PromptEncoderConfig", "PrefixTuningConfig", "PromptTuningConfig")


def listed() -> list[tuple[str, str, str]]:
    """Returns (family, name, class) of all models."""
    return [
        ("peft", base, adapter)
        for base in BASES
        for adapter in (ADAPTERS if base == "llama" else _EVERYWHERE)
    ]


def build(name: str, adapter: str, rows: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a tiny model with an adapter, and a batch."""
    import peft
    import transformers

    from medley_extras.models import hf

    task, targets, feedforward = BASES[name]
    known = transformers.AutoConfig.for_model(name)
    config = transformers.AutoConfig.for_model(name, **tiny_configs.tiny_fields(known))
    config.architectures = ["BertForSequenceClassification"] if task == "SEQ_CLS" else []
    base, batch = hf.build(config, batch=rows, tokens=tiny_configs.TOKENS)
    kind, fields = ADAPTERS[adapter]
    fields = {"task_type": task, **fields}
    if kind not in _OF_PROMPTS:
        fields["target_modules"] = targets
    if fields.pop("feedforward", False):
        fields["feedforward_modules"] = [feedforward]
    return peft.get_peft_model(base, getattr(peft, kind)(**fields)).train(), batch
