"""PyTorch DDP on unequal devices: rows divided evenly, or in proportion to the speeds.

DDP averages gradients over processes. With n_i of the N labels that count on device i of W, that is
the gradient of the global mean only if every loss is weighted by hand:

    1/W sum_i grad(w_i mean_i) = sum_i n_i/N grad(mean_i)   with   w_i = W n_i / N
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from medley.cluster import load_cluster
from testbed.comparators import timing, workloads
from testbed.layout import speeds


def split(rows: int, weights: list[float]) -> list[int]:
    """Returns how many rows each device computes, so that the slowest finishes earliest."""
    lengths = [0] * len(weights)
    for _ in range(rows):
        device = min(range(len(weights)), key=lambda d: ((lengths[d] + 1) / weights[d], d))
        lengths[device] += 1
    return lengths


def _counted(labels: Tensor) -> int:
    """Returns how many labels the loss is the mean of: -100 says that one does not count."""
    return int((labels != -100).sum())


def main() -> None:
    """Trains as one process of a job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", help="such as vgg or vgg?rows=576")
    parser.add_argument("cluster", help="cluster.yaml, for the speeds")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--split", choices=["even", "proportional"], required=True)
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model, example = workloads.load(options.workload)
    rows = len(example["labels"])
    even = options.split == "even"
    weights = [1.0] * size if even else speeds(load_cluster(options.cluster))
    lengths = split(rows, weights)
    first = sum(lengths[:rank])
    data = workloads.batches(example, 4)
    own = [
        {name: value[first : first + lengths[rank]] for name, value in batch.items()}
        for batch in data
    ]
    shares = [
        _counted(mine["labels"]) / _counted(whole["labels"])
        for mine, whole in zip(own, data, strict=True)
    ]
    parallel = DistributedDataParallel(
        model,
        bucket_cap_mb=options.bucket_mb,
        gradient_as_bucket_view=True,
        static_graph=True,
    )
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=workloads.LEARNING_RATE, weight_decay=0.01, fused=True
    )

    def step(number: int) -> float:
        optimizer.zero_grad(set_to_none=False)
        which = number % len(own)
        loss = parallel(**own[which])
        (loss * (shares[which] * size)).backward()
        optimizer.step()
        return float(loss.detach()) * shares[which]

    timing.train(step, options.steps, options.output, sum_losses=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
