"""Detection of devices slower than the plan expects."""

from __future__ import annotations

import statistics
from collections.abc import Mapping

SLOW = 1.5  # times the time that the plan expects, relative to the other devices


def slow_devices(
    expected: Mapping[str, float], took: Mapping[str, float], kinds: Mapping[str, str]
) -> dict[str, float]:
    """Returns the slow-down factor of each slow device. The ratio of measured to expected time is
    compared among devices of one key (`kinds`, by device). Without a profile all may take three
    times as long, and unmeasured types may differ from their data sheets."""
    ratios = {
        name: took[name] / expected[name]
        for name in expected
        if name in took and expected[name] > 0
    }
    found = {}
    for name, ratio in ratios.items():
        others = [
            each for other, each in ratios.items() if other != name and kinds[other] == kinds[name]
        ]
        if others and ratio > SLOW * (usual := statistics.median(others)) > 0:
            found[name] = ratio / usual
    return found


def slow(
    expected: Mapping[str, float], took: Mapping[str, float], kinds: Mapping[str, str]
) -> list[str]:
    """Returns a line for each slow device, the slowest first."""
    found = slow_devices(expected, took, kinds)
    return [
        f"{name} is slow: computing takes it {factor:.1f}x as long as the plan expects, "
        "measured by the other devices"
        for name, factor in sorted(found.items(), key=lambda each: -each[1])
    ]
