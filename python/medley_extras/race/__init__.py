"""The choice of a plan by real steps: `Trainer(tune=...)`, `medley launch --tune`.

The first process plans for every strategy, and all processes try the plans in turn (`race.py`).
Every step of the race is a step of training, since all plans train the same curve.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from medley import Metrics, Plan
from medley.plan import find_plan, measured
from medley.run import exchange, job
from medley.run.replanning import question, step_nanoseconds
from medley_extras.race.race import Race, Runner

if TYPE_CHECKING:
    from medley import Trainer

STRATEGIES = (
    "auto",
    "hap",
    "harp",
    "autohet",
    "megatron",
    "data-parallel-proportional",
    "data-parallel-even",
)


SHARE = 0.02  # of the steps that are left: the cost of a race by default
STEPS = 20  # the same if their number is unknown


def tuner(steps: int | None) -> Tuner:
    """Returns the race of one trainer, which costs `steps` steps of the best plan, or a default."""
    return Tuner(steps)


class Tuner:
    """Takes the metrics of each step, and changes the plan after some of them."""

    def __init__(self, steps: int | None) -> None:
        self._steps = steps
        self._plans: list[Plan] = []
        self._requested: Plan | None = None  # in an elastic run
        self._since, self._recoveries = 0.0, 0  # time and recoveries of the last change
        self._is_over = False
        self.race: Race | None = None

    def step(self, trainer: Trainer, metrics: Metrics) -> None:
        """Notes a step. May change the plan."""
        if self._is_over or not self._takes_part(trainer):
            return
        if self.race is None:
            self.race = self._begun(trainer)  # after the first step, which warms up
            return
        seconds = metrics.step_seconds
        if not trainer.is_alone and not trainer.is_elastic:
            seconds = exchange.largest(seconds)
        race, before = self.race, self.race.current
        if race.budget == math.inf:
            race.budget = self._allowed(trainer) * seconds
        race.note_step(seconds)
        wanted = race.best if race.is_over else race.current
        if wanted != before:
            self._change(trainer, self._plans[wanted])
        if race.is_over:
            self._is_over = True
            if trainer.is_first or trainer.is_elastic:
                print(table(race), file=sys.stderr, flush=True)

    def _takes_part(self, trainer: Trainer) -> bool:
        """Returns whether a step counts in this process. In an elastic run the process that begins
        the race continues it, and steps before a requested change do not count."""
        if not trainer.is_elastic:
            return True
        if self.race is None:
            return trainer.is_first and trainer.recoveries == 0
        if self._requested is None:
            return True
        if trainer.plan.text == self._requested.text:
            self._note_change(self.race)
            self._requested = None
            return True
        if trainer.recoveries > self._recoveries:  # a process was lost, or the plan cannot run
            self._is_over = True
        return False

    def _allowed(self, trainer: Trainer) -> float:
        if self._steps is not None:
            return self._steps
        if trainer.expected_steps is None:
            return STEPS
        return SHARE * max(0, trainer.expected_steps - trainer.steps)

    def _begun(self, trainer: Trainer) -> Race:
        """Finds the plans of all strategies, the predicted best ones first."""

        def find() -> bytes:
            texts = [plan.text for plan in candidates(trainer)]
            runs = [
                step_nanoseconds(trainer.engine, plan) * 1e-9 for plan in self._made(texts, trainer)
            ]
            return json.dumps([texts, runs]).encode()

        is_own = trainer.is_alone or trainer.is_elastic
        found = find() if is_own else exchange.from_first(find, "plans for the race")
        texts, predicted = json.loads(found)
        self._plans = self._made(texts, trainer)
        runners: list[Runner] = []
        for plan, seconds in zip(self._plans, predicted, strict=True):
            name = plan.strategy or "by hand"
            same = sum(each.name.split()[0] == name.split()[0] for each in runners)
            runners.append(Runner(f"{name} {same + 1}" if same else name, seconds))
        return Race(runners, math.inf)

    def _made(self, texts: Sequence[str], trainer: Trainer) -> list[Plan]:
        now = trainer.plan
        return [Plan(text, now.graph, now.cluster, now.profile) for text in texts]

    def _change(self, trainer: Trainer, plan: Plan) -> None:
        assert self.race is not None
        self._since, self._recoveries = time.monotonic(), trainer.recoveries
        trainer.change_plan(plan)
        if trainer.is_elastic:
            self._requested = plan
        else:
            self._note_change(self.race)

    def _note_change(self, race: Race) -> None:
        if not job.emulation():  # the steps of emulated devices have their own clock
            race.note_change(time.monotonic() - self._since)


def candidates(trainer: Trainer) -> list[Plan]:
    """Returns the plan of the trainer and those of all strategies that differ from it and from each
    other."""
    engine, now = trainer.engine, trainer.plan
    rule, times = engine.optimizer.core(engine.graph.core), measured(now.profile)
    found = {_decisions(now): now}
    for strategy in STRATEGIES:
        asked = question(now)._replace(strategy=strategy)
        try:
            core = find_plan(engine.graph.core, engine.machines, asked, rule, times, now.devices)
        except ValueError:  # none fits
            continue
        plan = Plan.of(core, engine.graph, engine.machines, now.profile)
        if not _may_run(trainer, plan):
            continue
        found.setdefault(_decisions(plan), plan)
    return list(found.values())


def _may_run(trainer: Trainer, plan: Plan) -> bool:
    """Returns whether the processes of the trainer can run a plan. Those of a job of fixed size
    need a device each, and the process that measures needs one."""
    if trainer.is_alone:
        return True
    if trainer.is_elastic:
        return trainer.plan.devices[0] in plan.devices
    return sorted(plan.devices) == sorted(trainer.plan.devices)


def _decisions(plan: Plan) -> str:
    """Returns the parts of a plan that decide about its run."""
    return json.dumps(plan.to_dict() | {"strategy": ""}, sort_keys=True)


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
