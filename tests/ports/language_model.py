"""A language model: accumulation, a rate by hand, decay groups, clipping (as in nanoGPT)."""

import math

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

BATCH, ACCUMULATE = 4, 2


def get_batch() -> Tensor:
    return torch.randint(0, 61, (BATCH, 12))


def get_lr(step: int) -> float:
    return 1e-3 * min((step + 1) / 2, 0.5 + 0.5 * math.cos(math.pi * step / 10))


def train(steps: int) -> list[float]:
    config = GPT2Config(vocab_size=61, n_positions=12, n_embd=16, n_layer=2, n_head=2)
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    model = GPT2LMHeadModel(config)
    decay = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
    losses = []
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = get_lr(step)
        total = 0.0
        for _ in range(ACCUMULATE):
            ids = get_batch()
            loss = model(input_ids=ids, labels=ids).loss / ACCUMULATE
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
    return losses
