"""The rows of the global batch on a device if PyTorch averages gradients over processes, and the
weight of its loss.

n_i of the N labels that count are on device i of W. Such an average is the gradient of the global
mean only if every loss is weighted by hand:

    1/W sum_i grad(w_i mean_i) = sum_i n_i/N grad(mean_i)   with   w_i = W n_i / N
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from torch import Tensor, nn
from torch.optim import Optimizer

from medley.cluster import load_cluster
from testbed.comparators import workloads
from testbed.layout import speeds

SPLITS = ("even", "proportional")


@dataclasses.dataclass(frozen=True)
class Share:
    """A device's part of each global batch: its rows, and its share of the labels that count."""

    batches: list[workloads.Batch]
    labels: list[float]


def split(rows: int, weights: list[float]) -> list[int]:
    """Returns how many rows each device computes, so that the slowest finishes earliest."""
    lengths = [0] * len(weights)
    for _ in range(rows):
        device = min(range(len(weights)), key=lambda d: ((lengths[d] + 1) / weights[d], d))
        lengths[device] += 1
    return lengths


def share_of(rank: int, size: int, example: workloads.Batch, cluster: str, how: str) -> Share:
    """Returns the part of device `rank` of `size`: rows even, or in proportion to the speeds."""
    weights = [1.0] * size if how == "even" else speeds(load_cluster(cluster))
    lengths = split(len(example["labels"]), weights)
    first = sum(lengths[:rank])
    data = workloads.batches(example, 4)
    own = [
        {name: value[first : first + lengths[rank]] for name, value in batch.items()}
        for batch in data
    ]
    counts = [
        counted(mine["labels"]) / counted(whole["labels"])
        for mine, whole in zip(own, data, strict=True)
    ]
    return Share(own, counts)


def step_of(
    model: nn.Module, optimizer: Optimizer, own: Share, size: int, set_to_none: bool = True
) -> Callable[[int], float]:
    """Returns a function that trains a step on a device's rows and returns its part of the loss.
    The model averages gradients over `size` devices."""

    def step(number: int) -> float:
        optimizer.zero_grad(set_to_none=set_to_none)
        which = number % len(own.batches)
        loss = model(**own.batches[which])
        (loss * (own.labels[which] * size)).backward()
        optimizer.step()
        return float(loss.detach()) * own.labels[which]

    return step


def counted(labels: Tensor) -> int:
    """Returns the number of labels in the mean of the loss; -100 does not count."""
    return int((labels != -100).sum())
