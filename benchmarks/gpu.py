"""Steps on one GPU: Medley compared with PyTorch eager, torch.compile and the prediction.

    python benchmarks/gpu.py [--kind H100-80GB] [--model 124m] [--rows 8] [--rounds 20]
                             [--profile-budget 60s] [--json FILE]

A step is forward, backward and AdamW(fused=True) of a GPT of medley_extras.models, 1,024 tokens,
with matmuls in bf16 (torch.autocast on PyTorch's side) and the same batch on every side. The sides
take turns in one process; a step ends when the GPU has finished. Peak memory is that of PyTorch's
allocator, with each side in a separate process. Predictions are for the same plan: from the
catalogue, and from a profile measured here.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import copy
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import medley
from medley import _core
from medley.cluster import one_device, parse_cluster
from medley_extras.models import gpt

Step = Callable[[], float]
SIDES = ("eager", "compiled", "medley")
TYPE = torch.bfloat16


def make(model: str, rows: int) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Returns the model and the batch, the same at every call."""
    torch.manual_seed(0)
    return gpt(model, batch=rows)


def planned(graph: medley.Graph, kind: str, rows: int) -> medley.Plan:
    """Returns the plan of one device and one micro-batch."""
    cluster = parse_cluster(one_device(kind))
    return medley.plan(graph, cluster, "data-parallel-proportional", rows, microbatches=1)


def of_pytorch(model: nn.Module, batch: dict[str, torch.Tensor], compiled: bool) -> Step:
    """Returns a function that does one step of PyTorch and returns the loss."""
    model = copy.deepcopy(model).cuda()
    here = {name: each.cuda() for name, each in batch.items()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward: Any = torch.compile(model) if compiled else model

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", TYPE):
            loss = forward(**here)
        loss.backward()
        optimizer.step()
        return float(loss.item())

    return step


def of_medley(model: nn.Module, batch: dict[str, torch.Tensor], kind: str) -> Step:
    """Returns a function that does one step of Medley."""
    graph = medley.capture(model, batch, autocast=TYPE)
    rows = next(iter(batch.values())).shape[0]
    trainer = medley.Trainer(
        model,
        graph,
        planned(graph, kind, rows),
        optimizer=medley.AdamW(lr=1e-4, report_norm=False),
        local=True,
        keep_gradients=False,
    )
    return lambda: trainer.step(batch).loss


def side_of(name: str, model: str, rows: int, kind: str) -> Step:
    """Returns the step of a side."""
    module, batch = make(model, rows)
    if name == "medley":
        return of_medley(module, batch, kind)
    return of_pytorch(module, batch, name == "compiled")


def peak_bytes(name: str, model: str, rows: int, kind: str) -> int:
    """Returns the peak of the allocator in the third step."""
    step = side_of(name, model, rows, kind)
    for turn in range(3):
        if turn == 2:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def times(model: str, rows: int, kind: str, rounds: int) -> dict[str, Any]:
    """Returns the seconds of every step of all sides, which take turns, and their first losses."""
    steps: dict[str, Step] = {}
    failed: dict[str, str] = {}
    for name in SIDES:
        try:
            steps[name] = side_of(name, model, rows, kind)
            steps[name]()
        except Exception as error:  # torch.compile without a compiler
            steps.pop(name, None)
            failed[name] = str(error).strip().splitlines()[0]
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    losses: dict[str, float] = {}
    for turn in range(-4, rounds):
        for name, step in steps.items():
            torch.cuda.synchronize()
            begin = time.perf_counter()
            loss = step()
            torch.cuda.synchronize()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - begin)
            losses[name] = loss
    return {"seconds": seconds, "losses": losses, "failed": failed}


def apart(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls the function in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, *arguments).result()


def predictions(model: str, rows: int, kind: str, budget: str) -> dict[str, dict[str, float]]:
    """Returns step seconds and peak bytes as predicted, by the catalogue and by a profile."""
    module, batch = make(model, rows)
    graph = medley.capture(module, batch, autocast=TYPE)
    plan = planned(graph, kind, rows)
    cluster = parse_cluster(one_device(kind))
    optimizer = medley.AdamW(lr=1e-4, report_norm=False).core(graph.core)

    def predict(profile: str) -> dict[str, float]:
        found: Any = _core.simulate(
            _core.Program(graph.core, plan.core, cluster, optimizer), cluster, profile
        )
        (row,) = found["devices"].values()
        return {"seconds": found["step"] / 1e9, "bytes": row["peak"]}

    result = {"catalogue": predict("")}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "cluster.yaml").write_text(one_device(kind))
        (path / "gpt.graph").write_text(graph.text())
        plan.save(path / "plan.json")
        command = [sys.executable, "-m", "medley", "profile", "gpt.graph", "cluster.yaml"]
        command += ["--plan", "plan.json", "--no-grid", "--no-collectives"]
        command += ["--kind", cluster.kind(0).name]
        command += ["--device", "cuda:0", "--budget", budget, "-o", "profile.json"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
        result["profile"] = predict((path / "profile.json").read_text())
    return result


def main() -> int:
    """Measures, prints, and writes the raw numbers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--kind", default="H100-80GB")
    parser.add_argument("--model", default="124m")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--profile-budget", default="60s")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py: found no GPU that torch sees, expected one", file=sys.stderr)
        return 3
    given = options.model, options.rows, options.kind
    print(
        f"torch {torch.__version__}, {torch.cuda.get_device_name()}: "
        f"GPT {given[0]}, {given[1]} rows"
    )
    measured: dict[str, Any] = apart(times, *given, options.rounds)
    median = {name: statistics.median(each) for name, each in measured["seconds"].items()}
    peaks = {name: apart(peak_bytes, name, *given) for name in median}
    for name in median:
        print(
            f"  {name:9} {median[name] * 1e3:8.2f} ms "
            f"({median['eager'] / median[name]:.2f}x eager), "
            f"peak {peaks[name] / 2**20:8.0f} MiB, loss {measured['losses'][name]:.4f}",
            flush=True,
        )
    for name, why in measured["failed"].items():
        print(f"  {name}: {why}")
    predicted = predictions(*given, options.profile_budget)
    for source, each in predicted.items():
        print(
            f"  by the {source}: {each['seconds'] * 1e3:.2f} ms "
            f"({each['seconds'] / median['medley'] - 1:+.1%}), {each['bytes'] / 2**20:.0f} MiB "
            f"({each['bytes'] / peaks['medley'] - 1:+.1%})"
        )
    if options.json:
        result = {**measured, "peak_bytes": peaks, "predicted": predicted, "given": given}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
