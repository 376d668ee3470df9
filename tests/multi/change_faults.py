"""The processes of test_change_faults.py: `change_faults.py FOLDER [FAULT]`.

Trains by `fit` in FOLDER/run, and changes the plan after AT steps. Fields of FAULT, which is JSON:
- `device`: the process of the fault.
- `state`: one of STATES, in which the fault occurs, but not the first `skip` times.
- `signal`: it receives this signal, `times` times. `launcher`: its launcher instead.
- `raises`: text of an error of the allocator instead. Training continues. `alone`: its steps are
  made without `fit`, and a failed one again.
- `saves`: a checkpoint begins right before the change. `full`: the disk is full meanwhile.
- `save`: interval of checkpoints, which are written in parallel with training.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

import medley
from medley import _runtime, checkpoint
from medley.engine import Engine
from medley.run import change
from medley.run.change import PlanError
from medley.run.elastic import Member
from medley.run.objectives import Objectives
from medley.run.recovery import Recovery

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
import changer
import exactness
from zoo import ZOO

_hooks: list[Any] = []  # a run refers to them without a count
AT = 2
SMALL = 1000  # bytes of a file, fewer than those of a checkpoint
STEPS, ELASTIC_STEPS = 5, 12
# Places in a change of plan -> the function there, and whether the fault is after or before it.
STATES: dict[str, tuple[Any, str, bool]] = {
    "requested": (medley.Trainer, "change_plan", True),  # in an elastic run
    "begun": (change, "change_plan", False),
    "built": (Engine, "make_run", True),
    "moved": (_runtime, "share_state", True),
    "finished": (Engine, "enter", False),
    "entered": (Engine, "enter", True),
    "stepping": (Engine, "step", False),  # inside the first step
    # The parts of a recovery, in an elastic run.
    "plan": (Objectives, "plan", False),
    "connect": (Member, "leave", True),
    "make_runs": (Objectives, "make_runs", False),
    "fetch": (Objectives, "fetch", False),
    "load_constants": (Objectives, "load_constants", False),
    "share_history": (Recovery, "_share_history", False),
    "hand_over": (Objectives, "hand_over", False),
    "taken": (Objectives, "hand_over", True),
    "copying": (_runtime.KeptState, "fill_replicas", False),  # of state replicas
    "copied": (_runtime.KeptState, "fill_replicas", True),
}


@functools.cache
def captured() -> tuple[torch.nn.Module, Any, medley.Graph]:
    """Returns model, batch and graph."""
    torch.manual_seed(0)
    with exactness.double_precision():
        return exactness.captured(ZOO["mlp"], exactness.ROWS)


@functools.cache
def plans() -> list[medley.Plan]:
    """Returns plans of the same devices in several orders."""
    return [medley.Plan(plan) for plan in changer.plans_of(captured()[2])]


def batches(steps: int) -> list[Any]:
    """Returns another global batch for every step."""
    batch = captured()[1]
    return [{name: value + 0.1 * step for name, value in batch.items()} for step in range(steps)]


def trainer_of(plan: medley.Plan, local: bool = False) -> medley.Trainer:
    """Returns a trainer under a plan."""
    model, _, graph = captured()
    optimizer, cluster = medley.AdamW(lr=1e-3, weight_decay=0.01), exactness.cluster(4)
    return medley.Trainer(model, graph, plan, optimizer, local=local, cluster=cluster)


class Change:
    """An observer of a trainer that changes its plan."""

    def __init__(self, fault: dict[str, Any], saved: str) -> None:
        self._fault, self._saved = fault, saved
        self._is_asked = False
        self.errors: list[str] = []

    def step(self, trainer: medley.Trainer, metrics: medley.Metrics) -> None:
        """Notes a step."""
        if self._is_asked and trainer.is_elastic:
            time.sleep(0.0 if trainer.recoveries else 0.3)  # until the change begins
        if metrics.step + 1 < AT or self._is_asked:
            return
        self._is_asked = True
        if trainer.is_elastic and trainer.recoveries:
            return  # another process has asked
        before = trainer.plan
        with contextlib.ExitStack() as stack:
            if "full" in self._fault:
                stack.enter_context(full_disk(trainer.is_elastic))
            if "saves" in self._fault:
                trainer.save(self._saved, keep=STEPS, wait=False)
            try:
                trainer.change_plan(plans()[1])
            except (OSError, RuntimeError) as error:
                if "raises" not in self._fault:
                    raise
                assert trainer.plan is before
                self.errors.append(str(error))
        assert self.errors or trainer.is_elastic or trainer.plan is plans()[1]


@contextlib.contextmanager
def full_disk(always: bool) -> Iterator[None]:
    """Lets no large file be written inside the block. `always`: no checkpoint of AT steps, ever."""
    if always:
        written = checkpoint._written
        error = json.dumps({"files": [], "error": "No space left on device"})
        checkpoint._written = lambda save: error if save.state["step"] == AT else written(save)
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def apply(fault: dict[str, Any]) -> None:
    """Applies a fault, once."""
    if fault.pop("state", None) is None:
        return
    if "raises" in fault:
        raise torch.OutOfMemoryError(fault["raises"])
    for _ in range(fault.get("times", 1)):
        os.kill(os.getppid() if "launcher" in fault else os.getpid(), fault["signal"])
        time.sleep(0.1)  # until the main thread has seen it
    if "launcher" in fault:
        time.sleep(0.5)  # until all have the signal


@contextlib.contextmanager
def faulty(fault: dict[str, Any]) -> Iterator[None]:
    """Applies a fault to this process inside the block, in its state of the first change."""
    owner, name, is_behind = STATES[fault["state"]]
    do: Callable[..., Any] = getattr(owner, name)
    make_run, enter = _runtime.Run, Engine.enter
    changed: list[bool] = []

    def entered(*arguments: Any) -> None:
        enter(*arguments)
        changed.append(True)

    def on_step(call: str, exchange: str) -> None:
        if changed and "backward" in call:
            apply(fault)

    _hooks.append(on_step)

    def made(program: Any, cluster: Any, options: dict[str, Any]) -> Any:
        return make_run(program, cluster, {**options, "on_step": on_step})

    def troubled(*arguments: Any) -> Any:
        if owner is Engine and arguments[0].run is None:  # its first run
            return do(*arguments)
        if fault.get("skip", 0) > 0:
            fault["skip"] -= 1
            return do(*arguments)
        if not is_behind:
            apply(fault)
        found = do(*arguments)
        if is_behind:
            apply(fault)
        return found

    if fault["state"] == "stepping":
        _runtime.Run, Engine.enter = made, entered  # type: ignore[misc,assignment,method-assign]
    else:
        setattr(owner, name, troubled)
    try:
        yield
    finally:
        setattr(owner, name, do)
        _runtime.Run, Engine.enter = make_run, enter  # type: ignore[misc,method-assign]


def try_again(trainer: medley.Trainer, seen: Path) -> None:
    """Trains, and makes a step that fails again. Writes the losses, errors and last plan."""
    losses, errors = [], []
    for batch in batches(STEPS):
        try:
            losses.append(trainer.step(batch).loss)
        except PlanError as error:
            errors.append(str(error))
            losses.append(trainer.step(batch).loss)
    values = {name: value.tolist() for name, value in trainer.parameters().items()}
    trainer.finish()
    found = {"losses": losses, "errors": errors, "plan": trainer.plan.text, "values": values}
    seen.write_text(json.dumps(found))


def train(folder: Path, fault: dict[str, Any], local: bool = False) -> medley.Fitted | None:
    """Trains, and applies the fault."""
    own = os.environ.get("MEDLEY_DEVICE") or plans()[0].devices[int(os.environ.get("RANK", 0))]
    is_new = "MEDLEY_JOINS" in os.environ  # it replaces the killed process
    is_victim = "state" in fault and (local or fault["device"] == own) and not is_new
    with exactness.double_precision(), faulty(fault) if is_victim else contextlib.nullcontext():
        trainer = trainer_of(plans()[0], local)
        change = Change(fault, str(folder / "run"))
        trainer.observers.append(change)
        if "alone" in fault:
            return try_again(trainer, folder / f"seen-{own.replace('/', '-')}.json")
        steps = ELASTIC_STEPS if trainer.is_elastic else STEPS
        fitted = trainer.fit(
            batches(steps), output=folder / "run", save_every=fault.get("save", 0), keep=STEPS
        )
        trainer.finish()
    (folder / f"seen-{own.replace('/', '-')}.json").write_text(
        json.dumps({"errors": change.errors, "interrupted": fitted.interrupted})
    )
    return fitted


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), json.loads(sys.argv[2]) if len(sys.argv) > 2 else {})
