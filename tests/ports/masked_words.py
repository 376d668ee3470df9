"""Masked words, 15 % of them, a mean over those that are masked (as run_mlm)."""

import torch
from torch import Tensor
from transformers import (
    RobertaConfig,
    RobertaForMaskedLM,
    get_cosine_schedule_with_warmup,
)


def mask_tokens(ids: Tensor) -> dict[str, Tensor]:
    labels, chosen = ids.clone(), torch.rand(ids.shape) < 0.15
    labels[~chosen] = -100
    return {"input_ids": ids.masked_fill(chosen, 4), "labels": labels}


def train(steps: int) -> list[float]:
    config = RobertaConfig(
        vocab_size=61,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=20,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model = RobertaForMaskedLM(config)
    no_decay = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    decay = [p for n, p in model.named_parameters() if not (n.endswith("bias") or "LayerNorm" in n)]
    groups = [{"params": decay, "weight_decay": 0.01}, {"params": no_decay, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=5e-4)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 2, steps)
    losses = []
    for _ in range(steps):
        batch = mask_tokens(torch.randint(5, 61, (8, 12)))
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
