"""PyTorch DDP on heterogeneous devices: rows divided evenly, or in proportion to the speeds."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from testbed.comparators import process, rows, timing, workloads


def main() -> None:
    """Trains as one process of a job."""
    parser = process.parser(__doc__)
    parser.add_argument("--split", choices=rows.SPLITS, required=True)
    parser.add_argument("--bucket-mb", type=float, default=25.0)
    options = parser.parse_args()

    rank, size = process.begin()
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

    # DDP's gradients are views of its buckets.
    step = rows.step_of(parallel, optimizer, own, size, set_to_none=False)
    timing.train(step, options.steps, options.output, sum_losses=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
