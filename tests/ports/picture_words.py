"""A vision-language model: images at their tokens in the text (as in LLaVA's tuning)."""

import torch
from torch import Tensor
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
)

PICTURE = 60


def next_batch() -> dict[str, Tensor]:
    ids = torch.randint(0, 59, (8, 12))
    ids[:, 2:6] = PICTURE  # four patches
    labels = ids.masked_fill(ids == PICTURE, -100)
    return {"input_ids": ids, "pixel_values": torch.randn(8, 3, 16, 16), "labels": labels}


def train(steps: int) -> list[float]:
    small = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    vision = CLIPVisionConfig(image_size=16, patch_size=8, num_attention_heads=2, **small)
    text = LlamaConfig(vocab_size=61, num_attention_heads=2, use_cache=False, **small)
    config = LlavaConfig(
        vision_config=vision, text_config=text, image_token_index=PICTURE, image_seq_length=4
    )
    model = LlavaForConditionalGeneration(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        batch = next_batch()
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
