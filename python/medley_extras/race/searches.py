"""The plans of a race, and the searches that find them beside training."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from medley import Plan
from medley.run import exchange, job
from medley.run.beside import Beside
from medley.run.patience import Patience
from medley.run.replanning import Subject, text_of_subject
from medley_extras.race.race import Runner
from medley_extras.search import strategies
from medley_extras.search.costs import Corrections, Row

if TYPE_CHECKING:
    from medley import Trainer

SAME = 1e-3  # relative difference of the steps of plans that count as one, by two sets of figures


class Searches:
    """The plans found so far, and the costs by which they were found. The processes of a job of
    fixed size divide the strategies, and have the same plans."""

    def __init__(self, corrections: Corrections) -> None:
        self.plans: list[Plan] = []
        self.corrections = corrections
        self._beside: Beside | None = None
        self._found: list[Any] = []

    @property
    def is_over(self) -> bool:
        """Whether no search runs in this process."""
        return self._beside is None or self._beside.is_over

    def begin(
        self, trainer: Trainer, rows: Sequence[Row] | None, runners: Sequence[Runner]
    ) -> None:
        """Begins a search by costs that measured ops and the steps of the plans' runners correct.
        Without `rows` the costs stay. The clock of emulated devices stops for it."""
        this = trainer.engine.job
        first, stride = (0, 1) if this is None or decides(trainer) else (this.rank, this.size)
        wanted = strategies.STRATEGIES if len(self.plans) == 1 else strategies.STRATEGIES[:1]
        own = wanted[first::stride]
        profile = self.plans[0].profile
        asked = strategies.Asked(
            plans=[plan.text for plan in self.plans],
            steps=[each.measured if each.times else None for each in runners],
            profile=None if profile is None else os.fspath(profile),
            costs=self.corrections,
            rows=rows,
            strategies=own,
            predicts=first == 0,
        )
        if job.emulation():
            self._found = list(strategies.search(Subject.of(trainer.engine), asked))
        elif own:
            subject = text_of_subject(trainer.engine)
            with contextlib.suppress(OSError):  # the race goes on with the plans that it has
                if subject is not None:
                    self._beside = Beside(strategies.__name__, json.dumps([subject, asked]))

    def wait(self, seconds: float) -> None:
        """Waits for the search of this process."""
        patience = Patience(seconds)
        while not (self.is_over or patience.is_over):
            patience.pause()

    def end(self) -> None:
        """Ends the search, which keeps what it has found."""
        if self._beside is not None:
            self._found += self._beside.values()
            self._beside.close()
            self._beside = None

    def take(self, trainer: Trainer, runners: Sequence[Runner]) -> list[Runner]:
        """Ends the search. Returns runners for the new plans, and predicts those of `runners` by
        the corrected costs."""
        self.end()
        own, self._found = self._found, []
        parts = [own] if decides(trainer) else exchange.values(own)
        if parts[0]:
            self.corrections = Corrections(*parts[0][0])
        now = trainer.plan
        steps = [[each.predicted, each.predicted] for each in runners]
        for place, text, each in sorted(found for part in parts for found in part[1:]):
            plan = Plan(text, now.graph, now.cluster, now.profile)
            is_known = any(known.text == text for known in self.plans)
            is_known = is_known or any(_is_same(other, each) for other in steps)
            if not text:
                steps[place] = each
            elif not is_known and _may_run(trainer, plan):
                self.plans.append(plan)
                steps.append(each)
        for runner, each in zip(runners, steps, strict=False):
            runner.predicted = each[0]
        made: list[Runner] = []
        for plan, each in list(zip(self.plans, steps, strict=True))[len(runners) :]:
            made.append(runner_of(plan, each[0], [*runners, *made]))
        return made


def runner_of(plan: Plan, step: float, others: Sequence[Runner]) -> Runner:
    """Returns the runner of a plan with this predicted step. Those of a strategy have numbers."""
    name = plan.strategy or "by hand"
    same = sum(one.name.split()[0] == name.split()[0] for one in others)
    return Runner(f"{name} {same + 1}" if same else name, step)


def decides(trainer: Trainer) -> bool:
    """Returns whether this process races without the others. In a job of fixed size all do."""
    return trainer.is_alone or trainer.is_elastic


def _is_same(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(abs(a / b - 1) <= SAME for a, b in zip(one, other, strict=True))


def _may_run(trainer: Trainer, plan: Plan) -> bool:
    """Returns whether the processes of the trainer can run a plan. Those of a job of fixed size
    need a device each, and the process that measures needs one."""
    if trainer.is_alone:
        return True
    if trainer.is_elastic:
        return trainer.plan.devices[0] in plan.devices
    return sorted(plan.devices) == sorted(trainer.plan.devices)
