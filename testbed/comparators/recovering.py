"""Medley as a job that loses a process and continues: `medley launch --elastic plan.json
testbed/comparators/recovering.py ...`. Records the end of each step on every device."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

import medley
from medley.run import job
from testbed.comparators import workloads
from testbed.comparators.restartable import Log


def main() -> None:
    """Trains as one process of a job, until it is killed or has done its steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", help="such as gpt or gpt?layers=12&width=256")
    parser.add_argument("folder", type=Path, help="has model.graph and cluster.yaml, gets the logs")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--pause", type=float, default=0.0, help="seconds before each step")
    parser.add_argument("--double", action="store_true", help="train in float64")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64 if options.double else torch.float32)
    log = Log(options.folder / f"{job.device_name().replace('/', '.')}.jsonl")
    model, example = workloads.load(options.workload)
    graph = medley.Graph.load(options.folder / "model.graph")
    plan = medley.plan(graph, options.folder / "cluster.yaml", plan=job.launched_plan())
    optimizer = medley.AdamW(lr=workloads.LEARNING_RATE, weight_decay=0.01)
    trainer = medley.Trainer(model, graph, plan, optimizer, keep_gradients=False)
    data = workloads.batches(example, 4)
    trainer.catch_up()  # a replacement starts at the state of the others
    for number in range(trainer.steps, options.steps):
        time.sleep(options.pause)
        loss = trainer.step(data[number % len(data)]).loss
        log.say("step", step=number + 1, loss=loss)


if __name__ == "__main__":
    main()
