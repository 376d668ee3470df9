"""How far a run is from what was predicted: times of ops from the profile's, of devices from the
plan's."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from medley import _core, _runtime
from medley.cluster import Cluster
from medley.run import job

DRIFT_LIMIT = 0.2  # of times of ops, from the profile's


class Drift(NamedTuple):
    """How long ops of one class take on one kind of device, against what the profile says."""

    kind: str
    ops: str  # class: "matmul", "memory", ...
    ratio: float  # median of measured / predicted, by segment
    predicted_ns: int  # of a step
    measured_ns: int
    segments: int  # that the median is of

    @property
    def profile_again(self) -> bool:
        """Whether the profile is of no more use."""
        return abs(self.ratio - 1) > DRIFT_LIMIT


def report_drift(meter: _runtime.Drift, always: bool) -> None:
    """Prints the drift; without `always` only if it is large."""
    rows = [Drift(*row) for row in meter.rows()]
    if rows and (always or any(row.profile_again for row in rows)):
        print(f"measured against the profile:\n{meter.text()}", end="", file=sys.stderr, flush=True)


def expected_nanoseconds(
    graph: _core.Graph, plan: _core.Plan, cluster: Cluster, profile: str, rule: _core.Optimizer
) -> dict[str, float]:
    """Returns what each device is expected to compute in a step."""
    predicted: dict[str, Any] = _core.simulate_plan(graph, plan, cluster, profile, optimizer=rule)
    return {name: row["computes"] for name, row in predicted["devices"].items()}


def comparable(devices: Sequence[str], cluster: Cluster, profile: str) -> dict[str, str]:
    """Returns a word for each device: whether it is slow is asked among those of one word. Times of
    kinds that were measured, and emulated ones, are comparable; those of data sheets only among
    devices of one kind."""
    known = json.loads(profile)["ops"] if profile else {}
    kinds = {}
    for device in devices:
        number = cluster.find(device)
        assert number is not None
        kind = cluster.kind(number).name
        kinds[device] = "measured" if kind in known or job.emulation() else kind
    return kinds
