"""Trains a pipeline of four devices until one of its links dies: `cut_link.py FOLDER RANK ADDRESS`.
At step 5 the process RANK loses the route to ADDRESS, or all routes if it is "all". FOLDER has
cluster.yaml and plan.json."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

import medley
from medley_extras.models import gpt

CUT_AT = 5


def cut(address: str) -> None:
    """From now on nothing goes to an address, and nothing that comes from it is answered."""
    command = ["ip", "route", "add", "blackhole", f"{address}/32"]
    if address == "all":
        command = ["ip", "link", "set", "eth0", "down"]
    subprocess.run(command, check=True)
    print(f"cut {time.time()}", flush=True)


def main(folder: Path, rank: int, address: str) -> None:
    torch.manual_seed(0)
    model, batch = gpt(batch=8)
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    trainer = medley.Trainer(model, graph, plan)
    for step in range(100_000):
        if step == CUT_AT and int(os.environ["RANK"]) == rank:
            cut(address)
        trainer.step(batch)
        if step == CUT_AT - 1:
            print("five steps", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
