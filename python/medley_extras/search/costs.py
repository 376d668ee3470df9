"""Costs of a cluster, corrected by measured steps.

Op times come from segments between communications, by device type and by the limit of the ops:
flops or memory. Bandwidth and latency of networks come from whole steps: the simulation of the
measured plans then takes as long as the steps did.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from medley import Cluster

FLOPS = ("matmul", "attention", "convolution")  # classes of ops that flops limit
MOST = 16.0  # times in either direction, for any factor
LATENCY_SECONDS = 1e-4  # below it a latency counts linearly, above it by its logarithm
LATENCY_MOST = 1.0  # seconds
RIDGE = 1e-5  # weight of a change of a network, relative to the error of a step
ROUNDS = 8  # of the fit of networks
DAMPINGS = 6  # tries of a round, each with ten times the damping of the one before

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
    steps, in seconds. Few steps cannot show all bandwidths and latencies: small changes win."""
    if not networks:
        return before
    scale = LATENCY_SECONDS

    def corrected(logs: Any) -> Corrections:
        pairs = [(math.exp(b), scale * math.expm1(t)) for b, t in logs.reshape(-1, 2)]
        return Corrections(before.kinds, dict(zip(networks, pairs, strict=True)))

    def errors(logs: Any) -> Any:
        off = [math.log(p / s) for p, s in zip(predict(corrected(logs)), steps, strict=True)]
        return np.array([*off, *(math.sqrt(RIDGE) * logs)])

    known = [before.networks.get(name, (1.0, 0.0)) for name in networks]
    logs = np.array([each for b, t in known for each in (math.log(b), math.log1p(t / scale))])
    most = np.array([math.log(MOST), math.log1p(LATENCY_MOST / scale)] * len(networks))
    least = most * ([-1.0, 0.0] * len(networks))
    moves = np.diag([0.05, 0.2] * len(networks))  # small ones, for slopes
    now, damping = errors(logs), 1e-3
    for _ in range(ROUNDS):  # Levenberg and Marquardt's
        slopes = np.stack([(errors(logs + move) - now) / move.sum() for move in moves], axis=1)
        square = slopes.T @ slopes
        for _ in range(DAMPINGS):
            damped = square + damping * (np.diag(np.diag(square)) + RIDGE * np.eye(len(logs)))
            there = np.clip(logs - np.linalg.solve(damped, slopes.T @ now), least, most)
            found = errors(there)
            if found @ found < now @ now:
                break
            damping *= 10
        else:
            break
        gain = 1 - (found @ found) / (now @ now)
        logs, now, damping = there, found, damping / 10
        if gain < 1e-3:
            break
    return corrected(logs)


def _mean(rows: Sequence[Row], default: float) -> float:
    """Returns the mean of the ratios of rows, weighted by the predicted times. `default`: without
    any predicted time."""
    total = sum(row[3] for row in rows)
    if not total:
        return default
    return math.exp(math.fsum(row[3] * math.log(row[2]) for row in rows) / total)
