"""The choice of a plan by real steps: `Trainer(tune=...)`, `medley launch --tune`.

All processes search the plans of some strategies each, beside training (`searches.py`), and try
them in turn (`race.py`). Every step of the race is a step of training, since all plans train the
same curve.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any

from medley import Metrics, Plan
from medley.run import exchange, job
from medley.run.change import PlanError
from medley.run.replanning import Subject, stepper
from medley_extras.race.race import STEPS, Race
from medley_extras.race.results import save
from medley_extras.race.searches import Searches, decides, runner_of
from medley_extras.recall.memory import Memory
from medley_extras.search.costs import Corrections

if TYPE_CHECKING:
    from medley import Trainer

SHARE = 0.02  # of the steps that are left, or of those done if that is unknown: the default cost
FEWEST = 4  # steps of a budget with which a default race begins: those of one plan
SEARCH = 0.5  # share of the remaining budget that a search may cost
AGAIN = 1 / 8  # share of it up to which another search begins that costs as much as the last one
SLOW = 0.2  # share of their time from which training waits for a search that slows down its steps
WAIT = 60.0  # seconds, the longest wait before the next step
OFTEN = 8  # looks at a search while the steps beside it double
MOST = 120  # characters of a verdict in the table


def tuner(trainer: Trainer, steps: int | None, remember: bool) -> Tuner:
    """Returns the race of one trainer, which costs `steps` steps of the best plan, or a default.
    With `remember` it ends under the plan that an earlier race has chosen."""
    return Tuner(trainer, steps, remember)


class Tuner:
    """Takes the metrics of each step, and changes the plan after some of them."""

    def __init__(self, trainer: Trainer, steps: int | None, remember: bool) -> None:
        self._steps = steps
        self._remember = remember
        self._memory: Memory
        self._requested: Plan | None = None  # in an elastic run
        self._now = 0  # the runner under which it was requested
        self._since, self._recoveries = 0.0, 0  # time and recoveries of the last change
        self._is_over = False
        self._problem = ""  # with the first step under the plan of a change
        self._search_cost = 0.0  # in seconds, of the last search for plans
        self._beside: list[float] = []  # seconds of the steps beside a search since the last look
        self._steps_beside = 0  # a search, before the last look
        self._spent, self._search_limit = 0.0, 0.0  # of the race before a search; most for it
        self._is_trial = False  # the next step is the first one under a plan of the tuner
        self._has_begun = False
        self._searches = Searches(Corrections({}, {}))
        self._meter: Any = None  # of op times, relative to the corrected costs
        self.race: Race | None = None

    def prepare(self, trainer: Trainer, batch: Any) -> None:
        """Changes to the measured plan before the first step. Batches that have only the rows of
        their process under the plan given end the tuner, which could not change it."""
        if self._has_begun:
            return
        self._has_begun = True
        if self._steps is None and not trainer.plan.strategy:  # by hand
            self._is_over = True
            return
        self._memory = Memory(trainer, self._remember)
        rows = 0
        with contextlib.suppress(ValueError):  # the step refuses the batch
            rows = trainer.engine.inputs.rows(batch)
        if not trainer.is_elastic and _largest(0 < rows < trainer.plan.global_batch, trainer):
            self._is_over = True
            return
        before = trainer.plan
        if (known := self._memory.recall(trainer)) is not None:
            self._searches = Searches(Corrections(*known.corrections))
        self._is_trial = trainer.plan is not before

    def step(self, trainer: Trainer, metrics: Metrics) -> None:
        """Notes a step. May change the plan."""
        self._is_trial = False
        if self._problem:
            return self._note_problem(trainer)
        if self._is_over or not trainer.engine.was_planned or not self._takes_part(trainer):
            return
        if self.race is None:
            allowed = self._allowed(trainer)
            is_worth = self._steps is not None or allowed >= FEWEST
            if is_worth and self._memory.wants_race(allowed):
                self.race = self._begun(trainer)  # after the first step, which warms up
            self._is_over = self.race is None and (is_worth or trainer.expected_steps is not None)
            return
        race, before = self.race, self.race.current
        if race.is_waiting:
            self._note_step_beside(trainer, race, metrics.step_seconds)
        else:
            seconds = _largest(metrics.step_seconds, trainer)
            if race.budget == math.inf:
                race.budget = self._allowed(trainer) * seconds
            race.note_step(seconds)
        self._go_on(trainer, race, before)

    def _note_step_beside(self, trainer: Trainer, race: Race, seconds: float) -> None:
        """Notes a step beside a search. Sometimes looks whether all processes have ended theirs, or
        the steps have lost too much time. Waits for a search that slows them down."""
        self._beside.append(seconds)
        if len(self._beside) <= self._steps_beside // OFTEN:
            return
        if self._steps_beside == 0:
            self._spent = race.spent  # with the change to the best plan
        self._steps_beside += len(self._beside)
        race.note_pause(_largest(sum(self._beside), trainer), len(self._beside))
        self._beside = []
        step = race.runners[race.best].measured
        if race.spent - self._spent > SLOW * step * max(STEPS, self._steps_beside):
            begin = time.monotonic()
            self._searches.wait(min(WAIT, self._search_limit + self._spent - race.spent))
            race.note_pause(_since(begin, trainer))
        self._search_cost = race.spent - self._spent
        if _largest(not self._searches.is_over, trainer):
            if self._search_cost <= self._search_limit:
                return
            race.searches_cut += 1
        race.add(self._searches.take(trainer, race.runners))
        race.go_on()

    def takes(self, error: Exception) -> bool:
        """Notes that the first step under a plan has failed, and training is back under the plan
        before. Returns False if the tuner has not changed the plan."""
        is_own, self._is_trial = self._is_trial, False
        if is_own:
            self._problem = str(error)
        return is_own

    def _note_problem(self, trainer: Trainer) -> None:
        problem, self._problem = self._problem, ""
        if self.race is None:
            return self._memory.ignore(problem)
        self.race.note_failure(_verdict(problem))
        self.race.note_pause(_since(self._since, trainer))
        self._measure(trainer)
        return self._go_on(trainer, self.race, self._now)

    def _go_on(self, trainer: Trainer, race: Race, now: int) -> None:
        """Changes from the plan of the runner `now` to the wanted one, unless it cannot run."""
        self._now = now
        plans = self._searches.plans
        while race.wanted != now and (problem := self._change(trainer, plans[race.wanted])):
            race.note_failure(_verdict(problem))
        if race.is_over:
            self._is_over = True
            trainer.engine.measure_against(None)
            self._memory.keep(race, self._searches.plans[race.best], self._searches.corrections)
            if trainer.is_first or trainer.is_elastic:
                print(table(race), file=sys.stderr, flush=True)
                if not trainer.is_alone and self._steps is not None:  # no file without being asked
                    save(race)

    def _takes_part(self, trainer: Trainer) -> bool:
        """Returns whether a step counts in this process. In an elastic run the process that begins
        the race continues it, and steps before a requested change do not count."""
        if not trainer.is_elastic:
            return True
        if self.race is None:
            return trainer.is_first and trainer.recoveries == 0
        if self._requested is None:
            if trainer.recoveries > self._recoveries:  # a process was lost
                self._stop()
            return not self._is_over
        if trainer.plan.text == self._requested.text:
            self._measure(trainer)
            self.race.note_change(_since(self._since, trainer))
            self._requested, self._recoveries = None, trainer.recoveries
            return True
        if trainer.recoveries > self._recoveries:
            self._requested, self._recoveries = None, trainer.recoveries
            self._measure(trainer)
            if trainer.plan.text == self._searches.plans[self._now].text:  # no process was lost
                self.race.note_failure("cannot run")
                self._go_on(trainer, self.race, self._now)
            else:
                self._stop()
        return False

    def _stop(self) -> None:
        self._is_over = True
        self._searches.end()

    def _allowed(self, trainer: Trainer) -> float:
        if self._steps is not None:
            return self._steps
        if trainer.expected_steps is None:
            return SHARE * trainer.steps
        return SHARE * max(0, trainer.expected_steps - trainer.steps)

    def _begun(self, trainer: Trainer) -> Race:
        """Begins with the current plan."""
        self._searches.plans = [trainer.plan]
        self._measure(trainer)
        begin, weak = time.monotonic(), weakref.proxy(trainer)  # the race belongs to the trainer
        predict = stepper(Subject.of(trainer.engine), trainer.plan)
        change = _since(begin, trainer)  # a change also lowers a plan
        step = predict(self._searches.corrections.of(trainer.engine.machines))
        first = [runner_of(trainer.plan, step, [])]
        return Race(first, math.inf, change, lambda: self._search(weak))

    def _measure(self, trainer: Trainer) -> None:
        """Measures op times under the current plan as long as they can correct costs. In an elastic
        run they are those of this process."""
        is_known = trainer.plan.profile is not None
        cluster = None if is_known else self._searches.corrections.of(trainer.engine.machines)
        self._meter = trainer.engine.measure_against(cluster)

    def _search(self, trainer: Trainer) -> bool:
        """Searches by costs that the last plan has corrected, within the budget. Returns whether
        the search runs beside training."""
        race = self.race
        assert race is not None
        left = race.budget - race.spent - 2 * race.change  # there and back
        learns_nothing = self._meter is None and len(race.runners) > 1
        if learns_nothing or left <= 0 or self._search_cost > AGAIN * left:
            return False
        rows = None if self._meter is None else [row[:4] for row in self._meter.rows()]
        if rows is not None and not decides(trainer):
            rows = [row for each in exchange.values(rows) for row in each]
        self._searches.begin(trainer, rows, race.runners)
        if job.emulation():
            race.add(self._searches.take(trainer, race.runners))
            return False
        self._steps_beside, self._search_limit = 0, SEARCH * left
        return True

    def _change(self, trainer: Trainer, plan: Plan) -> str:
        """Changes to a plan, in an elastic run later. Returns the reason if it cannot run."""
        assert self.race is not None
        self._since, self._recoveries, problem = time.monotonic(), trainer.recoveries, ""
        try:
            trainer.change_plan(plan)
        except PlanError as error:
            problem = str(error)
        self._measure(trainer)
        if trainer.is_elastic:
            self._requested = plan
        else:
            self._is_trial = not problem
            self.race.note_change(_since(self._since, trainer))
        return problem


def _verdict(problem: str) -> str:
    return f"does not fit: {problem.removeprefix('change_plan: ').splitlines()[0]}"[:MOST]


def _largest(seconds: float, trainer: Trainer) -> float:
    """Returns the most seconds of all processes that race."""
    return seconds if decides(trainer) else exchange.largest(seconds)


def _since(begin: float, trainer: Trainer) -> float:
    """Returns the seconds since `begin`, the same in all processes. The steps of emulated devices
    have their own clock, on which nothing else takes time."""
    return 0.0 if job.emulation() else _largest(time.monotonic() - begin, trainer)


def table(race: Race) -> str:
    """Returns the results of a race as a table."""
    lines = [f"{'plan':28} {'predicted':>10} {'measured':>10} {'steps':>5}  verdict"]
    for runner in race.runners:
        seen = f"{1000 * runner.measured:.1f} ms" if runner.measured < math.inf else "-"
        lines.append(
            f"{runner.name:28} {1000 * runner.predicted:>7.1f} ms {seen:>10} "
            f"{len(runner.times):>5}  {runner.verdict}"
        )
    best = race.runners[race.best].measured
    lines.append(
        f"The race took {race.steps} steps and cost {race.spent / best:.1f} of the chosen plan's."
    )
    return "\n".join(lines)
