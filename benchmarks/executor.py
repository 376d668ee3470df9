"""Training steps of one device compared with eager PyTorch: time, and bytes of live tensors.

    python benchmarks/executor.py [--model gpt2] [--pairs 30] [--threads 2] [--json FILE]

A step is forward, backward and AdamW(fused=True). Both sides train the same model on the same batch
in one process and take turns, so other load affects both. Bytes are counted in a separate process
for each side, by the same allocator.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import functools
import json
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import medley
from medley import _runtime
from medley.cluster import parse_cluster
from medley_extras.models import hf

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 1, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 50 us}
"""
LEARNING_RATE = 1e-4
MIB = 1 << 20

MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, torch.Tensor]]]] = {
    "gpt2": functools.partial(
        hf.gpt2,
        "default",
        n_layer=8,
        n_embd=512,
        n_head=8,
        vocab_size=8000,
        n_positions=128,
        batch=4,
        tokens=128,
    ),
    "vit": functools.partial(
        hf.vit,
        "default",
        hidden_size=384,
        intermediate_size=1536,
        num_hidden_layers=12,
        num_attention_heads=6,
        num_labels=1000,
        batch=8,
    ),
}
Step = Callable[[], float]


def make(name: str) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and the batch, the same at every call."""
    torch.manual_seed(0)
    return MODELS[name]()


def eager(model: nn.Module, batch: dict[str, torch.Tensor]) -> Step:
    """Returns a function that does one step of plain PyTorch and returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, fused=True)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def ours(model: nn.Module, batch: dict[str, torch.Tensor]) -> Step:
    """Returns a function that does one step of Medley. Takes the model's parameters away."""
    graph = medley.capture(model, batch)
    rows = next(iter(batch.values())).shape[0]
    plan = medley.plan(
        graph, parse_cluster(CLUSTER), "data-parallel-proportional", rows, microbatches=1
    )
    optimizer = medley.AdamW(lr=LEARNING_RATE, report_norm=False)
    trainer = medley.Trainer(
        model, graph, plan, optimizer=optimizer, local=True, keep_gradients=False
    )
    model.to("meta")  # the trainer has its own
    return lambda: trainer.step(batch).loss


SIDES = {"eager": eager, "medley": ours}


def count_bytes(model: str, side: str, threads: int) -> dict[str, int]:
    """Returns the bytes of live tensors between steps, and their peak within one."""
    torch.set_num_threads(threads)
    _runtime.count_allocations()
    step = SIDES[side](*make(model))
    for _ in range(3):
        step()
    live, _ = _runtime.allocated_bytes()
    _runtime.reset_peak()
    step()
    _, peak = _runtime.allocated_bytes()
    return {"live": live, "peak": peak}


def time_pairs(model: str, pairs: int, threads: int) -> dict[str, Any]:
    """Returns the seconds of every step of both sides, which take turns, and their last losses."""
    torch.set_num_threads(threads)
    module, batch = make(model)
    steps = {"eager": eager(copy.deepcopy(module), batch), "medley": ours(module, batch)}
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    faults: dict[str, list[int]] = {side: [] for side in SIDES}
    losses: dict[str, float] = {}
    for pair in range(-3, pairs):
        order = list(steps) if pair % 2 else list(reversed(steps))
        for side in order:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            start = time.perf_counter()
            losses[side] = steps[side]()
            end = time.perf_counter()
            if pair >= 0:
                seconds[side].append(end - start)
                faults[side].append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return {"seconds": seconds, "page_faults": faults, "losses": losses}


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the function in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, *arguments).result()


def measure(model: str, pairs: int, threads: int) -> dict[str, Any]:
    """Returns everything that the table and the page need about a model."""
    bytes_of = {side: apart(count_bytes, model, side, threads) for side in SIDES}
    result: dict[str, Any] = apart(time_pairs, model, pairs, threads)
    seconds = result["seconds"]
    median = {side: statistics.median(seconds[side]) for side in SIDES}
    ratios = [m / e for m, e in zip(seconds["medley"], seconds["eager"], strict=True)]
    return {
        "model": model,
        "pairs": pairs,
        "bytes": bytes_of,
        "median_seconds": median,
        "time_ratio": median["medley"] / median["eager"],
        "median_of_ratios": statistics.median(ratios),
        "bytes_ratio": bytes_of["medley"]["peak"] / bytes_of["eager"]["peak"],
        **result,
    }


def print_row(result: dict[str, Any]) -> None:
    """Prints one model."""
    median, losses = result["median_seconds"], result["losses"]
    print(f"{result['model']}: {result['pairs']} pairs")
    print(
        f"  median step: eager {median['eager'] * 1e3:.1f} ms, medley "
        f"{median['medley'] * 1e3:.1f} ms: ratio {result['time_ratio']:.3f} "
        f"(median of the ratios of pairs {result['median_of_ratios']:.3f})"
    )
    for side, counted in result["bytes"].items():
        print(
            f"  {side}: peak {counted['peak'] / MIB:.1f} MiB, between steps "
            f"{counted['live'] / MIB:.1f} MiB"
        )
    print(f"  peak ratio {result['bytes_ratio']:.3f}")
    faults = {side: statistics.median(counts) for side, counts in result["page_faults"].items()}
    print(f"  page faults per step: {faults}; last losses: {losses}", flush=True)


def main() -> None:
    """Measures, prints, and writes the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=MODELS, action="append")
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {platform.machine()}, {options.threads} threads", flush=True)
    results = []
    for model in options.model or MODELS:
        results.append(measure(model, options.pairs, options.threads))
        print_row(results[-1])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
