"""Segmentation with weights of classes, pixels that are ignored, and a polynomial rate."""

import torch
from torch import nn
from torch.optim.lr_scheduler import PolynomialLR
from transformers import SegformerConfig, SegformerForSemanticSegmentation


def train(steps: int) -> list[float]:
    config = SegformerConfig(
        num_encoder_blocks=2,
        depths=[1, 1],
        sr_ratios=[2, 1],
        hidden_sizes=[8, 16],
        patch_sizes=[3, 3],
        strides=[2, 2],
        num_attention_heads=[1, 2],
        mlp_ratios=[2, 2],
        decoder_hidden_size=12,
        num_labels=5,
        drop_path_rate=0.0,
        classifier_dropout_prob=0.0,
    )
    model = SegformerForSemanticSegmentation(config)
    criterion = nn.CrossEntropyLoss(weight=torch.linspace(0.5, 2.0, 5), ignore_index=255)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)
    scheduler = PolynomialLR(optimizer, total_iters=steps, power=0.9)
    losses = []
    for _ in range(steps):
        images, labels = torch.randn(8, 3, 16, 16), torch.randint(0, 5, (8, 8, 8))
        labels[:, 0] = 255
        loss = criterion(model(images).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    return losses
