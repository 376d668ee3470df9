"""`medley train`: trains a model by name on a folder of text or images.

    model, folder ─▶ capture ─▶ plan ─▶ fit ─▶ weights, metrics

In one process, or in each process of a job (`medley launch plan.json train ...`, torchrun).
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import medley
from medley.capture import model_name
from medley.cluster import load_cluster, parse_cluster
from medley.files import require_writable, write_atomically
from medley.fit import Fitted, Settings, expect_no_checkpoint, fit
from medley.optimizer import Optimizer
from medley.run import exchange, job
from medley_extras.train.data import Data, FolderLoader, open_data
from medley_extras.train.options import Options

INTERRUPTED = 130  # exit code
_WEIGHTS = "model.safetensors"  # written by Trainer.save_model
_ONE = """
format: medley-cluster
version: 1
nodes:
  - {name: here, count: 1, device: CPU, devices_per_node: 1}
"""
_BATCH = 32


def held_out_loss(trainer: medley.Trainer, model: nn.Module, data: Data, rows: list[int]) -> float:
    """Returns the mean loss of rows, computed by PyTorch on CPUs. Each process takes a part of
    them."""
    with torch.no_grad():
        values = trainer.parameters() | trainer.buffers()
        for name, value in model.state_dict(keep_vars=True).items():
            if name in values:
                value.copy_(values[name])
    if trainer.ranks is None:  # the plan does not use this process
        return math.nan
    rank, size = trainer.ranks
    chunk = trainer.plan.global_batch
    total, count = 0.0, 0
    model.eval()
    for start in range(rank * chunk, len(rows), size * chunk):
        part = rows[start : start + chunk]
        total += data.loss(model, data.rows(part)) * len(part)
        count += len(part)
    model.train()
    if job.current() is None:
        return total / count
    parts = exchange.values([total, count])
    return float(sum(each[0] for each in parts) / sum(each[1] for each in parts))


def _finish(
    options: Options, trainer: medley.Trainer, loader: FolderLoader, fitted: Fitted
) -> None:
    """Saves the weights, and prints the progress of training."""
    trainer.save_model(folder := Path(options.output))
    if not trainer.is_first:
        return
    epoch, batch, _ = loader.cursor(max(0, fitted.steps - 1))
    state = {
        "format": "medley-train",
        "version": 1,
        "step": fitted.steps,
        "epoch": epoch,
        "batch": batch,
        "finished": not fitted.interrupted,
        "loss": None if fitted.last is None else fitted.last.loss,
        "held_out_loss": fitted.evaluated.get("held_out_loss"),
        "options": dataclasses.asdict(options),
    }
    write_atomically(folder / "train.json", json.dumps(state, indent=2) + "\n")
    if options.json:
        print(json.dumps(state))
        return
    saved, where = f"saved {folder / _WEIGHTS} after {fitted.steps} steps", sys.stdout
    if fitted.interrupted:
        saved, where = f"interrupted: {saved}\nNext: the same command with --resume", sys.stderr
    print(saved, file=where, flush=True)


def train(options: Options) -> int:
    """Trains with the options. Returns the exit code. Raises ValueError for invalid options."""
    torch.manual_seed(options.seed)
    size = None if options.length is None else (2, options.length)
    model, example = model_name.load(options.model, size)
    data = open_data(options, example)
    if not job.joins_later():
        exchange.from_first(lambda: _check_output(options, model), "looks at the output")
    model.train()
    if options.autocast is not None:
        _autocast(model, torch.bfloat16)
    data.check(model)
    rule = _optimizer(options)
    graph = medley.capture(model, example)
    chosen = _plan(options, graph, rule)
    _say_plan(options, chosen)
    loader = FolderLoader(data, chosen, options.held_out, options.seed)
    steps = options.steps or (options.epochs or 0) * len(loader)
    rule = dataclasses.replace(rule, lr=_rates(options, steps))
    trainer = medley.Trainer(
        model,
        graph,
        chosen,
        rule,
        seed=options.seed,
        keep_gradients=False,
        metrics_port=options.metrics_port,
        metrics_host=options.metrics_host,
        tune=options.tune,
        remember=not options.no_memory,
    )
    rows = loader.held_out
    settings = Settings(
        steps=steps,
        evaluate=(
            (lambda: {"held_out_loss": held_out_loss(trainer, model, data, rows)}) if rows else None
        ),
        evaluate_every=options.evaluate_every if rows else 0,
        save_every=options.save_every,
        output=Path(options.output),
        keep=options.keep if options.save_every else 0,
        keep_every=options.keep_every,
        must_save=False,
        resume=options.resume,
        log_every=options.log_every,
        callbacks=[] if options.json else [medley.Progress(options.log_every)],
        at_end=lambda fitted: _finish(options, trainer, loader, fitted),
    )
    try:
        fitted = fit(trainer, loader, settings)
    except (ValueError, OSError) as error:
        # The caller prints this error. The other processes of the job receive it here.
        trainer.fail(f"{type(error).__name__}: {error}")
        raise
    return INTERRUPTED if fitted.interrupted else 0


def _check_output(options: Options, model: nn.Module) -> bytes:
    # A failure at the end is detected at the start.
    require_writable(options.output, sum(value.nbytes for value in model.state_dict().values()))
    return b"" if options.resume else expect_no_checkpoint(options.output, "--resume")


def _plan(options: Options, graph: medley.Graph, rule: Optimizer) -> medley.Plan:
    cluster = _cluster(options)
    given = options.plan or job.launched_plan()
    if given is not None:
        return medley.plan(graph, cluster, global_batch=options.global_batch, plan=given)
    rows = options.global_batch or _BATCH
    if rows < len(cluster.devices):
        raise ValueError(
            f"--global-batch: found {rows}, expected at least one row for each of "
            f"{len(cluster.devices)} devices"
        )
    return medley.plan(graph, cluster, options.strategy, global_batch=rows, optimizer=rule)


def _say_plan(options: Options, chosen: medley.Plan) -> None:
    """Prints the devices that the plan uses, and those that it skips."""
    this = job.current()
    if options.json or options.cluster is None or (this is not None and this.rank > 0):
        return
    summary, *parts = chosen.explain().split("\n\n")
    print(summary, *(part for part in parts if part.startswith("Not used:")), sep="\n", flush=True)


def _cluster(options: Options) -> medley.Cluster:
    if options.cluster is not None:
        return load_cluster(options.cluster)
    several = options.plan or job.launched_plan() or job.current() is not None
    if several or torch.cuda.is_available():
        raise ValueError("--cluster: expected a cluster.yaml, which `medley probe` can write")
    return parse_cluster(_ONE, "<one processor>")


def _optimizer(options: Options) -> Optimizer:
    kinds: list[type[Any]] = [
        medley.AdamW,
        medley.Adam,
        medley.SGD,
        medley.Lion,
        medley.Adafactor,
    ]
    kind = next(each for each in kinds if each.kind == options.optimizer)
    more = {"momentum": 0.9} if options.optimizer == "sgd" else {}
    made: Optimizer = kind(
        lr=options.lr, weight_decay=options.weight_decay, max_norm=options.max_norm, **more
    )
    return made


def _rates(options: Options, steps: int) -> Callable[[int], float]:
    if options.cosine:
        return medley.cosine(options.lr, steps, options.warmup)
    return medley.warmup(options.lr, options.warmup)


def _autocast(model: nn.Module, dtype: torch.dtype) -> None:
    """Lets the model compute under autocast to `dtype` from now on. Names stay the same."""
    inner = model.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype):
            return inner(*args, **kwargs)

    model.forward = forward
