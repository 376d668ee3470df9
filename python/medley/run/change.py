"""A change of the plan of one engine between two steps, with the same state. The plan is on trial
until its first step has succeeded: if that fails on any device, all processes continue under the
plan before, whose run has kept its state."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from medley import _core, _runtime
from medley.engine import Engine
from medley.plan import Plan
from medley.run import devices, ends, exchange
from medley.run.job import Job
from medley.run.watch import Watch


class PlanError(OSError):
    """A plan cannot run on some device. The plan before stays in all processes."""


@dataclasses.dataclass
class Trial:
    """The run before a change of plan."""

    engine: Engine
    order: list[int] | None
    plan: Plan
    program: _core.Program
    run: Any
    job: Job | None

    def end(self) -> None:
        """Ends it: the new plan stays."""
        self.engine.trial = None
        self.run.finish()
        self.engine.run.is_trial = False

    def go_back(self) -> None:
        """Continues with it, from the state before the step that has failed."""
        self.engine.trial, self.engine.order = None, self.order
        self.engine.run.finish()
        self.engine.replace(self.plan, self.program, self.run, self.job)


def change_plan(
    engine: Engine, plan: Plan, this: Job | None, peers: _runtime.ReshardPeers | None
) -> int:
    """Continues under another plan of the same devices, on trial. Returns the bytes that this
    process has received. `this`: this process in the order of the plan. An error leaves all as it
    was."""
    engine.settle()
    program = engine.program_of(plan)
    moves = _core.ReshardPlan([(engine.program, engine.program.devices, None)], program)
    engine.reset()
    with _fits(this):
        run = engine.make_run(plan, program, this)
        devices.require_memory(run, program, engine.machines, this, engine.places)
    with _fits(None) if this is None else exchange.exchanging(OSError):
        moved: dict[str, int] = _runtime.share_state(moves, engine.run, run, peers)
        engine.load_constants(run)
    run.seed, run.is_trial = engine.run.seed, True
    engine.trial = Trial(engine, engine.order, engine.plan, engine.program, engine.run, engine.job)
    engine.replace(plan, program, run, this)
    return moved["received"]


@contextlib.contextmanager
def _fits(this: Job | None) -> Iterator[None]:
    """Wraps work of all processes that needs memory. If one lacks it, all raise PlanError."""
    error = ""
    try:
        yield
    except (MemoryError, RuntimeError) as failed:  # of PyTorch's allocators
        error = str(failed) if this is None else _named(failed)
    if error := exchange.first_error(this, error):
        raise PlanError(f"change_plan: {error}")


def _named(error: Exception) -> str:
    """Returns the text of an error, after the name of this process, once."""
    text, name = str(error), f"{ends.name()}: "
    return text if text.startswith(name) else name + text


@contextlib.contextmanager
def trying(engine: Engine, watch: Watch | None) -> Iterator[None]:
    """Wraps a step. If it is the first one under another plan and fails, all processes return to
    the plan before and raise PlanError. `watch`: that of this process in a job."""
    if engine.trial is None:
        yield
        return
    run, error = engine.run, ""
    done, key = run.steps, "" if watch is None else exchange.new_key("trial")
    others: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
    if watch is not None:  # ends this step when that of another process has failed
        failure = "the step has failed on another device"
        others = watch.over(exchange.store(), key, lambda: run.abort(failure))
    try:
        with others:
            try:
                yield
            except Exception as failed:
                error = str(failed) if watch is None else _named(failed)
                if watch is not None:
                    exchange.store().set_first(key, error)
    except BaseException:  # Ctrl-C may be raised after the step
        if run.steps > done:
            engine.settle()
        raise
    if first := exchange.first_error(engine.job, error):
        engine.trial.go_back()
        raise PlanError(first if watch is None else str(exchange.store().get(key)))
    engine.settle()
