"""The processes of test_elastic.py: `survivor.py FOLDER STEPS [FAULT]`.

FOLDER has plan.json, cluster.yaml and model.graph. Fields of FAULT, which is JSON:
- `device`, `step`: the killed process, and when. `whom`: its supervisor or node instead. `signal`:
  another signal. `continues`: seconds until it is continued.
- `call`, `exchange`: the place in the step, before the call with these words in its name, or
  `behind` it. `slow`: it sleeps while it waits there. `saving` (of SAVING): in the save after the
  step instead.
- `slows`: the fields of Slowness, for `device`.
- `second`: killed in the recovery, before `during` (a method of Recovery, or of its Objectives).
- `generations`: `device` ends this many generations, one per step, without a loss.
- `own_rows`: each process passes its own rows. `other_order`: process with another order of rows.
- `save`: interval of checkpoints in FOLDER/saved. `reads`: parameters after each step.
- `scaled`: f32 with a loss scale that overflows in the first steps. `by_step`: with BY_STEP.
- `catches_up`: a restarted process starts at the state of the others.
- `changes`: files of plans in FOLDER by step, requested before it.
- `late`: a device that receives each of its first values later than the others.
- `ahead`: not before the plan for its loss exists. `pause`: seconds before each step.
- `torch`: training begins with the model and optimizer files of FOLDER/torch.

The process of the plan's first device writes its results to FOLDER/seen.pt. If FOLDER/start.pt
exists, the results of another run, training begins there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import medley
from medley import _runtime, checkpoint, torch_state, whole_tensors
from medley.run import elastic, exchange
from medley.run.ahead import key_of
from medley.run.objectives import Objectives
from medley.run.recovery import Recovery
from medley_extras import models

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
from exactness import double_precision

ROWS = 6
STATE = ("parameter", "state", "buffer")
# A place in a save or a load -> its function, and whether a process is killed after or before it.
SAVING: dict[str, tuple[Any, str, bool]] = {
    "begun": (checkpoint.Saver, "begin", True),
    "written": (checkpoint, "_written", False),  # before the others know of it
    "reported": (checkpoint, "_written", True),
    "complete": (checkpoint.Saver, "_complete", False),  # the first process
    "committed": (checkpoint.Saver, "_note", True),  # the first process
    "optimizer": (torch_state, "read", False),  # in a load
}


def make(double: bool = True) -> tuple[nn.Module, dict[str, Tensor]]:
    """Returns a model in fp64, or f32, and a global batch, the same everywhere."""
    torch.manual_seed(0)
    with double_precision() if double else contextlib.nullcontext():
        return models.gpt(batch=ROWS)


# Hyperparameters as functions of the step, and the share of an average: it begins after a step, and
# takes the weights of every second one.
BY_STEP: dict[str, Any] = {
    "lr": lambda step: 1e-3 * (1 + step % 3),
    "betas": (lambda step: 0.95 - 0.1 * (step % 2), lambda step: 1 - 0.1 / (step + 1)),
    "weight_decay": lambda step: 0.01 * (step + 1),
    "max_norm": lambda step: 0.5 + 0.1 * step,
    "average": lambda step: 0.0 if step < 1 else 0.7 if step % 2 else 1.0,
}


def optimizer(**fields: Any) -> medley.AdamW:
    """Clips, so that the norm matters."""
    return medley.AdamW(**{"lr": 1e-3, "weight_decay": 0.01, "max_norm": 0.5, **fields})


def is_there(trainer: medley.Trainer) -> bool:
    """Returns whether the plan for all but this process has been found."""
    member = elastic.member()
    left = [name for name in trainer.plan.devices if name != member.name]
    return member.store.get(member.key(key_of(left))) is not None


def batch_of(example: dict[str, Tensor], step: int) -> dict[str, Tensor]:
    """Returns another global batch for every step."""
    turned = torch.roll(torch.arange(ROWS), step)
    return {name: (value[turned] + 7 * step) % 50 for name, value in example.items()}


def whole(trainer: medley.Trainer) -> dict[tuple[str, str], Tensor]:
    """Returns all that outlives a step, whole. All processes call it."""
    for kind, name in trainer.engine.run.values:
        if kind == "state":
            trainer.engine.types[kind, name] = (torch.float64, "")
    return {
        (kind, name): whole_tensors.read_one(
            trainer.engine.run, trainer.engine.job, trainer.engine.types, kind, name
        )
        for kind, name in trainer.engine.run.values
        if kind in STATE and not name.startswith("constant:")
    }


def end(number: int = signal.SIGKILL, whom: str = "", continues: float = 0) -> None:
    """Kills or stops this process, its supervisor, or its whole node, and writes the time. If it
    `continues`, it does so after this many seconds."""
    Path(sys.argv[1], "ended").write_text(repr(time.time()))
    if continues:
        wake = ["sh", "-c", f"sleep {continues}; kill -CONT {os.getpid()}"]
        subprocess.Popen(wake, start_new_session=True, stdout=subprocess.DEVNULL)
    if not whom:
        return os.kill(os.getpid(), number)
    supervisor = os.getppid()
    others = []
    if whom == "node":
        children = Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()
        others = [int(each) for each in children if int(each) != os.getpid()]
        Path(sys.argv[1], "stopped").write_text(json.dumps([supervisor, *others, os.getpid()]))
    for each in (supervisor, *others):
        os.kill(each, number)
    os.kill(os.getpid(), number)


class Trouble:
    """Kills this process at a place in a step, or lets it sleep there."""

    def __init__(self, fault: dict[str, Any], own: str) -> None:
        self.fault, self.own = fault, own
        # A process that replaces it repeats the step and survives.
        self.joins = "MEDLEY_JOINS" in os.environ
        self.step = -1
        self.found = 0

    def __call__(self, call: str, exchange: str) -> None:
        if self.step != self.fault["step"]:
            return
        here = self.fault["call"] in call and self.fault["exchange"] in exchange
        self.found += here
        # Posted and awaited: "behind" is the first call after both.
        behind = not here and self.found == 2
        if self.own == self.fault.get("slow"):
            if here and self.found == 2:
                time.sleep(0.8)
        elif not self.joins and (behind if self.fault.get("behind") else here):
            end()


class Slowness:
    """Delays every device in each step, so that their times are similar, and one of them several
    times as much: from a step on, until some steps after the plan has changed."""

    MOMENT = 0.01  # seconds

    def __init__(self, fault: dict[str, Any], own: str) -> None:
        self.times, self.first, self.more = fault["slows"]
        self.is_slow = fault["device"] == own
        self.last = sys.maxsize
        self.now = -1
        self.is_due = False

    def __call__(self, call: str, exchange: str) -> None:
        if self.is_due and not exchange:
            self.is_due = False
            slow = self.is_slow and self.first <= self.now < self.last
            time.sleep(self.MOMENT * (self.times if slow else 1))

    def begin(self, step: int, generation: int) -> None:
        """Starts a step."""
        self.now, self.is_due = step, True
        if generation > 0:
            self.last = min(self.last, step + self.more)


def kill_during(method: str) -> None:
    """Kills this process when its trainer reaches a part of a recovery."""

    def killed(*arguments: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Recovery if hasattr(Recovery, method) else Objectives, method, killed)


def kill_in(place: tuple[Any, str, bool], is_there: Callable[[], bool]) -> None:
    """Kills this process at a place in a save or a load."""
    owner, name, behind = place
    make = getattr(owner, name)

    def killed(*arguments: Any) -> Any:
        if not behind and is_there():
            end()
        made = make(*arguments)
        if behind and is_there():
            end()
        return made

    setattr(owner, name, killed)


def delay(owner: Any, name: str) -> None:
    """Lets a function begin 0.3 s later."""
    make = getattr(owner, name)

    def late(*arguments: Any) -> Any:
        time.sleep(0.3)
        return make(*arguments)

    setattr(owner, name, late)


def resources() -> tuple[int, int, int]:
    """Returns the numbers of descriptors, threads and bytes of memory of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    memory = pages * os.sysconf("SC_PAGE_SIZE")
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), memory


def with_option(make_run: Callable[..., Any], name: str, value: Any) -> Callable[..., Any]:
    """Returns a function that makes a run with one more option."""
    return lambda program, cluster, options: make_run(program, cluster, {**options, name: value})


def main(folder: Path, steps: int, fault: dict[str, Any]) -> None:
    """Trains, and applies the fault."""
    torch.set_num_threads(1)
    own = os.environ.get("MEDLEY_DEVICE", "")
    trouble = Trouble(fault, own)
    if own in (fault.get("device"), fault.get("slow")) and "call" in fault:
        _runtime.Run = with_option(_runtime.Run, "on_step", trouble)  # type: ignore[misc,assignment]
    slowness = Slowness(fault, own) if "slows" in fault else None
    if slowness is not None:
        _runtime.Run = with_option(_runtime.Run, "on_step", slowness)  # type: ignore[misc,assignment]
    if fault.get("second") == own:
        kill_during(fault["during"])
    if fault.get("late") == own:
        delay(exchange, "tensor_from")
    if "saving" in fault and fault.get("device") == own and not trouble.joins:
        kill_in(SAVING[fault["saving"]], lambda: trouble.step >= fault["step"])
    model, example = make(double="scaled" not in fault)
    graph = medley.Graph.load(folder / "model.graph")
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    fields = BY_STEP if "by_step" in fault else fault.get("scaled", {})
    trainer = medley.Trainer(model, graph, plan, optimizer(**fields))
    losses: list[float] = []
    had: list[tuple[int, int, int]] = []
    if (folder / "start.pt").exists():
        start = torch.load(folder / "start.pt")
        for (kind, name), value in start["state"].items():
            if (kind, name) in trainer.engine.run.values:  # there is no loss scale without f16
                trainer.engine.run.load(kind, name, value)
        losses, trainer.steps = start["losses"], len(start["losses"])
    if "torch" in fault:
        trainer.load_model(folder / "torch")
        trainer.load_optimizer_state(torch.load(folder / "torch" / "optimizer.pt"))
    if "catches_up" in fault:
        trainer.catch_up()
    for step in range(trainer.steps, steps):
        trouble.step = step
        if slowness is not None:
            slowness.begin(step, elastic.member().generation)
        is_victim = fault.get("device") == own and "MEDLEY_JOINS" not in os.environ
        is_between = not {"call", "saving", "slows"} & fault.keys()
        is_now = step == fault["step"]
        if is_victim and "ahead" in fault:
            is_now = step >= fault["step"] and is_there(trainer)
            time.sleep(0 if is_now else 0.2)
        if is_victim and is_now and is_between:
            number = fault.get("signal", signal.SIGKILL)
            end(number, fault.get("whom", ""), fault.get("continues", 0))
        if is_victim and step < fault.get("generations", 0):
            elastic.member().fail("a test ends the generation")
            time.sleep(0.2)  # until all know of it
        if str(step) in fault.get("changes", {}):
            trainer.change_plan(folder / fault["changes"][str(step)])
        time.sleep(fault.get("pause", 0))
        batch = batch_of(example, step)
        if fault.get("other_order") == own:
            batch = {name: value.flip(0) for name, value in batch.items()}
        if "own_rows" in fault:
            (rows,) = medley.BatchSampler(plan, range(ROWS))
            batch = {name: value[rows] for name, value in batch.items()}
        losses.append(trainer.step(batch).loss)
        if "save" in fault and (step + 1) % fault["save"] == 0:
            trainer.save(folder / "saved")
        if "reads" in fault:
            trainer.parameters()
        print(f"step {step} loss {losses[-1]!r}", flush=True)
        had.append(resources())
    if own in trainer.plan.devices:
        state = whole(trainer)
    if own == trainer.plan.devices[0]:
        torch.save({"losses": losses, "state": state, "had": had}, folder / "seen.pt")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        int(sys.argv[2]),
        json.loads(sys.argv[3]) if len(sys.argv) > 3 else {"step": -1},
    )
