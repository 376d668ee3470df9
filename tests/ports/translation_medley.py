"""A translation model (T5) whose targets are padded with -100."""

import torch
from transformers import T5Config, T5ForConditionalGeneration

import medley


def train(steps: int) -> list[float]:
    config = T5Config(
        vocab_size=61,
        d_model=16,
        d_kv=8,
        d_ff=24,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    model = T5ForConditionalGeneration(config)
    ids = torch.ones(8, 12, dtype=torch.long)
    example = {"input_ids": ids, "attention_mask": ids, "labels": ids[:, :9]}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    graph = medley.capture(model, example)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, optimizer)
    losses = []
    for _ in range(steps):
        labels = torch.randint(2, 61, (8, 9))
        labels[torch.arange(9) >= torch.randint(3, 10, (8, 1))] = -100
        ids = torch.randint(2, 61, (8, 12))
        mask = (torch.arange(12) < torch.randint(5, 13, (8, 1))).long()
        batch = {"input_ids": ids, "attention_mask": mask, "labels": labels}
        loss = trainer.step(batch).loss
        losses.append(loss)
    return losses
