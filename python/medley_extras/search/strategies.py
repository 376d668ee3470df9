"""A search for the plans that a race may try: those of all strategies by corrected costs.

`python -m medley_extras.search.strategies` searches beside training.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from medley import Cluster, Plan
from medley.run.replanning import Subject, plan_on, question, stepper, subject_of_text
from medley_extras.search.costs import Corrections, Row, with_links, with_ops

# Of the first search. "auto" searches with limits and finds plans that others miss. The later
# searches are for "auto" alone.
STRATEGIES = (
    "auto",
    "data-parallel-proportional",
    "data-parallel-even",
    "harp",
    "hap",
    "megatron",
    "autohet",
)
NICENESS = 10  # that of the command nice: a tenth of a core that all want
Found = tuple[int, str, list[float]]  # place, text of a new plan, steps by several figures


class Asked(NamedTuple):
    """What a search begins with, as values of JSON."""

    plans: Sequence[str]  # known ones; those found have types and devices of the first
    steps: Sequence[float | None]  # of the known plans, measured seconds
    profile: str | None
    costs: Sequence[Any]  # corrections by which these plans were found
    rows: Sequence[Row] | None  # measured ops; None: the costs stay
    strategies: Sequence[str]  # for which it plans
    predicts: bool  # also the known plans


def search(subject: Subject, asked: Asked) -> Iterator[Any]:
    """Yields the corrected costs, the predicted steps of the known plans, and the plans found."""
    plans = [Plan(text, None, subject.machines, asked.profile) for text in asked.plans]
    costs = _corrected(subject, plans, asked)
    yield costs
    cluster = costs.of(subject.machines)
    figures = (cluster, _other_figures(cluster))

    def steps(plan: Plan) -> list[float]:
        predict = stepper(subject, plan)
        return [predict(each) for each in figures]

    if asked.predicts:
        yield from ((place, "", steps(plan)) for place, plan in enumerate(plans))
    for strategy in asked.strategies:
        wanted = question(plans[0])._replace(strategy=strategy)
        try:
            plan = plan_on(subject, wanted, cluster, plans[0])
        except ValueError:  # none fits
            continue
        yield len(plans) + STRATEGIES.index(strategy), plan.text, steps(plan)


def _corrected(subject: Subject, plans: Sequence[Plan], asked: Asked) -> Corrections:
    before = Corrections(*asked.costs)
    if asked.rows is None:
        return before
    cluster = subject.machines
    kinds = sorted({cluster.kind(each).name for each in range(len(cluster.devices))})
    measured = [
        (stepper(subject, plan), step)
        for plan, step in zip(plans, asked.steps, strict=True)
        if step is not None
    ]

    def predict(changed: Corrections) -> list[float]:
        figures = changed.of(cluster)
        return [each(figures) for each, _ in measured]

    names = [each.name for each in cluster.networks]
    costs = with_ops(before, asked.rows, kinds)
    return with_links(costs, [step for _, step in measured], predict, names)


def _other_figures(cluster: Cluster) -> Cluster:
    """Returns the cluster with one slower device type and slower networks. Plans whose steps are
    equal there, too, divide the work equally."""
    kind, others = cluster.kind(0).name, {each.name: (0.5, 1e-3) for each in cluster.networks}
    return cluster.corrected({kind: (2.0, 1.5)}, others)


def main() -> None:
    """Reads a request, and writes a line for each result."""
    os.nice(NICENESS)
    with contextlib.suppress(OSError):  # Linux: if memory runs out, it ends before the training
        Path("/proc/self/oom_score_adj").write_text("1000")
    subject, asked = json.load(sys.stdin)
    for each in search(subject_of_text(subject), Asked(*asked)):
        print(json.dumps(each), flush=True)


if __name__ == "__main__":
    main()
