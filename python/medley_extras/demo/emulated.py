"""`medley demo`: a byte-level GPT learns Python on four heterogeneous devices, emulated here.

The text is Python's own standard library, so nothing is downloaded. Losses are real. Times are
those of the emulated devices and links, and equal on any host.
"""

from __future__ import annotations

import dataclasses
import json
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import medley
from medley.cli.verb import print_next, wrapped
from medley.cluster import parse_cluster
from medley.run import job
from medley_extras.models import gpt

if TYPE_CHECKING:
    from medley_extras.demo.kill import Survival

# Two nodes of two devices. On this network communication takes about 11 % of the step of the even
# split.
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 2}
  - {name: slow, count: 1, device: half, devices_per_node: 2}
networks:
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
  - {name: lan, connects: [fast, slow], bandwidth: 2.2 Gbit/s, latency: 20 us}
devices:
  half: {based_on: CPU, speed: 0.5, memory: 8 GiB}
"""
ONE = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 1}
"""
SPEEDS = {"fast/0/0": 2, "fast/0/1": 2, "slow/0/0": 1, "slow/0/1": 1}
ROWS, LENGTH, SEED = 144, 64, 1


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of one run."""

    name: str
    step_seconds: float
    loss: float
    waiting: dict[str, float]

    @property
    def tokens_per_second(self) -> float:
        """The bytes of text per emulated second."""
        return ROWS * LENGTH / self.step_seconds


def library_text(size: int = 2 << 20) -> Tensor:
    """Returns the first `size` bytes of the modules of the standard library, by name."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    data = bytearray()
    for path in sorted(folder.glob("*.py")):
        data += path.read_bytes()
        if len(data) >= size:
            break
    return torch.frombuffer(data[:size], dtype=torch.uint8).long()


def batches(text: Tensor, steps: int, rows: int = ROWS) -> Iterator[dict[str, Tensor]]:
    """Yields random windows of the text, the same in every run."""
    generator = torch.Generator().manual_seed(SEED)
    for _ in range(steps):
        starts = torch.randint(0, len(text) - LENGTH - 1, (rows, 1), generator=generator)
        windows = text[starts + torch.arange(LENGTH + 1)]
        yield {"input_ids": windows[:, :-1].contiguous(), "labels": windows[:, 1:].contiguous()}


def make_model() -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns the model with its initial values, and an example batch."""
    torch.manual_seed(SEED)
    model, batch = gpt(positions=LENGTH, width=64, layers=3, heads=4, batch=ROWS)
    for name, parameter in model.named_parameters():
        if "tokens" in name or "positions" in name:
            nn.init.normal_(parameter, std=0.02)
    return model, batch


class Demo:
    """The compared runs."""

    def __init__(self, steps: int, tick: Callable[[], None]) -> None:
        self.steps = steps
        self.tick = tick
        self.text = library_text()
        self.model, batch = make_model()
        self.graph = medley.capture(self.model, batch, name="demo")
        self.cluster = parse_cluster(CLUSTER, "demo.yaml")

    def plan(self, strategy: str, cluster: medley.Cluster) -> medley.Plan:
        """Returns the plan of a strategy."""
        return medley.plan(self.graph, cluster, strategy, global_batch=ROWS)

    def train(self, name: str, chosen: medley.Plan, trace: Path | None = None) -> Outcome:
        """Trains from the same start on the same batches."""
        optimizer = medley.AdamW(lr=medley.cosine(3e-3, self.steps, warmup_steps=self.steps // 10))
        with job.emulated():
            trainer = medley.Trainer(
                self.model,
                self.graph,
                chosen,
                optimizer,
                seed=SEED,
                local=True,
                keep_gradients=False,
                trace=trace is not None,
            )
        for batch in batches(self.text, self.steps):
            metrics = trainer.step(batch)
            self.tick()
        if trace is not None:
            trainer.save_trace(trace)
        return Outcome(name, metrics.step_seconds, metrics.loss, dict(metrics.devices))

    def run(self, trace: Path) -> tuple[list[Outcome], Outcome]:
        """Returns the outcomes of the plans, and that of one device."""
        even = self.train("even split", self.plan("data-parallel-even", self.cluster))
        proportional = self.train(
            "proportional split", self.plan("data-parallel-proportional", self.cluster), trace
        )
        one = self.train(
            "one fast device", self.plan("data-parallel-even", parse_cluster(ONE, "one.yaml"))
        )
        return [even, proportional], one


def perfect_seconds(even: Outcome) -> float:
    """Returns the step time in seconds if all devices had the mean speed: the limit of balance
    alone."""
    slowest = min(SPEEDS.values())
    return even.step_seconds * slowest * len(SPEEDS) / sum(SPEEDS.values())


def demo(steps: int, trace: Path, as_json: bool, survive: Callable[[Demo], Survival] | None) -> int:
    """Runs everything and prints one table, and the effect of a kill if `survive` is given."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn

    begin = time.monotonic()
    console = Console(stderr=True, highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed} steps"))
    with Progress(*columns, console=console, transient=True, disable=as_json) as progress:
        task = progress.add_task("training on emulated devices", total=3 * steps)
        shown = Demo(steps, lambda: progress.advance(task))
        outcomes, one = shown.run(trace)
        survived = None
        if survive is not None:
            progress.update(task, description="killing one of three processes")
            survived = survive(shown)
    seconds = time.monotonic() - begin
    if as_json:
        figures = _figures(outcomes, one, seconds, trace)
        if survived is not None:
            figures["kill"] = survived.figures()
        print(json.dumps(figures, indent=2))
        return 0
    _print(outcomes, one, seconds, trace)
    if survived is not None:
        print(survived.text())
    print_next(["medley", "capture", "medley_extras.models:gpt", "-o", "g.graph"])
    return 0


def _figures(
    outcomes: list[Outcome], one: Outcome, seconds: float, trace: Path
) -> dict[str, object]:
    even = outcomes[0]
    rows = [
        dataclasses.asdict(outcome)
        | {
            "tokens_per_second": outcome.tokens_per_second,
            "speedup": even.step_seconds / outcome.step_seconds,
        }
        for outcome in [*outcomes, one]
    ]
    return {
        "runs": rows,
        "perfect_balance_seconds": perfect_seconds(even),
        "communication_share_of_even": min(even.waiting.values()),
        "real_seconds": seconds,
        "trace": str(trace),
    }


def _print(outcomes: list[Outcome], one: Outcome, seconds: float, trace: Path) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    even = outcomes[0]
    kinds = list(dict.fromkeys(name.split("/")[0] for name in SPEEDS))
    table = Table(
        title="A GPT on 4 devices, 2 of them at half speed (emulated)",
        title_justify="left",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        pad_edge=False,
        show_edge=False,
    )
    table.add_column("")
    for title in ("step", "tokens/s", "speed", *(f"{kind} wait" for kind in kinds), "loss"):
        table.add_column(title, justify="right", no_wrap=True)

    def row(name: str, step: float, waits: list[str], loss: str) -> None:
        table.add_row(
            name,
            f"{step * 1e3:.2f} ms",
            f"{ROWS * LENGTH / step:,.0f}",
            f"{even.step_seconds / step:.2f}x",
            *waits,
            loss,
        )

    for outcome in outcomes:
        waits = [
            ", ".join(
                f"{100 * wait:.0f} %"
                for name, wait in outcome.waiting.items()
                if name.startswith(kind)
            )
            for kind in kinds
        ]
        row(outcome.name, outcome.step_seconds, waits, f"{outcome.loss:.4f}")
    row("perfect balance", perfect_seconds(even), ["0 %"] * len(kinds), "")
    row(one.name, one.step_seconds, [""] * len(kinds), f"{one.loss:.4f}")
    Console(highlight=False).print(table)
    spread = max(abs(outcome.loss - one.loss) for outcome in outcomes)
    text = (
        f"Losses differ from that of one device by {spread:.1e}. Communication is "
        f"{100 * min(even.waiting.values()):.0f} % of the even split's step. Took {seconds:.0f} s."
        f"\nTrace of a step of the proportional split: {trace}, for https://ui.perfetto.dev"
    )
    print(wrapped(text))
