"""Costs of a cluster, corrected by measured steps.

Op times come from segments between communications, by device type and by the limit of the ops:
flops or memory. Bandwidth and latency of networks come from whole steps: the simulation of the
measured plans then takes as long as the steps did.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from medley import Cluster

FLOPS = ("matmul", "attention", "convolution")  # classes of ops that flops limit
MOST = 16.0  # times in either direction, for any factor
LATENCY_SECONDS = 1e-4  # the smallest additional latency that is tried
FIT_SECONDS = 60.0  # for the fit of links; that of a small model takes a few
_ROUNDS = 3
_NARROWER = 4
# Powers of the factor by which bandwidth and latency change in a try; the last one ends a latency.
_MOVES = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1), (0, -math.inf))

# Device type, class of ops, measured relative to predicted time, predicted nanoseconds.
Row = tuple[str, str, float, float]
Link = tuple[float, float]  # relative bandwidth, additional seconds of latency
Factors = dict[str, tuple[float, float]]


class Corrections(NamedTuple):
    """Factors for `Cluster.corrected`."""

    kinds: Factors
    networks: Factors

    def of(self, cluster: Cluster) -> Cluster:
        """Returns the corrected cluster."""
        return cluster.corrected(self.kinds, self.networks)


def with_ops(before: Corrections, rows: Sequence[Row], kinds: Sequence[str]) -> Corrections:
    """Returns corrections of op times after `rows`, which are relative to those before. Types and
    limits without rows change as the others do."""
    usual = _mean(rows, 1.0)
    found: Factors = {}
    for kind in kinds:
        own = [row for row in rows if row[0] == kind]
        overall = _mean(own, usual)
        factors = []
        for place, is_flops in enumerate((True, False)):
            part = [row for row in own if (row[1] in FLOPS) == is_flops]
            known = before.kinds.get(kind, (1.0, 1.0))[place]
            factors.append(min(MOST, max(1 / MOST, known * _mean(part, overall))))
        found[kind] = (factors[0], factors[1])
    return Corrections(found, before.networks)


def with_links(
    before: Corrections,
    steps: Sequence[float],
    predict: Callable[[Corrections], Sequence[float]],
    networks: Sequence[str],
) -> Corrections:
    """Returns corrections under which the predictions of plans come closest to their measured
    steps, in seconds. Few steps cannot show all bandwidths and latencies: small changes win."""

    def corrected(links: Sequence[Link]) -> Corrections:
        return Corrections(before.kinds, dict(zip(networks, links, strict=True)))

    @functools.cache
    def error(links: tuple[Link, ...]) -> float:
        found = predict(corrected(links))
        off = sum(math.log(p / s) ** 2 for p, s in zip(found, steps, strict=True))
        changes = sum(math.log(b) ** 2 + math.log1p(t / LATENCY_SECONDS) ** 2 for b, t in links)
        return off + 1e-5 * changes

    def tried(group: Sequence[int], powers: Link) -> tuple[Link, ...]:
        return tuple(
            _moved(link, powers, factor) if place in group else link
            for place, link in enumerate(best)
        )

    best = tuple((b, t) for b, t in (before.networks.get(name, (1.0, 0.0)) for name in networks))
    groups = [range(len(networks)), *([place] for place in range(len(networks)))]
    factor, end = 2.0, time.monotonic() + FIT_SECONDS
    for _ in range(_ROUNDS):
        while time.monotonic() < end:
            tries = [tried(group, powers) for group in groups for powers in _MOVES]
            nearest = min(tries, key=error)
            if error(nearest) >= error(best):
                break
            best = nearest
        factor = factor ** (1 / _NARROWER)
    return corrected(best)


def _moved(link: Link, powers: Link, factor: float) -> Link:
    bandwidth = min(MOST, max(1 / MOST, link[0] * factor ** powers[0]))
    is_first = link[1] == 0 and powers[1] > 0
    return bandwidth, LATENCY_SECONDS if is_first else link[1] * factor ** powers[1]


def _mean(rows: Sequence[Row], default: float) -> float:
    """Returns the mean of the ratios of rows, weighted by the predicted times. `default`: without
    any predicted time."""
    total = sum(row[3] for row in rows)
    if not total:
        return default
    return math.exp(math.fsum(row[3] * math.log(row[2]) for row in rows) / total)
