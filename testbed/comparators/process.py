"""A contestant as one process of a job: its arguments and its start."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.distributed as dist


def parser(
    description: str | None,
    workload: str = "such as vgg or vgg?rows=576",
    cluster: str = "cluster.yaml, for the speeds",
) -> argparse.ArgumentParser:
    """Returns a parser of the arguments that `contestants.run` passes."""
    found = argparse.ArgumentParser(description=description)
    found.add_argument("workload", help=workload)
    found.add_argument("cluster", help=cluster)
    found.add_argument("--output", type=Path, required=True)
    found.add_argument("--steps", type=int, default=30)
    return found


def begin() -> tuple[int, int]:
    """Joins the other processes, each on one thread. Returns the rank and the number of
    processes."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    return dist.get_rank(), dist.get_world_size()
