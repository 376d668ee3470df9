"""The first step under another plan. If it fails on any device, all processes continue under the
plan before, whose run has kept its state."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from medley.engine import Engine, PlanError
from medley.run import ends, exchange
from medley.run.watch import Watch


@contextlib.contextmanager
def trial(engine: Engine, watch: Watch | None) -> Iterator[None]:
    """Wraps a step. If it is the first one under another plan and fails, PlanError is raised in all
    processes, under the plan before. `watch`: that of this process in a job."""
    if not engine.is_trial:
        yield
        return
    run, error = engine.run, ""
    done = run.steps
    key = "" if watch is None else exchange.new_key("trial")
    try:
        with _ended_with_others(engine, watch, key):
            try:
                yield
            except Exception as failed:
                error = str(failed)
                if watch is not None:
                    own = "" if error.startswith(f"{ends.name()}:") else f"{ends.name()}: "
                    exchange.store().set_first(key, own + error)
    except BaseException:  # Ctrl-C may be raised after the step
        if run.steps > done:
            engine.end_trial()
        raise
    if first := exchange.first_error(engine.job, error):
        engine.go_back()
        raise PlanError(first if watch is None else str(exchange.store().get(key)))
    engine.end_trial()


@contextlib.contextmanager
def _ended_with_others(engine: Engine, watch: Watch | None, key: str) -> Iterator[None]:
    """Aborts this step when that of another process has failed."""
    if watch is None:
        yield
        return

    def abort() -> None:
        engine.run.abort("the step has failed on another device")

    with watch.over(exchange.store(), key, abort):
        yield
