"""Deviation of a run from its prediction: op times from the profile, device times from the plan."""

from __future__ import annotations

import sys
from typing import NamedTuple

from medley import _runtime

DRIFT_LIMIT = 0.2  # relative deviation of op times from the profile


class Drift(NamedTuple):
    """Op times of one class on one device type, relative to the profile."""

    kind: str
    ops: str  # class: "matmul", "memory", ...
    ratio: float  # median of measured / predicted over segments
    predicted_ns: int  # per step
    measured_ns: int
    segments: int  # number of segments in the median

    @property
    def profile_again(self) -> bool:
        """Returns whether the deviation calls for a new profile."""
        return abs(self.ratio - 1) > DRIFT_LIMIT


def report_drift(meter: _runtime.Drift, always: bool) -> None:
    """Prints the drift; without `always` only if it exceeds the limit."""
    rows = [Drift(*row) for row in meter.rows()]
    if rows and (always or any(row.profile_again for row in rows)):
        print(f"measured against the profile:\n{meter.text()}", end="", file=sys.stderr, flush=True)
