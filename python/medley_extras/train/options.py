"""The arguments of `medley train`."""

from __future__ import annotations

import argparse
import dataclasses
import math


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Model, data and settings of a training. Exactly one of `steps` and `epochs` is given."""

    model: str
    data: str
    output: str = "out"
    plan: str | None = None
    cluster: str | None = None
    strategy: str = "auto"
    global_batch: int | None = None
    steps: int | None = None
    epochs: int | None = None
    length: int | None = None
    tokenizer: str | None = None
    augment: bool = False
    optimizer: str = "adamw"
    lr: float = 3e-4
    warmup: int = 0
    cosine: bool = False
    weight_decay: float = 0.01
    max_norm: float | None = None
    autocast: str | None = None
    seed: int = 0
    held_out: float = 0.05
    evaluate_every: int = 100
    log_every: int = 10
    resume: bool = False
    save_every: int = 500
    keep: int = 3
    keep_every: int = 0
    json: bool = False
    metrics_port: int | None = None
    metrics_host: str = "127.0.0.1"
    tune: str | None = None
    no_memory: bool = False

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("medley train: expected either --steps or --epochs")
        for name in (
            "steps",
            "epochs",
            "global_batch",
            "length",
            "log_every",
            "evaluate_every",
            "keep",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{_flag(name)}: found {value}, expected a number >= 1")
        for name in ("warmup", "save_every", "keep_every"):
            value = getattr(self, name)
            if value < 0:
                raise ValueError(f"{_flag(name)}: found {value}, expected a number >= 0")
        if not (math.isfinite(self.held_out) and 0 <= self.held_out < 1):
            raise ValueError(f"--held-out: found {self.held_out}, expected a share in [0, 1)")
        if not -(2**40) < self.seed < 2**40:
            raise ValueError(f"--seed: found {self.seed}, expected a number below 2^40")


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of `medley train`. Their names are the fields of Options."""
    add = parser.add_argument
    add("model", help="package.module:function that returns (model, example batch), or hf:config")
    add(
        "--data",
        required=True,
        help="folder of *.txt for a language model; of a subfolder of PNG or JPEG per class for a "
        "classifier of images",
    )
    add("--plan", help="plan.json; without, one is made")
    add("--cluster", help="cluster.yaml; without, one processor")
    add("--strategy", default="auto", help="of the plan that is made (medley list strategies)")
    add("--global-batch", type=int, help="rows of a step; default: the plan's, else 32")
    add("--steps", type=int)
    add("--epochs", type=int)
    add("--length", type=int, help="tokens of a sequence; default: those of the example batch")
    add("--tokenizer", help="tokenizer.json of a language model; without, tokens are bytes")
    add("--augment", action="store_true", help="crop and mirror images at random")
    add("--optimizer", choices=["adamw", "adam", "sgd", "lion", "adafactor"], default="adamw")
    add("--lr", type=float, default=3e-4, help="learning rate (default 3e-4)")
    add("--warmup", type=int, default=0, help="steps in which the learning rate grows to --lr")
    add("--cosine", action="store_true", help="the learning rate falls to 0 as a cosine")
    add("--weight-decay", type=float, default=0.01)
    add("--max-norm", type=float, help="scale gradients to at most this norm")
    add("--autocast", choices=["bf16"], help="compute in bf16; weights stay as they are")
    add("--seed", type=int, default=0, help="of initial weights, dropout and the order of rows")
    add("--held-out", type=float, default=0.05, help="share of the rows never trained on (0.05)")
    add("--evaluate-every", type=int, default=100, help="steps between two held-out losses")
    add("--log-every", type=int, default=10, help="steps between two lines of metrics.jsonl")
    add("--resume", action="store_true", help="go on from the newest checkpoint in --output")
    add("--save-every", type=int, default=500, help="steps between two checkpoints (500); 0: none")
    add("--keep", type=int, default=3, help="checkpoints that stay, the newest ones (3)")
    add("--keep-every", type=int, default=0, help="and those whose step is a multiple of this")
    add(
        "-o",
        "--output",
        default="out",
        help="folder of weights, metrics and checkpoints (default: out)",
    )
    add(
        "--tune",
        metavar="auto|off|STEPS",
        help="try other plans during the first steps, at the cost of so many (default: auto)",
    )
    add("--no-memory", action="store_true", help="race anew, and keep no result")
    add("--metrics-port", type=int, help="serve metrics of the run as OpenMetrics text; 0: any")
    add("--metrics-host", default="127.0.0.1", help="address for that; default: the loopback")


def from_namespace(arguments: argparse.Namespace) -> Options:
    """Returns the options of a parsed command line."""
    return Options(**vars(arguments))


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")
