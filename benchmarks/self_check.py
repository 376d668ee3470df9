"""Measures the cost of the check of a capture, in forward and backward passes of its rows.

python benchmarks/self_check.py [--positions 128] [--turns 3] [--threads 1]

The passes are those of plain PyTorch over the same rows: the two batches of the check, in sequence.
Both sides are measured in turn, in seconds of CPU: all of them, and those outside the kernel, which
sets up memory.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable

import torch

import medley
from medley.capture import other_values, proof
from medley.capture.batch import read_batch
from medley.graph import compare
from medley_extras.models import gpt


def seconds(run: Callable[[], object]) -> tuple[float, float]:
    """Returns the seconds of CPU that a call takes: all, and those outside the kernel."""
    begin = os.times()
    run()
    end = os.times()
    user = end.user - begin.user
    return user + end.system - begin.system, user


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--positions", type=int, default=128)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, example = gpt("124m", positions=args.positions, batch=2)
    parameters = sum(each.numel() for each in model.parameters())
    graph = medley.capture(model, example, check=False)
    batch = read_batch(example)
    rows = min(proof.ROWS, batch.rows)
    tensors = other_values.few_rows(batch, rows)

    def passes() -> None:
        for _ in range(2):
            model.zero_grad()
            batch.call(model, tensors).backward()

    passes()
    plain, check = [], []
    for _ in range(args.turns):
        plain.append(seconds(passes))
        check.append(seconds(lambda: compare(graph, model, example, must=True)))
    print(
        f"GPT of {parameters / 1e6:.0f} M parameters, 2 batches of {rows} rows of {args.positions} "
        f"positions, {args.threads} threads"
    )
    for part, what in enumerate(("all seconds of CPU", "those outside the kernel")):
        a, b = [each[part] for each in plain], [each[part] for each in check]
        ratios = [y / x for x, y in zip(a, b, strict=True)]
        print(
            f"{what}: forward and backward {statistics.median(a):.1f} s, check "
            f"{statistics.median(b):.1f} s: {statistics.median(ratios):.2f} passes "
            f"({', '.join(f'{each:.2f}' for each in ratios)})"
        )


if __name__ == "__main__":
    main()
