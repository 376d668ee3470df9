"""A masked autoencoder with a vision transformer (as in MAE's pretraining)."""

import math

import torch
from transformers import ViTMAEConfig, ViTMAEForPreTraining


def train(steps: int) -> list[float]:
    config = ViTMAEConfig(
        image_size=16,
        patch_size=4,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        decoder_hidden_size=12,
        decoder_num_hidden_layers=1,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=24,
        norm_pix_loss=True,
    )
    model = ViTMAEForPreTraining(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * 0.5 * (1.0 + math.cos(math.pi * step / steps))
        batch = {"pixel_values": torch.randn(8, 3, 16, 16), "noise": torch.rand(8, 16)}
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
