"""A text classifier with padding and a linear schedule (as accelerate's nlp_example)."""

import torch
from torch.utils.data import DataLoader
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    get_linear_schedule_with_warmup,
)

import medley


def texts(count: int) -> list[dict[str, torch.Tensor]]:
    found = []
    for _ in range(count):
        length = int(torch.randint(4, 13, ()))
        mask = (torch.arange(12) < length).long()
        ids = torch.randint(1, 61, (12,)) * mask
        found.append({"input_ids": ids, "attention_mask": mask, "labels": ids[0] % 3})
    return found


def train(steps: int) -> list[float]:
    loader = DataLoader(texts(8 * steps), batch_size=8)  # type: ignore[arg-type]
    config = BertConfig(
        vocab_size=61,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=12,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
    )
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, steps)
    correct, losses = [], []
    model.train()
    graph = medley.capture(model, next(iter(loader)), outputs="logits")
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, medley.from_torch(optimizer, model))
    for batch in loader:
        outputs = trainer.step(batch)
        loss = outputs.loss
        scheduler.step()
        losses.append(loss)
        found = outputs.outputs["logits"].argmax(-1)
        correct.append((found == batch["labels"]).double().mean().item())
    return losses + correct
