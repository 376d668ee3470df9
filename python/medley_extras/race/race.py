"""The race: finds the fastest of several plans by the time of real steps. Knows no trainer and no
plan, only predicted and measured seconds.

Each runner does a warm-up step and a few measured ones. It stops as soon as it cannot win any more.
Runners that are too close to tell run again, with twice as many steps.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Sequence

WARM_UP = 1  # steps under a new plan that do not count
STEPS = 3  # measured steps in the first round
ROUNDS = 3
UNKNOWN = 2.0  # factor between predictions of unmeasured costs and the truth, in either direction


@dataclasses.dataclass
class Runner:
    """A plan in the race. Times are seconds per step."""

    name: str
    predicted: float
    times: list[float] = dataclasses.field(default_factory=list)
    verdict: str = ""

    @property
    def measured(self) -> float:
        """The median step, or infinity before the first one."""
        return statistics.median(self.times) if self.times else math.inf

    @property
    def ratio(self) -> float:
        """The measured step relative to the predicted one."""
        return self.measured / self.predicted

    @property
    def noise(self) -> float:
        """Half the range of the times, relative to the median."""
        return (max(self.times) - min(self.times)) / 2 / self.measured if self.times else 0.0


class Race:
    """A race that begins under the first runner. `budget`: seconds that it may cost beyond the
    steps of the best runner. `change`: seconds of a change of plan, until one is measured.
    `measured`: called in the first round when a runner has been measured. It may change
    predictions and add runners, and returns whether the race waits for more under the best."""

    def __init__(
        self,
        runners: Sequence[Runner],
        budget: float,
        change: float = 0.0,
        measured: Callable[[], bool] = lambda: False,
    ) -> None:
        self.runners = list(runners)
        self.current = 0
        self.budget = budget
        self.change = change
        self._measured = measured
        self._seconds = 0.0  # of all steps and changes
        self.steps = 0  # of the race, warm-ups included
        self._left = list(range(1, len(runners)))  # of this round
        self._round = 1
        self._warm_up = 0  # steps that do not count
        self._wanted = STEPS
        self.searches_cut = 0  # searches that ended before they were done
        self.is_waiting = False
        self.is_over = False

    @property
    def best(self) -> int:
        """The runner with the shortest measured step, the first one if none is measured."""
        return min(range(len(self.runners)), key=lambda each: self.runners[each].measured)

    @property
    def spent(self) -> float:
        """The seconds beyond as many steps of the best runner."""
        best = self.runners[self.best].measured
        return self._seconds - self.steps * best if best < math.inf else 0.0

    def add(self, runners: Sequence[Runner]) -> None:
        """Adds runners to the first round."""
        if self._round == 1 and not self.is_over:
            self._left += range(len(self.runners), len(self.runners) + len(runners))
            self.runners += runners

    def note_change(self, seconds: float) -> None:
        """Notes the duration of a change of plan."""
        self.change = max(self.change, seconds)
        self.note_pause(seconds)

    def note_pause(self, seconds: float, steps: int = 0) -> None:
        """Notes a time in which the race waits, with so many steps of the best runner."""
        self.steps += steps
        self._seconds += seconds

    def go_on(self) -> None:
        """Ends the wait."""
        self.is_waiting = False
        self._next()

    @property
    def wanted(self) -> int:
        """The runner of the next step."""
        return self.best if self.is_over else self.current

    def note_failure(self, verdict: str) -> None:
        """Drops the wanted runner, which cannot run."""
        dropped = self.runners[self.wanted]
        dropped.times, dropped.verdict = [], verdict
        if self.is_over:
            self._end()
        elif self.is_waiting:
            self.current = self.best
        else:
            self._end_runner("")

    def note_step(self, seconds: float) -> None:
        """Notes a step of the current runner."""
        runner = self.runners[self.current]
        self.steps += 1
        self._seconds += seconds
        if self._warm_up > 0:
            self._warm_up -= 1
            if self._round == 1 and self.spent + self.change > self.budget:
                self._end_runner("over budget")
            return
        runner.times.append(seconds)
        leader = self.runners[self.best]
        if runner is not leader and min(runner.times) > leader.measured * (1 + leader.noise):
            self._end_runner("slower")
        elif len(runner.times) >= self._wanted:
            self._end_runner("")

    def bound(self, runner: Runner) -> float:
        """Returns the shortest plausible step: by the least ratio measured so far, and a factor
        that falls from UNKNOWN to 1 with the number of ratios."""
        ratios = self._ratios()
        return runner.predicted * min(ratios) / UNKNOWN ** (1 / len(ratios)) if ratios else 0.0

    def _ratios(self) -> list[float]:
        return [each.ratio for each in self.runners if each.measured < math.inf]

    def _end_runner(self, verdict: str) -> None:
        if verdict:
            self.runners[self.current].verdict = verdict
        if self._round == 1 and self.runners[self.current].measured < math.inf:
            self.is_waiting = self._measured()
        if self.is_waiting:
            self.current = self.best
        else:
            self._next()

    def _next(self) -> None:
        """Begins the next runner that may win, or ends the round."""
        while self._left:
            number = min(self._left, key=lambda each: self.runners[each].predicted)
            self._left.remove(number)
            runner, best = self.runners[number], self.runners[self.best].measured
            if self._round == 1 and best < math.inf:
                if self.bound(runner) >= best:
                    runner.verdict = "cannot win"
                    continue
                ratio = statistics.median(self._ratios())
                loss = (WARM_UP + STEPS) * max(0.0, runner.predicted * ratio - best)
                if self.spent + loss + 2 * self.change > self.budget:
                    runner.verdict = "over budget"
                    continue
            self._begin(number)
            return
        self._end_round()

    def _begin(self, number: int) -> None:
        if number != self.current:
            self._warm_up = WARM_UP
        self.current = number

    def _end_round(self) -> None:
        """Lets runners that are too close to tell run again."""
        best = self.runners[self.best]
        close = [
            number
            for number, each in enumerate(self.runners)
            if each.measured < math.inf
            and min(each.times) <= best.measured * (1 + best.noise)
            and each.verdict in ("", "slower")
        ]
        close.sort(key=lambda each: self.runners[each].measured)
        close = close[: max(2, len(self.runners) >> self._round)]
        afford = self.spent + 2 * self.change * len(close) <= self.budget
        if len(close) < 2 or best.noise == 0 or self._round == ROUNDS or not afford:
            return self._end()
        self._round += 1
        self._wanted *= 2
        self._left = close
        number = self.current if self.current in close else close[0]
        self._left.remove(number)
        self._begin(number)

    def _end(self) -> None:
        best = self.best
        for number, runner in enumerate(self.runners):
            if number == best:
                runner.verdict = "chosen"
            elif not runner.verdict:
                runner.verdict = "slower"
        self.is_over = True
