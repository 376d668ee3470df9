"""An adapter (LoRA) of a Llama, only its parameters given to the optimizer."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import medley


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
    ids = torch.arange(80).view(8, 10) % 61
    example = {"input_ids": ids, "labels": ids}
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-2)
    graph = medley.capture(model, example)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, optimizer)
    losses = []
    for _ in range(steps):
        ids = torch.randint(0, 61, (8, 10))
        loss = trainer.step({"input_ids": ids, "labels": ids}).loss
        losses.append(loss)
    return losses
