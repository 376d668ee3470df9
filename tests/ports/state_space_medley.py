"""A state-space language model (Mamba) with packed chunks of one text."""

import torch
from transformers import MambaConfig, MambaForCausalLM

import medley


def train(steps: int) -> list[float]:
    text = torch.randint(0, 61, (steps * 8 * 10,))
    config = MambaConfig(
        vocab_size=61, hidden_size=16, state_size=4, num_hidden_layers=2, time_step_rank=4
    )
    model = MambaForCausalLM(config)
    example = {"input_ids": text[:80].view(8, 10), "labels": text[:80].view(8, 10)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    graph = medley.capture(model, example)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, medley.from_torch(optimizer, model, max_norm=1.0))
    losses = []
    for ids in text.view(steps, 8, 10):
        loss = trainer.step({"input_ids": ids, "labels": ids}).loss
        losses.append(loss)
    return losses
