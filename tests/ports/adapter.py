"""An adapter (LoRA) of a Llama, only its parameters given to the optimizer."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM


def train(steps: int) -> list[float]:
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        use_cache=False,
    )
    model = get_peft_model(LlamaForCausalLM(config), LoraConfig(r=2, lora_alpha=4))
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    losses = []
    for _ in range(steps):
        ids = torch.randint(0, 61, (8, 10))
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses
