"""Collective execution of the calls of a trainer by the processes of a run."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar

from medley import _runtime
from medley.engine import Engine
from medley.metrics import Metrics
from medley.plan import Plan
from medley.run import change, ends, exchange
from medley.run.elastic_session import ElasticSession
from medley.run.job import Job
from medley.run.journal import Kind
from medley.run.objectives import order_of, reshard_peers
from medley.run.watch import Watch
from medley.whole import Whole

Made = TypeVar("Made")
Values = Mapping[str, float]


class Session(Protocol):
    """The session of one state from its first runs on. In an elastic run it repeats work that a
    loss interrupted."""

    whole: Whole
    is_elastic: bool  # it continues when processes are lost

    def step(self, engine: Engine, batch: Any) -> Metrics: ...
    def evaluate(self, engine: Engine, batches: Iterable[Any]) -> dict[str, float]: ...
    def predict(self, engine: Engine, batch: Any) -> dict[str, Any]: ...

    # Results of a call that all processes make at the same place: now, or once per run, so that a
    # process that joins later receives it.
    def together(self, make: Callable[[], Made]) -> Made: ...
    def once(self, kind: Kind, make: Callable[[], Made]) -> Made: ...
    def evaluated(self, make: Callable[[], Values]) -> Values: ...

    # Continues under another plan, in an elastic run soon. Returns the received bytes, if known.
    def change_plan(self, plan: Plan) -> int: ...

    # The steps before the last evaluation and its values, possibly from before this process joined.
    def last_evaluation(self) -> tuple[int, Values] | None: ...

    # Training resumes after these steps of each objective, from a checkpoint or, without a path,
    # from state outside all checkpoints.
    def begin_at(self, counts: list[int], path: str) -> None: ...

    # Skips steps from before this process joined: all but the last, or those of a call of `fit`,
    # which ends after `steps`, if known. Returns the metrics of the last one.
    def catch_up(self) -> Metrics | None: ...
    def begin_fit(self, steps: int | None) -> Metrics | None: ...
    def end_fit(self) -> None: ...

    def complete(self) -> None: ...  # the save in progress, unless finish() does
    def fail(self, cause: str) -> str: ...  # ends the run; returns its first cause
    def finish(self) -> None: ...  # this device has finished


class LocalSession:
    """A session whose devices are all threads of this process."""

    is_elastic = False
    _watch: Watch | None = None  # ends a first step under another plan

    def __init__(self, whole: Whole) -> None:
        self.whole = whole
        whole.open(self.introduce)
        weakref.finalize(self, Whole.leave, whole)

    def introduce(self, engine: Engine) -> None:
        """Publishes the name of this process."""

    def step(self, engine: Engine, batch: Any) -> Metrics:
        if (shared := self.whole.shared) is not None:
            shared.bring(engine.name)
            shared.take(engine.name)
        run, order = engine.run, engine.order
        done = run.steps
        try:
            with exchange.reordered(order):
                own = engine.read(batch)
                with change.trying(engine, self._watch):
                    metrics = engine.step(own)
        except change.PlanError:
            self.whole.saver.wait()
            self.whole.open_saver()
            raise
        finally:  # Ctrl-C may be raised after a step
            if engine.run is run:
                engine.steps += run.steps - done
        self.whole.saver.poll()
        return metrics

    def evaluate(self, engine: Engine, batches: Iterable[Any]) -> dict[str, float]:
        return engine.evaluation.means(batches)

    def predict(self, engine: Engine, batch: Any) -> dict[str, Any]:
        return engine.evaluation.outputs(batch)

    def evaluated(self, make: Callable[[], Values]) -> Values:
        return make()

    def change_plan(self, plan: Plan) -> int:
        return self._change_plan(plan, None, None)

    def _change_plan(
        self, plan: Plan, this: Job | None, peers: _runtime.ReshardPeers | None
    ) -> int:
        self.whole.saver.wait()
        try:
            return change.change_plan(self.whole.first, plan, this, peers)
        finally:  # Ctrl-C may be raised after the change
            self.whole.open_saver()

    def together(self, make: Callable[[], Made]) -> Made:
        return make()

    def once(self, kind: Kind, make: Callable[[], Made]) -> Made:
        return make()

    def begin_at(self, counts: list[int], path: str) -> None:
        self.whole.set_steps(counts)

    def last_evaluation(self) -> None: ...
    def catch_up(self) -> None: ...
    def begin_fit(self, steps: int | None) -> None: ...
    def end_fit(self) -> None: ...

    def complete(self) -> None:
        self.whole.saver.wait()

    def fail(self, cause: str) -> str:
        return [engine.fail(cause) for engine in self.whole.engines.values()][0]

    def finish(self) -> None:
        if self.whole.saver is not None:  # all runs exist
            self.whole.saver.wait()
        for engine in self.whole.engines.values():
            engine.report_slow()
            engine.finish()


class JobSession(LocalSession):
    """A session with one process per device, of fixed size: a lost process ends the run."""

    def introduce(self, engine: Engine) -> None:
        """Publishes the name of this process, and watches for the ends of others."""
        assert engine.job is not None
        ends.know_as(engine.plan.devices[engine.job.rank])
        exchange.introduce()
        if engine is self.whole.first:
            self._devices = engine.plan.devices
            ends.watch(self)

    def change_plan(self, plan: Plan) -> int:
        engine = self.whole.first
        assert engine.job is not None
        if sorted(plan.devices) != sorted(self._devices):
            raise ValueError(
                f"change_plan: found a plan for the devices {', '.join(plan.devices)}, expected "
                f"those of the job: {', '.join(self._devices)}"
            )
        self._watch = self._watch or Watch()
        own = engine.plan.devices[engine.job.rank]
        group, seconds = exchange.group_name(), exchange.TIMEOUT_SECONDS
        peers = reshard_peers(engine.machines, self._devices, own, group, seconds)
        this = dataclasses.replace(engine.job, rank=plan.devices.index(own))
        with exchange.reordered(order := order_of(plan, self._devices)):
            received = self._change_plan(plan, this, peers)
        engine.order = order
        return received


def session_of(whole: Whole, this: Job | None) -> Session:
    """Returns the session of this process, whose runs exist. `this`: None without a job."""
    if this is None:
        return LocalSession(whole)
    return ElasticSession(whole, this) if this.elastic else JobSession(whole)


def go_on_after(session: Session, read: Callable[[], list[int]]) -> None:
    """Loads state outside all checkpoints of this run by `read`, once per run. `read` returns the
    steps of each objective after which training resumes."""
    session.begin_at(session.once(Kind.LOAD, read), "")
