"""The fourteen checks of `medley doctor --gpu`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from medley_extras.doctor.finding import FAILURE, UNTRIED, Check, Finding, examine

if TYPE_CHECKING:
    import torch

# Text shown while it runs, module of this package, function. These checks measure, so each runs
# alone.
ALONE = [
    ("kernels", "cards", "kernels"),
    ("clocks, power and memory", "cards", "state"),
    ("speed", "cards", "speed"),
    ("buses and copies", "cards", "buses"),
    ("NCCL", "links", "collectives"),
    ("overlap", "links", "overlap"),
    ("recorded launches", "programs", "replay"),
]
# These only test whether it works, and are idle most of the time.
TOGETHER = [
    ("Gloo", "links", "gloo"),
    ("NCCL and Gloo at once", "links", "opposite"),
    ("a process that dies", "links", "abort"),
    ("expandable segments", "links", "allocator"),
    ("attention", "programs", "attention"),
    ("a captured model", "programs", "model"),
]
# The longest one, which hardly needs the GPU: it runs in parallel with all of them.
BESIDE = [("compiled code", "programs", "compiled")]


def _none() -> list[Finding]:
    fix = "nvidia-smi has to list the card, and torch to be a wheel with CUDA: scripts/setup.sh"
    return [
        Finding("gpus", "torch sees none: no check could be tried", FAILURE, fix),
        *(Finding(name, "no GPU here", UNTRIED) for name, _, _ in [*ALONE, *TOGETHER, *BESIDE]),
    ]


def _run(module: str, function: str, devices: Sequence[torch.device]) -> list[Finding]:
    check: Callable[[Sequence[torch.device]], list[Finding]] = getattr(
        importlib.import_module(f"medley_extras.doctor.{module}"), function
    )
    return check(devices)


def examine_gpus(say: Callable[[str], None] = lambda text: None) -> list[Finding]:
    """Returns the findings on the GPUs of this machine, or one that there are none."""
    if importlib.util.find_spec("torch") is None:
        return _none()
    import torch

    if not torch.cuda.is_available():
        return _none()
    devices = [torch.device("cuda", number) for number in range(torch.cuda.device_count())]

    def of(table: Sequence[tuple[str, str, str]]) -> list[Check]:
        return [
            (name, functools.partial(_run, module, function, devices))
            for name, module, function in table
        ]

    with ThreadPoolExecutor(1) as pool:
        beside = pool.submit(examine, of(BESIDE))
        found = [*examine(of(ALONE), say), *examine(of(TOGETHER), say, together=True)]
        say(BESIDE[0][0])
        return [*found, *beside.result()]
