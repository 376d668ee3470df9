"""A session that continues when processes are lost: interrupted work is repeated or finished under
the plan of the next generation. Several objectives over one state (`objectives.py`) are one run.
Its steps are those of all objectives in the order of the script."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from medley.engine import Engine
from medley.metrics import Metrics, Outputs
from medley.plan import Plan
from medley.run import elastic, ends, job
from medley.run.elastic import RunEndError, ScriptError
from medley.run.evaluations import Evaluations
from medley.run.journal import Kind
from medley.run.objectives import Objectives
from medley.run.recovery import Recovery
from medley.run.steps import Steps
from medley.whole import Whole

Made = TypeVar("Made")
Values = Mapping[str, float]
_alive: list[ElasticSession] = []  # until the process ends; other processes may need them


class ElasticSession:
    """The session of one state. It has its part of the state at construction, also in a process
    that replaces a lost one."""

    is_elastic = True

    def __init__(self, whole: Whole, this: job.Job) -> None:
        if _alive:
            raise ValueError("elastic: found a second trainer in a process, expected one")
        _alive.append(self)
        self.whole = whole
        self._member = elastic.member()
        steps = self._steps = Steps(Objectives(whole, self._member, this), self._member)
        self._journal, self._progress = steps.journal, steps.progress
        self._lives, self._engines = steps.journal.lives, steps.objectives.engines
        self._acts, self._notice = steps.acts, steps.notice
        self._recovery = Recovery(steps)
        self._evaluations = Evaluations(self._member, self._notice)
        ends.watch(self)
        if job.joins_later():
            whole.opened()
            self._recovery.arrive()
        else:
            whole.open()
            self._recovery.begin()

    # --- position of the script ---

    @property
    def _is_behind(self) -> bool:
        """Returns whether the script repeats work from before this process joined."""
        return self._lives.is_past or self._progress.asked < len(self._lives.last.seen)

    def begin_at(self, counts: list[int], path: str) -> None:
        self.whole.set_steps(counts)
        self._recovery.begin_life(counts, path)

    def catch_up(self) -> Metrics | None:
        return self._leave_out(None, 1)

    def _leave_out(self, most: int | None, before: int = 0) -> Metrics | None:
        """Skips steps from before this process joined: `most`, or all but `before`. Returns the
        metrics of the last one, if known."""
        if most is None and self._lives.is_past:
            self._lives.place, self._progress.asked = self._lives.newest, 0
        seen = len(self._lives.here.seen)
        steps = seen - before if most is None else min(most, seen)
        if steps <= self._progress.asked:
            return None
        self._progress.asked = steps
        self._steps.set_steps(steps)
        last = self._steps.metrics_of(steps - 1)
        return last if math.isfinite(last.loss) else None

    def begin_fit(self, steps: int | None) -> Metrics | None:
        return self._leave_out(self._acts.begin_fit(steps))  # other processes run the script's own

    def end_fit(self) -> None:
        self._acts.end_fit(self.whole.steps)

    # --- collective calls ---

    def step(self, engine: Engine, batch: Any) -> Metrics:
        """Runs a step until it succeeds. Steps from before this process joined are not repeated;
        their recorded metrics are returned."""
        step, here = self._progress.asked, self._lives.here
        number = self._engines.index(engine)
        if not here.ask(step, number):
            raise ValueError(
                f"step {step}: found one of {engine.name!r} in the script, and of "
                f"{self._engines[here.objective(step)].name!r} in the run: expected the same order "
                "of objectives in all processes"
            )
        self._progress.asked += 1
        if not self._lives.is_past:
            life = self._lives.newest
            self._journal.forget(Kind.BATCH, (life, self._steps.oldest_needed(step)))
            self._journal.record(Kind.BATCH, (life, step), 0, batch)
        if step < len(here.seen):
            metrics = self._steps.metrics_of(step)
            self._steps.set_steps(self._progress.asked)
        else:
            self._call(lambda: None, "step")
            assert self._progress.metrics is not None
            metrics = self._progress.metrics
        if self.whole.saver is not None:
            self.whole.saver.poll()
        return metrics

    def together(self, make: Callable[[], Made]) -> Made:
        asked = self._progress.asked
        if self._is_behind:
            raise ValueError(
                f"found a script that is after step {asked}, and a run that has done "
                f"{self._progress.done}: what others were given then is gone; expected a script "
                "that begins at Trainer.steps, behind Trainer.catch_up()"
            )
        made = self._call(make, "read")
        self._acts.note_read(make, self._steps.oldest_needed(asked))
        return made

    def once(self, kind: Kind, make: Callable[[], Any]) -> Any:
        """Returns the result of `make` from all processes together, or the recorded one from before
        this process joined. Returns None if it precedes the checkpoint from which the run began."""
        place = self._lives.place, self._progress.asked
        number = self._journal.ask(kind, place)
        if not self._journal.has(kind, place, number):
            if self._is_behind:
                return None
            first = self.whole.first
            self._call(lambda: self._acts.make(kind, place, number, make, first.job))
        return self._journal.find(kind, place, number)

    def _call(self, make: Callable[[], Made], what: str = "") -> Made:
        """Runs a collective call after the missing steps, and again after each recovery. `what`:
        "step", "read" or a published kind."""
        while True:
            try:
                if not self._lives.is_past:  # otherwise the others have loaded without this process
                    self._steps.make_missing(what)
                return make()
            except ScriptError as failed:
                raise failed.error from None
            except (OSError, RuntimeError) as error:
                if not self._is_over(error):
                    raise
                if self._recovery.recover(error):
                    self._notice.leave()

    def _is_over(self, error: Exception) -> bool:
        """Returns whether an error follows from the end of the generation or causes it. It does
        neither if the run is over, or if all processes raised it together."""
        if isinstance(error, RunEndError) or hasattr(error, ends.SAID_ELSEWHERE):
            return False
        self._member.fail(str(error))
        return True

    # --- evaluation ---

    def evaluate(self, engine: Engine, batches: Iterable[Any]) -> dict[str, float]:
        return dict(self.evaluated(self._evaluations.means_of(engine, batches)))

    def predict(self, engine: Engine, batch: Any) -> dict[str, Any]:
        predict = self._evaluations.outputs_of(engine, batch)
        return Outputs(self._evaluated(Kind.PREDICTION, "predict", predict), engine.graph.rows)

    def evaluated(self, make: Callable[[], Values]) -> Values:
        return self._evaluated(Kind.EVALUATION, "evaluate", make)

    def last_evaluation(self) -> tuple[int, Values] | None:
        return self._journal.last(Kind.EVALUATION)

    def _evaluated(self, kind: Kind, what: str, make: Callable[[], Any]) -> Mapping[str, Any]:
        if self._evaluations.is_in_one:  # an evaluation restarts as a whole
            return dict(make())
        first = self.whole.first
        found = self.once(kind, lambda: self._evaluations.flagged(make, first))
        if found is None:
            raise ValueError(
                f"{what}: found a script that is after step {self._progress.asked}, before the run "
                "began from a checkpoint; expected one that begins at Trainer.steps, behind "
                "Trainer.catch_up()"
            )
        return dict(found)

    def change_plan(self, plan: Plan) -> int:
        """Requests a change for the next generation."""
        self._steps.objectives.request(plan)
        return 0

    # --- the end ---

    def complete(self) -> None:
        """Leaves the checkpoint in progress to be completed at the end."""

    def fail(self, cause: str) -> str:
        return self.whole.first.fail(cause)

    def finish(self) -> None:
        """Waits until all processes have finished, because they may need this one's state."""
        self._steps.end_ahead()
        if not self._notice.has_left:
            with contextlib.suppress(OSError):  # the run has ended in another way
                self._call(self._steps.wait_for_all)
        for engine in self._engines:
            engine.finish()
