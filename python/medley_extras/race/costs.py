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

# Device type, class of ops, measured relative to predicted time, predicted nanoseconds.
Row = tuple[str, str, float, float]
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
    steps, in seconds. All networks change by the same. One step cannot show both bandwidth and
    latency: the smaller change is taken."""

    @functools.cache
    def error(bandwidth: float, latency: float) -> float:
        own = dict.fromkeys(networks, (bandwidth, latency))
        found = predict(Corrections(before.kinds, own))
        off = sum(math.log(p / s) ** 2 for p, s in zip(found, steps, strict=True))
        changes = math.log(bandwidth) ** 2 + math.log1p(latency / LATENCY_SECONDS) ** 2
        return off + 1e-5 * changes

    if not networks:
        return before
    bandwidth, latency = next(iter(before.networks.values()), (1.0, 0.0))
    best = error(bandwidth, latency)
    factor, end = 2.0, time.monotonic() + FIT_SECONDS
    for _ in range(_ROUNDS):
        while time.monotonic() < end:
            tries = [(bandwidth * factor, latency), (bandwidth / factor, latency)]
            longer = latency * factor if latency > 0 else LATENCY_SECONDS
            tries += [(bandwidth, longer), (bandwidth, latency / factor)]
            tries += [(bandwidth * factor, longer), (bandwidth / factor, latency / factor)]
            tries += [(bandwidth, 0.0)] if latency > 0 else []
            tries = [each for each in tries if 1 / MOST <= each[0] <= MOST]
            errors = [error(*each) for each in tries]
            if min(errors) >= best:
                break
            best = min(errors)
            bandwidth, latency = tries[errors.index(best)]
        factor = factor ** (1 / _NARROWER)
    return Corrections(before.kinds, dict.fromkeys(networks, (bandwidth, latency)))


def _mean(rows: Sequence[Row], default: float) -> float:
    """Returns the mean of the ratios of rows, weighted by the predicted times. `default`: without
    any predicted time."""
    total = sum(row[3] for row in rows)
    if not total:
        return default
    return math.exp(math.fsum(row[3] * math.log(row[2]) for row in rows) / total)
