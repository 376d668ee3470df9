"""PyTorch FSDP2 (`fully_shard`) on unequal devices: parameters, gradients and the optimizer's state
in equal shards, rows divided evenly or in proportion to the speeds."""

from __future__ import annotations

import argparse
import gc
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from testbed.comparators import rows, timing, workloads


def shard(model: nn.Module, size: int) -> None:
    """Shards a model over all processes: each block of a list of blocks is gathered by itself, what
    is in none of them together."""
    mesh = init_device_mesh("cpu", (size,))
    for module in list(model.modules()):
        if isinstance(module, nn.ModuleList):
            for block in module:
                if any(True for _ in block.parameters()):
                    fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def main() -> None:
    """Trains as one process of a job."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", help="such as gpt or gpt?rows=96")
    parser.add_argument("cluster", help="cluster.yaml, for the speeds")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--split", choices=rows.SPLITS, required=True)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    train(options)
    # What was sharded holds process groups, whose threads have to end before the interpreter does.
    gc.collect()
    dist.destroy_process_group()


def train(options: argparse.Namespace) -> None:
    """Trains and writes the record."""
    rank, size = dist.get_rank(), dist.get_world_size()
    model, example = workloads.load(options.workload)
    own = rows.share_of(rank, size, example, options.cluster, options.split)
    shard(model, size)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=workloads.LEARNING_RATE, weight_decay=0.01, foreach=True
    )

    def step(number: int) -> float:
        optimizer.zero_grad()
        which = number % len(own.batches)
        loss = model(**own.batches[which])
        (loss * (own.labels[which] * size)).backward()
        optimizer.step()
        return float(loss.detach()) * own.labels[which]

    timing.train(step, options.steps, options.output, sum_losses=True)


if __name__ == "__main__":
    main()
