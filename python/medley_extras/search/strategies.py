"""A search for the plans that a race may try: those of all strategies by corrected costs.

`python -m medley_extras.search.strategies` searches beside training.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from medley import Cluster, Plan
from medley.run.replanning import Subject, plan_on, question, stepper, subject_of_text
from medley_extras.search.costs import Corrections, Row, with_links, with_ops

# The first search is for all of them, later ones for "auto" alone. "auto" searches with limits and
# finds plans that others miss.
STRATEGIES = (
    "auto",
    "data-parallel-proportional",
    "data-parallel-even",
    "harp",
    "hap",
    "megatron",
    "autohet",
)
Stepper = Callable[[Cluster], float]  # predicted seconds of a step, by the figures of a cluster
NICENESS = 10  # that of the command nice: a tenth of a core that all want


class Asked(NamedTuple):
    """The input of a search, as values of JSON."""

    plans: Sequence[str]  # known ones; those found have types and devices of the first
    steps: Sequence[float | None]  # of the known plans, measured seconds
    profile: str | None
    costs: Sequence[Any]  # corrections by which these plans were found
    rows: Sequence[Row] | None  # measured ops; None: the costs stay
    strategies: Sequence[str]  # for which it plans
    predicts: bool  # also the known plans


def search(subject: Subject, asked: Asked) -> Iterator[Any]:
    """Yields the corrected costs. Then yields the place, "" and the steps by two sets of figures of
    each known plan, and those of the plans found, with their texts."""
    plans = [Plan(text, None, subject.machines, asked.profile) for text in asked.plans]
    known = [stepper(subject, plan) for plan in plans]
    costs = _corrected(subject.machines, known, asked)
    yield costs
    cluster = costs.of(subject.machines)
    figures = (cluster, _other_figures(cluster))
    if asked.predicts:
        for place, predict in enumerate(known):
            yield place, "", [predict(each) for each in figures]
    for strategy in asked.strategies:
        wanted = question(plans[0])._replace(strategy=strategy)
        try:
            plan = plan_on(subject, wanted, cluster, plans[0])
        except ValueError:  # none fits
            continue
        predict = stepper(subject, plan)
        place = len(plans) + STRATEGIES.index(strategy)
        yield place, plan.text, [predict(each) for each in figures]


def _corrected(cluster: Cluster, known: Sequence[Stepper], asked: Asked) -> Corrections:
    before = Corrections(*asked.costs)
    if asked.rows is None:
        return before
    kinds = sorted({cluster.kind(each).name for each in range(len(cluster.devices))})
    pairs = zip(known, asked.steps, strict=True)
    measured = [(each, step) for each, step in pairs if step is not None]

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
    subject, asked = json.load(sys.stdin)
    for each in search(subject_of_text(subject), Asked(*asked)):
        print(json.dumps(each), flush=True)


if __name__ == "__main__":
    main()
