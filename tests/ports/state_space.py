"""A state-space language model (Mamba) with packed chunks of one text."""

import torch
from transformers import MambaConfig, MambaForCausalLM


def train(steps: int) -> list[float]:
    text = torch.randint(0, 61, (steps * 8 * 10,))
    config = MambaConfig(
        vocab_size=61, hidden_size=16, state_size=4, num_hidden_layers=2, time_step_rank=4
    )
    model = MambaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    losses = []
    for ids in text.view(steps, 8, 10):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
