"""PyTorch FSDP2 (`fully_shard`) on heterogeneous devices: parameters, gradients and the optimizer's
state in equal shards, rows divided evenly or in proportion to the speeds."""

from __future__ import annotations

import argparse
import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from testbed.comparators import process, rows, timing, workloads


def shard(model: nn.Module, size: int) -> None:
    """Shards a model over all processes. Each block of a list of blocks is gathered separately, the
    remainder together."""
    mesh = init_device_mesh("cpu", (size,))
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList):
            for block in module:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def main() -> None:
    """Trains as one process of a job."""
    parser = process.parser(__doc__)
    parser.add_argument("--split", choices=rows.SPLITS, required=True)
    options = parser.parse_args()

    train(options, *process.begin())
    # Sharded modules hold process groups, whose threads must end before the interpreter.
    gc.collect()
    dist.destroy_process_group()


def train(options: argparse.Namespace, rank: int, size: int) -> None:
    """Trains and writes the record."""
    model, example = workloads.load(options.workload)
    own = rows.share_of(rank, size, example, options.cluster, options.split)
    shard(model, size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=workloads.LEARNING_RATE, weight_decay=0.01, foreach=True
    )

    step = rows.step_of(model, optimizer, own, size)
    timing.train(step, options.steps, options.output, sum_losses=True)


if __name__ == "__main__":
    main()
