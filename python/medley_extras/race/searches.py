"""The plans that a race may try: those of all strategies by corrected costs."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from medley import Cluster, Plan
from medley.run import exchange, job
from medley.run.patience import Patience
from medley.run.replanning import plan_on, question, stepper
from medley_extras.race.costs import Corrections, Row, with_links, with_ops
from medley_extras.race.race import Runner

if TYPE_CHECKING:
    from medley import Trainer

# As many as the budget allows. "auto" searches with limits and finds plans that others miss.
STRATEGIES = (
    "auto",
    "data-parallel-proportional",
    "data-parallel-even",
    "harp",
    "hap",
    "megatron",
    "autohet",
)
SAME = 1e-3  # relative difference of the steps of plans that count as one, by two sets of figures
Found = tuple[int, str, list[float]]  # place, text of a new plan, steps by several figures


class Searches:
    """The plans found so far, and the costs by which they were found. The processes of a job of
    fixed size divide the work, and have the same plans."""

    def __init__(self, corrections: Corrections) -> None:
        self.plans: list[Plan] = []
        self.corrections = corrections
        self._steppers: dict[str, Callable[[Cluster], float]] = {}  # by text, of plans used here

    def correct(self, trainer: Trainer, rows: Sequence[Row], runners: Sequence[Runner]) -> None:
        """Corrects the costs by measured ops and by the measured steps of the plans' runners."""

        def make() -> bytes:
            return json.dumps(self._corrected(trainer, rows, runners)).encode()

        text = make() if decides(trainer) else exchange.from_first(make, "corrects costs")
        self.corrections = Corrections(*json.loads(text))

    def find(
        self, trainer: Trainer, known: Sequence[Plan], runners: Sequence[Runner], limit: float
    ) -> list[Runner]:
        """Returns runners for the `known` plans and for the new ones among those of all strategies.
        Predicts the plans of `runners` by the current costs. After `limit` seconds no further
        search begins."""
        end = math.inf if job.emulation() else time.monotonic() + limit
        self.plans += known
        own = list(self._own_part(trainer, end))
        parts = [own] if decides(trainer) else _parts(trainer, own)
        now = trainer.plan
        steps: list[list[float]] = []
        for _, text, each in sorted(found for part in parts for found in part):
            if text and any(_is_same(other, each) for other in steps):
                continue
            if text:
                self.plans.append(Plan(text, now.graph, now.cluster, now.profile))
            steps.append(each)
        kept = {plan.text for plan in self.plans}
        self._steppers = {text: step for text, step in self._steppers.items() if text in kept}
        for runner, each in zip(runners, steps, strict=False):
            runner.predicted = each[0]
        made: list[Runner] = []
        for plan, each in list(zip(self.plans, steps, strict=True))[len(runners) :]:
            name = plan.strategy or "by hand"
            same = sum(one.name.split()[0] == name.split()[0] for one in [*runners, *made])
            made.append(Runner(f"{name} {same + 1}" if same else name, each[0]))
        return made

    def _own_part(self, trainer: Trainer, end: float) -> Iterator[Found]:
        """Yields the part of this process: steps of plans, and plans of strategies."""
        cluster = self.corrections.of(trainer.engine.machines)
        figures = (cluster, _other_figures(cluster))
        this = trainer.engine.job
        first, stride = (0, 1) if this is None or decides(trainer) else (this.rank, this.size)
        for place in range(first, len(self.plans), stride):
            yield place, "", self._steps(trainer, self.plans[place], figures)
        for place, plan in candidates(trainer, cluster, end, range(first, len(STRATEGIES), stride)):
            yield len(self.plans) + place, plan.text, self._steps(trainer, plan, figures)

    def _steps(self, trainer: Trainer, plan: Plan, figures: Iterable[Cluster]) -> list[float]:
        """Returns the predicted seconds of a step of a plan by several figures."""
        if plan.text not in self._steppers:
            self._steppers[plan.text] = stepper(trainer.engine, plan)
        return [self._steppers[plan.text](each) for each in figures]

    def _corrected(
        self, trainer: Trainer, rows: Sequence[Row], runners: Sequence[Runner]
    ) -> Corrections:
        cluster = trainer.engine.machines
        kinds = sorted({cluster.kind(each).name for each in range(len(cluster.devices))})
        pairs = zip(self.plans, runners, strict=True)
        tried = [(plan, each.measured) for plan, each in pairs if each.measured < math.inf]

        def predict(changed: Corrections) -> list[float]:
            figures = changed.of(cluster)
            return [self._steps(trainer, plan, [figures])[0] for plan, _ in tried]

        costs = with_ops(self.corrections, rows, kinds)
        names = [each.name for each in cluster.networks]
        return with_links(costs, [seconds for _, seconds in tried], predict, names)


def _parts(trainer: Trainer, own: list[Found]) -> list[list[Found]]:
    """Returns the parts of all processes. A search may take longer than the limit of an exchange:
    the others wait as long as all processes live."""
    assert trainer.engine.ranks is not None
    rank, size = trainer.engine.ranks
    key, store = exchange.new_key("searches"), exchange.store()
    store.set(f"{key}/{rank}", json.dumps(own))
    parts, patience = [], Patience()
    for each in range(size):
        while (text := store.get(f"{key}/{each}")) is None:
            exchange.check()
            patience.pause()
        parts.append(json.loads(text))
    return parts


def decides(trainer: Trainer) -> bool:
    """Returns whether this process races without the others. In a job of fixed size all do."""
    return trainer.is_alone or trainer.is_elastic


def candidates(
    trainer: Trainer, cluster: Cluster, end: float, places: Iterable[int]
) -> Iterator[tuple[int, Plan]]:
    """Yields the plans of the strategies at `places` by the figures of `cluster`. After `end`, as
    time.monotonic(), no further search begins."""
    for place in places:
        if time.monotonic() > end:
            return
        asked = question(trainer.plan)._replace(strategy=STRATEGIES[place])
        try:
            plan = plan_on(trainer.engine, asked, cluster, trainer.plan)
        except ValueError:  # none fits
            continue
        if _may_run(trainer, plan):
            yield place, plan


def _other_figures(cluster: Cluster) -> Cluster:
    """Returns the cluster with one slower device type and slower networks. Plans whose steps are
    equal there, too, divide the work equally."""
    kind, others = cluster.kind(0).name, {each.name: (0.5, 1e-3) for each in cluster.networks}
    return cluster.corrected({kind: (2.0, 1.5)}, others)


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
