"""Images and texts in one space (CLIP): a loss between all rows of a batch."""

import torch
from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

import medley


def train(steps: int) -> list[float]:
    small = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
    }
    config = CLIPConfig(
        text_config=CLIPTextConfig(vocab_size=61, max_position_embeddings=10, **small).to_dict(),
        vision_config=CLIPVisionConfig(image_size=16, patch_size=8, **small).to_dict(),
        projection_dim=12,
    )
    model = CLIPModel(config)
    ids, pictures = torch.arange(80).view(8, 10) % 57 + 3, torch.ones(8, 3, 16, 16)
    example = {"input_ids": ids, "pixel_values": pictures, "return_loss": True}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.2)
    graph = medley.capture(model, example)
    plan = medley.plan(graph, "cluster.yaml", global_batch=8)
    trainer = medley.Trainer(model, graph, plan, optimizer)
    losses = []
    for _ in range(steps):
        ids, pictures = torch.randint(3, 60, (8, 10)), torch.randn(8, 3, 16, 16)
        loss = trainer.step({"input_ids": ids, "pixel_values": pictures, "return_loss": True}).loss
        losses.append(loss)
    return losses
