"""Small vision-language models of transformers with random weights, and batches as their processors
give them: the images of all rows in sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import transformers
from torch import Tensor, nn

WORDS = 61
PICTURE = 60  # the token of a picture
LENGTH = 14
SMALL = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
TEXT = {
    **SMALL,
    "vocab_size": WORDS,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "use_cache": False,
    "pad_token_id": 0,
}
VISION = {**SMALL, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}

NUMBERS: dict[str, Sequence[int]] = {
    "one": [1, 1, 1, 1, 1, 1],
    "unlike": [1, 2, 1, 2, 2, 1],
    "none in some": [1, 0, 2, 0, 1, 0],
}


def words_of(numbers: Sequence[int], each: int) -> dict[str, Tensor]:
    """Returns words with this many tokens per image, and labels of the others."""
    ids = torch.randint(1, PICTURE - 1, (len(numbers), LENGTH))
    for row, number in enumerate(numbers):
        for picture in range(number):
            first = 1 + row % 2 + picture * (each + 1)
            ids[row, first : first + each] = PICTURE
    return {"input_ids": ids, "labels": ids.masked_fill(ids == PICTURE, -100)}


def pixels_of(numbers: Sequence[int], size: int = 16) -> Tensor:
    """Returns the pictures of all rows."""
    return torch.randn(sum(numbers), 3, size, size)


def llava(numbers: Sequence[int]) -> tuple[nn.Module, dict[str, Any]]:
    """LLaVA: CLIP and Llama."""
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(**VISION),
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_index=PICTURE,
        image_seq_length=4,
    )
    model = transformers.LlavaForConditionalGeneration(config)
    return model, {**words_of(numbers, 4), "pixel_values": pixels_of(numbers)}


def paligemma(numbers: Sequence[int]) -> tuple[nn.Module, dict[str, Any]]:
    """PaliGemma: SigLIP and Gemma, whose images attend to all of their prefix."""
    config = transformers.PaliGemmaConfig(
        vision_config=transformers.SiglipVisionConfig(**VISION, projection_dim=16),
        text_config=transformers.GemmaConfig(**TEXT, head_dim=8),
        image_token_index=PICTURE,
        projection_dim=16,
        hidden_size=16,
    )
    model = transformers.PaliGemmaForConditionalGeneration(config)
    batch = words_of(numbers, 4)
    kinds = (torch.arange(LENGTH) > LENGTH - 4).long().expand(len(numbers), -1).clone()
    mask = torch.ones_like(batch["input_ids"])
    return model, {
        **batch,
        "token_type_ids": kinds,
        "attention_mask": mask,
        "pixel_values": pixels_of(numbers),
    }


def gemma3(numbers: Sequence[int]) -> tuple[nn.Module, dict[str, Any]]:
    """Gemma 3: SigLIP and Gemma with sliding windows."""
    text = transformers.Gemma3TextConfig(
        **TEXT, head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
    )
    config = transformers.Gemma3Config(
        vision_config=transformers.SiglipVisionConfig(**{**VISION, "image_size": 32}),
        text_config=text,
        image_token_index=PICTURE,
        boi_token_index=58,
        eoi_token_index=59,
        mm_tokens_per_image=4,
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    batch = words_of(numbers, 4)
    mask = torch.ones_like(batch["input_ids"])
    kinds = (batch["input_ids"] == PICTURE).long()
    return model, {
        **batch,
        "token_type_ids": kinds,
        "attention_mask": mask,
        "pixel_values": pixels_of(numbers, 32),
    }


def internvl(numbers: Sequence[int]) -> tuple[nn.Module, dict[str, Any]]:
    """InternVL: its own vision tower and Qwen 2."""
    config = transformers.InternVLConfig(
        vision_config=transformers.InternVLVisionConfig(
            **{**VISION, "image_size": [32, 32], "patch_size": [8, 8]},
            hidden_dropout_prob=0.0,
            projection_dropout=0.0,
        ),
        text_config=transformers.Qwen2Config(**TEXT),
        image_token_id=PICTURE,
        image_seq_length=4,
        downsample_ratio=0.5,
    )
    model = transformers.InternVLForConditionalGeneration(config)
    return model, {**words_of(numbers, 4), "pixel_values": pixels_of(numbers, 32)}


def _padded(numbers: Sequence[int], size: int) -> Tensor:
    """Returns pictures [rows, pictures, ...], zeros where a row has fewer than another one."""
    pixels = torch.randn(len(numbers), max(numbers), 3, size, size)
    for row, number in enumerate(numbers):
        pixels[row, number:] = 0
    return pixels


def _of_parts(config: Any, model: Any, numbers: Sequence[int]) -> tuple[nn.Module, dict[str, Any]]:
    """Returns a model that joins the parts of a picture, by its classes."""
    made = config(
        vision_config={**VISION, "image_size": 32},
        text_config=transformers.LlamaConfig(**TEXT),
        image_token_id=PICTURE,
        scale_factor=2,
        pad_token_id=0,
    )
    return model(made), {**words_of(numbers, 4), "pixel_values": _padded(numbers, 32)}


def idefics3(numbers: Sequence[int]) -> tuple[nn.Module, dict[str, Any]]:
    """Idefics3."""
    classes = transformers.Idefics3Config, transformers.Idefics3ForConditionalGeneration
    return _of_parts(*classes, numbers)


def smolvlm(numbers: Sequence[int]) -> tuple[nn.Module, dict[str, Any]]:
    """SmolVLM."""
    classes = transformers.SmolVLMConfig, transformers.SmolVLMForConditionalGeneration
    return _of_parts(*classes, numbers)


_GRIDS = ((1, 4, 4), (1, 4, 8), (1, 8, 4), (1, 4, 4))  # frames, height, width in patches


def _with_grids(model: Any, numbers: Sequence[int]) -> tuple[nn.Module, dict[str, Any]]:
    """Returns a model and pictures of several sizes, each between two words."""
    grids = [_GRIDS[place % len(_GRIDS)] for place in range(sum(numbers))]
    ids, mask = torch.randint(1, PICTURE - 1, (len(numbers), 26)), torch.ones(len(numbers), 26)
    found = iter(grids)
    for row, number in enumerate(numbers):
        first = 1 + row % 2
        mask[row, 26 - row % 3 :] = 0
        for _ in range(number):
            frames, height, width = next(found)
            tokens = frames * height * width // 4
            ids[row, first : first + tokens] = PICTURE
            first += tokens + 1
    return model, {
        "input_ids": ids,
        "labels": ids.masked_fill((ids == PICTURE) | (mask == 0), -100),
        "attention_mask": mask.long(),
        "mm_token_type_ids": (ids == PICTURE).long(),
        "pixel_values": torch.randn(sum(t * h * w for t, h, w in grids), 3 * 2 * 2 * 2),
        "image_grid_thw": torch.tensor(grids),
    }


_ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
_TOWER = {"depth": 3, "num_heads": 2, "patch_size": 2, "spatial_merge_size": 2}


def qwen2_vl(numbers: Sequence[int]) -> tuple[nn.Module, dict[str, Any]]:
    """Qwen2-VL."""
    config = transformers.Qwen2VLConfig(
        vision_config={**_TOWER, "embed_dim": 16, "hidden_size": 16, "mlp_ratio": 2},
        text_config={**TEXT, "rope_parameters": _ROPE},
        image_token_id=PICTURE,
        video_token_id=59,
    )
    return _with_grids(transformers.Qwen2VLForConditionalGeneration(config), numbers)


def qwen2_5_vl(numbers: Sequence[int]) -> tuple[nn.Module, dict[str, Any]]:
    """Qwen2.5-VL, whose first and last vision layers attend to windows."""
    tower = {**_TOWER, "hidden_size": 16, "out_hidden_size": 16, "intermediate_size": 24}
    config = transformers.Qwen2_5_VLConfig(
        vision_config={**tower, "window_size": 8, "fullatt_block_indexes": [1]},
        text_config={**TEXT, "rope_parameters": _ROPE},
        image_token_id=PICTURE,
        video_token_id=59,
    )
    return _with_grids(transformers.Qwen2_5_VLForConditionalGeneration(config), numbers)


MODELS: dict[str, Callable[[Sequence[int]], tuple[nn.Module, dict[str, Any]]]] = {
    each.__name__: each
    for each in (llava, paligemma, gemma3, internvl, idefics3, smolvlm, qwen2_vl, qwen2_5_vl)
}
