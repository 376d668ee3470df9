"""The same training on one device, by plain PyTorch."""

from __future__ import annotations

import torch

from testbed.comparators import workloads


def losses_of_one_device(workload: str, steps: int, double: bool = False) -> list[float]:
    """Returns the losses of this many steps."""
    torch.set_default_dtype(torch.float64 if double else torch.float32)
    model, example = workloads.load(workload)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=workloads.LEARNING_RATE, weight_decay=0.01, foreach=True
    )
    data = workloads.batches(example, 4)
    losses = []
    for number in range(steps):
        optimizer.zero_grad()
        loss = model(**data[number % len(data)])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
