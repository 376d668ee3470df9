"""Tiny forms of public models: the size fields of a config, made small. Configs name their sizes in
many ways; _SIZES has the meanings, by pattern. All other fields keep the values of the package."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Any

TOKENS = 12
IMAGE = 32  # pixels a side
_VOCABULARY = 96
_LAYERS = 2

# The first pattern that fits the whole name of an integer field gives its value.
_SIZES: list[tuple[str, int]] = [
    (r"image_size", IMAGE),
    (r"(vocab|src_vocab|tgt_vocab)_size", _VOCABULARY),
    (r"(max_position_embeddings|n_positions|n_ctx|max_seq_len|seq_length|max_.*_positions)", 64),
    (r"(hidden_size|d_model|n_embd|dim|embed_dim|model_dim|emb_dim|decoder_hidden_size)", 32),
    (r"(embedding_size|word_embed_proj_dim|projection_dim|input_embedding_size)", 32),
    (r".*(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|hidden_dim|n_inner|shared_.*size)", 48),
    (r"(num_hidden_layers|n_layers?|num_layers|.*(encoder|decoder)_layers|depth)", _LAYERS),
    (r"(.*num_attention_heads|.*num_heads|n_heads?|.*attention_heads|encoder_heads)", 4),
    (r"(num_key_value_heads|n_kv_heads|multi_query_group_num)", 2),
    (r"(head_dim|d_kv|kv_channels|v_head_dim|attention_head_size|qk_nope_head_dim)", 8),
    (r"(qk_rope_head_dim|rotary_dim)", 4),
    (r"(q_lora_rank|kv_lora_rank)", 8),
    (r"(num_experts|num_local_experts|n_routed_experts|moe_num_experts)", 4),
    (r"(num_experts_per_tok|num_experts_per_token|moe_top_k|moe_k)", 2),
    (r"(n_group|topk_group)", 1),
    (r"patch_size", 4),
]
# Values that must match other fields, by type of config.
_KINDS: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "big_bird": {"block_size": 1},  # more tokens than 11 blocks, or the attention type changes
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 8},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
}
_TOKENS = re.compile(r".*_token_id|.*_token_index")


def tiny_fields(config: Any) -> dict[str, Any]:
    """Returns the fields of the config's class: integers in _SIZES, special tokens within the small
    vocabulary, and nested configs in the same way."""
    fields: dict[str, Any] = {}
    for name, value in _given(config):
        if hasattr(value, "to_dict"):
            fields[name] = tiny_fields(value)
        elif type(value) is int:
            small = _small(name, value)
            if small != value:
                fields[name] = small
    if "kv_lora_rank" in fields and "num_attention_heads" in fields:  # heads share no keys
        fields["num_key_value_heads"] = fields["num_attention_heads"]
        fields.pop("head_dim", None)  # equals that of the rotated part
    return fields | _KINDS.get(getattr(config, "model_type", ""), {})


def _given(config: Any) -> Iterator[tuple[str, Any]]:
    for name in sorted(vars(config)):
        if not name.startswith("_"):
            with contextlib.suppress(Exception):  # some fields refuse to be read of all layers
                yield name, getattr(config, name)


def _small(name: str, value: int) -> int:
    if _TOKENS.fullmatch(name):
        return value if 0 <= value < _VOCABULARY else value % (_VOCABULARY - 1)
    for pattern, small in _SIZES:
        if re.fullmatch(pattern, name):
            return min(value, small) if value > 0 else value
    return value
