"""`medley train`: trains a model by name on a folder of text or images.

    model, folder ─▶ capture ─▶ plan ─▶ Trainer.step on each global batch ─▶ weights, metrics

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

from medley import _core
from medley.capture import model_name
from medley.checkpoint import say
from medley.cli.train_data import START, Batches, Data, Place, open_data
from medley.cli.train_options import Options
from medley.cluster import Cluster, load_cluster, parse_cluster
from medley.files import require_writable, write_atomically
from medley.graph import Graph, capture
from medley.metrics import Metrics
from medley.metrics_file import MetricsFile
from medley.model_files import MODEL_FILE
from medley.optimizer import SGD, Adafactor, Adam, AdamW, Lion, Optimizer
from medley.plan import Plan, plan
from medley.run import exchange, job
from medley.run.interrupt import Interrupt
from medley.schedules import cosine, warmup
from medley.trainer import Trainer

INTERRUPTED = 130  # the exit code
_ONE = """
format: medley-cluster
version: 1
nodes:
  - {name: here, count: 1, device: CPU, devices_per_node: 1}
"""
_BATCH = 32


class Report:
    """What the first process shows and writes: a bar or lines, and metrics.jsonl. The others know
    the last lines, and go on with them when the first process is lost."""

    def __init__(self, options: Options, trainer: Trainer, steps: int) -> None:
        self._options = options
        self._trainer = trainer
        self._steps = steps
        self._file = MetricsFile(Path(options.output))
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Report:
        if not self._trainer.is_first or job.joins_later():
            return self
        # What was done after the checkpoint that is resumed is done again.
        self._file.begin(self._trainer.steps)
        if sys.stderr.isatty() and not self._options.json:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                BarColumn(),
                TextColumn("{task.completed}/{task.total} steps, {task.description}"),
                TimeRemainingColumn(),
                console=Console(stderr=True, highlight=False),
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self._steps)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def step(self, metrics: Metrics, place: Place) -> None:
        """Tells what a step has given."""
        done = metrics.step + 1
        text = (
            f"loss {metrics.loss:.4f}, norm {metrics.grad_norm:.3g}, "
            f"{metrics.tokens_per_second:,.0f} tokens/s"
        )
        if self._bar is not None:
            self._bar.update(self._task, completed=done, description=text)
        if done % self._options.log_every == 0 or done in (1, self._steps):
            line = {**dataclasses.asdict(metrics), **place._asdict(), "step": done}
            self._file.write(line, self._trainer.is_first)
            self._say(f"step {done}/{self._steps}: {text}")

    def held_out(self, step: int, loss: float) -> None:
        """Tells the loss of the rows that are not trained on, after `step` steps."""
        self._file.write({"step": step, "held_out_loss": loss}, self._trainer.is_first)
        self._say(f"step {step}/{self._steps}: held-out loss {loss:.4f}")

    def _say(self, line: str) -> None:
        if not self._trainer.is_first or self._options.json:
            return
        if self._bar is not None:
            self._bar.console.print(line)
        else:
            print(line, flush=True)


@dataclasses.dataclass
class Training:
    """A model at work on a folder."""

    options: Options
    model: nn.Module
    data: Data
    batches: Batches
    trainer: Trainer
    steps: int
    start: Place = START  # of the first batch
    before: Metrics | None = None  # of the last step, where others have made it

    def run(self) -> int:
        """Trains to the end or to Ctrl-C, saves, and returns the exit code."""
        place, held_out, last = self.batches.before(self.start), math.nan, math.nan
        every = self.options.evaluate_every
        done = begun = self.trainer.steps
        trainer = self.trainer
        with Report(self.options, trainer, self.steps) as report, Interrupt(trainer) as interrupt:
            batches = self.batches.read(self.steps - done, self.start)
            if self.before is not None:
                report.step(self.before, place)
            while not (stopped := interrupt.agreed()):
                if (found := next(batches, None)) is None:
                    break
                place, batch = found
                metrics = trainer.step(batch)
                last = metrics.loss
                if not math.isfinite(last):
                    raise ValueError(
                        f"step {metrics.step + 1}: found a loss of {last}, expected a finite one: "
                        "a smaller --lr, --warmup or --max-norm may help"
                    )
                report.step(metrics, place)
                done = trainer.steps
                if self.batches.held_out and (done % every == 0 or done == self.steps):
                    held_out = trainer.together(self.evaluate)
                    report.held_out(done, held_out)
                if self.options.save_every and done % self.options.save_every == 0:
                    self._checkpoint(place)
            if self.options.save_every and done > begun and done % self.options.save_every:
                self._checkpoint(place)
            self._save(place, last, held_out, stopped)
        return INTERRUPTED if stopped else 0

    def _checkpoint(self, place: Place) -> None:
        """Saves beside training; a full disk is said and ends nothing."""
        self.trainer.save(
            self.options.output,
            keep=self.options.keep,
            keep_every=self.options.keep_every,
            wait=False,
            data=(*self.batches.after(place), self.options.seed),
        )

    def evaluate(self) -> float:
        """Returns the mean loss of the rows held out, which PyTorch itself computes on processors.

        Each process takes a part of them.
        """
        with torch.no_grad():
            values = self.trainer.parameters() | self.trainer.buffers()
            for name, value in self.model.state_dict(keep_vars=True).items():
                if name in values:
                    value.copy_(values[name])
        ranks = self.trainer.ranks
        if ranks is None:  # the plan does not use this process
            return math.nan
        rank, size = ranks
        rows = self.batches.held_out
        chunk = self.trainer.plan.global_batch
        total, count = 0.0, 0
        self.model.eval()
        for start in range(rank * chunk, len(rows), size * chunk):
            part = rows[start : start + chunk]
            total += self.data.loss(self.model, self.data.rows(part)) * len(part)
            count += len(part)
        self.model.train()
        if job.current() is None:
            return total / count
        told = [json.loads(text) for text in exchange.texts(json.dumps([total, count]))]
        return float(sum(each[0] for each in told) / sum(each[1] for each in told))

    def _save(self, place: Place, loss: float, held_out: float, stopped: bool) -> None:
        done = self.trainer.steps
        folder = Path(self.options.output)
        self.trainer.save_model(folder)
        if not self.trainer.is_first:
            return
        state = {
            "format": "medley-train",
            "version": 1,
            "step": done,
            **place._asdict(),
            "finished": not stopped,
            "loss": None if math.isnan(loss) else loss,
            "held_out_loss": None if math.isnan(held_out) else held_out,
            "options": dataclasses.asdict(self.options),
        }
        write_atomically(folder / "train.json", json.dumps(state, indent=2) + "\n")
        if self.options.json:
            print(json.dumps(state))
            return
        word = "interrupted: saved" if stopped else "saved"
        where = sys.stderr if stopped else sys.stdout
        print(f"{word} {folder / MODEL_FILE} after {done} steps", file=where, flush=True)


def train(options: Options) -> int:
    """Trains as the options say; returns the exit code. Raises ValueError for what cannot be."""
    torch.manual_seed(options.seed)
    size = None if options.length is None else (2, options.length)
    model, example = model_name.load(options.model, size)
    if not job.joins_later():
        exchange.from_first(lambda: _check_output(options, model), "looks at the output")
    model.train()
    data = open_data(options, example)
    if options.autocast is not None:
        _autocast(model, torch.bfloat16)
    data.check(model)
    rule = _optimizer(options)
    graph = capture(model, example)
    chosen = _plan(options, graph, rule)
    _say_plan(options, chosen)
    batches = Batches(data, chosen, options.held_out, options.seed)
    steps = options.steps or (options.epochs or 0) * batches.per_epoch
    rule = dataclasses.replace(rule, lr=_rates(options, steps))
    trainer = Trainer(model, graph, chosen, rule, seed=options.seed, keep_gradients=False)
    try:
        before = trainer.catch_up()
        start = batches.at(trainer.steps)
        if options.resume and not job.joins_later():
            start = _resume(options, trainer, batches, steps)
        return Training(options, model, data, batches, trainer, steps, start, before).run()
    except (ValueError, OSError) as error:
        # Whoever catches this prints it; the other processes of the job are told here.
        trainer.fail(f"{type(error).__name__}: {error}")
        raise


def _check_output(options: Options, model: nn.Module) -> bytes:
    # What is known to fail at the end fails at the start.
    require_writable(options.output, sum(value.nbytes for value in model.state_dict().values()))
    found = [] if options.resume else _core.find_checkpoints(options.output)
    if found:
        # Of two runs in one folder, nobody could say which checkpoint is the newest.
        raise ValueError(
            f"{options.output}: found a checkpoint of step {found[0][1]}, expected --resume or an "
            "empty folder"
        )
    return b""


def _resume(options: Options, trainer: Trainer, batches: Batches, steps: int) -> Place:
    """Goes on from the newest checkpoint, if there is one; returns where its next batch is."""
    found = trainer.resume(options.output)
    if found is None:
        return START
    if found.data is None:
        raise ValueError(f"{found.path}: found no data cursor, expected what `medley train` saves")
    epoch, batch, seed = found.data
    for flag, was, now in (
        ("--seed", seed, options.seed),
        ("--global-batch", found.global_batch, trainer.plan.global_batch),
    ):
        if was != now:
            raise ValueError(f"{found.path}: found {flag} {was}, expected {now}")
    place = Place(epoch, batch)
    if place.epoch * batches.per_epoch + place.batch != found.step:
        raise ValueError(
            f"{found.path}: found batch {batch} of epoch {epoch} after {found.step} steps, "
            f"expected {batches.per_epoch} batches in an epoch: the data have changed"
        )
    if found.step > steps:
        raise ValueError(f"{found.path}: found {found.step} steps, expected at most {steps}")
    this = job.current()
    if this is None or this.rank == 0:
        say(f"going on from {found.path}")
    return place


def _plan(options: Options, graph: Graph, rule: Optimizer) -> Plan:
    cluster = _cluster(options)
    given = options.plan or job.launched_plan()
    if given is not None:
        return plan(graph, cluster, global_batch=options.global_batch, plan=given)
    rows = options.global_batch or _BATCH
    if rows < len(cluster.devices):
        raise ValueError(
            f"--global-batch: found {rows}, expected at least one row for each of "
            f"{len(cluster.devices)} devices"
        )
    return plan(graph, cluster, options.strategy, global_batch=rows, optimizer=rule)


def _say_plan(options: Options, chosen: Plan) -> None:
    """Tells what the plan uses, and what it leaves out."""
    this = job.current()
    if options.json or options.cluster is None or (this is not None and this.rank > 0):
        return
    summary, *lines = chosen.explain().splitlines()
    print(summary, *(line for line in lines if line.startswith("Not used:")), sep="\n", flush=True)


def _cluster(options: Options) -> Cluster:
    if options.cluster is not None:
        return load_cluster(options.cluster)
    several = options.plan or job.launched_plan() or job.current() is not None
    if several or torch.cuda.is_available():
        raise ValueError("--cluster: expected a cluster.yaml, which `medley probe` can write")
    return parse_cluster(_ONE, "<one processor>")


def _optimizer(options: Options) -> Optimizer:
    kinds: list[type[Any]] = [AdamW, Adam, SGD, Lion, Adafactor]
    kind = next(each for each in kinds if each.kind == options.optimizer)
    more = {"momentum": 0.9} if options.optimizer == "sgd" else {}
    made: Optimizer = kind(
        lr=options.lr, weight_decay=options.weight_decay, max_norm=options.max_norm, **more
    )
    return made


def _rates(options: Options, steps: int) -> Callable[[int], float]:
    if options.cosine:
        return cosine(options.lr, steps, options.warmup)
    return warmup(options.lr, options.warmup)


def _autocast(model: nn.Module, dtype: torch.dtype) -> None:
    """From now on the model computes in `dtype` what autocast lets it; names do not change."""
    inner = model.forward

    @functools.wraps(inner)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype):
            return inner(*args, **kwargs)

    model.forward = forward
