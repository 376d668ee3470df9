"""Time and memory of capturing a large model without its weights.

python benchmarks/capture.py [--model llama] [--size 70b]
"""

from __future__ import annotations

import argparse
import resource
import time

import torch

import medley
from medley_extras import models


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="llama", choices=models.__all__)
    parser.add_argument("--size", default="70b")
    args = parser.parse_args()
    with torch.device("meta"):
        model, batch = getattr(models, args.model)(args.size)
    begin, busy = time.perf_counter(), time.process_time()
    graph = medley.capture(model, batch)
    seconds, busy = time.perf_counter() - begin, time.process_time() - busy
    parameters = sum(parameter.numel() for parameter in model.parameters())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{args.model} {args.size}: {parameters / 1e9:.1f} G parameters, {graph.core.num_ops} ops, "
        f"{seconds:.1f} s ({busy:.1f} s of CPU), peak {peak:.2f} GiB"
    )


if __name__ == "__main__":
    main()
