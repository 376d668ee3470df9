"""Medley on heterogeneous devices; the plan is that of `python -m testbed --plan plan.json`."""

from __future__ import annotations

import torch

import medley
from testbed.comparators import process, timing, workloads


def main() -> None:
    """Trains as one process of a job."""
    options = process.parser(__doc__, cluster="that of the plan").parse_args()

    torch.set_num_threads(1)
    model, example = workloads.load(options.workload)
    graph = medley.capture(model, example)
    plan = medley.plan(graph, options.cluster)
    optimizer = medley.AdamW(lr=workloads.LEARNING_RATE, weight_decay=0.01)
    trainer = medley.Trainer(model, graph, plan, optimizer, keep_gradients=False)
    data = workloads.batches(example, 4)

    def step(number: int) -> float:
        return trainer.step(data[number % len(data)]).loss

    timing.train(step, options.steps, options.output, sum_losses=False)


if __name__ == "__main__":
    main()
