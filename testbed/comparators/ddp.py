"""PyTorch DDP on unequal devices: rows divided evenly, or in proportion to the speeds."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from testbed.comparators import rows, timing, workloads


def main() -> None:
    """Trains as one process of a job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", help="such as vgg or vgg?rows=576")
    parser.add_argument("cluster", help="cluster.yaml, for the speeds")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--split", choices=rows.SPLITS, required=True)
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model, example = workloads.load(options.workload)
    own = rows.share_of(rank, size, example, options.cluster, options.split)
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
        which = number % len(own.batches)
        loss = parallel(**own.batches[which])
        (loss * (own.labels[which] * size)).backward()
        optimizer.step()
        return float(loss.detach()) * own.labels[which]

    timing.train(step, options.steps, options.output, sum_losses=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
