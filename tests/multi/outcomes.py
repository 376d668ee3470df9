"""The results of a run of survivor.py in its folder, and their distance from another's."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch


def seen(folder: Path) -> dict[str, Any]:
    """Returns the results of the first device."""
    return dict(torch.load(folder / "seen.pt"))


def recoveries(folder: Path) -> list[dict[str, Any]]:
    """Returns the lines of the log."""
    path = folder / "elastic.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def distance(found: dict[str, Any], expected: dict[str, Any]) -> float:
    """Returns the largest difference of losses and parameters, relative to the largest element."""
    worst = max(
        abs(a - b) / abs(b) for a, b in zip(found["losses"], expected["losses"], strict=True)
    )
    for name, value in expected["state"].items():
        other = found["state"]["parameter", name]
        worst = max(worst, float((other - value).abs().max() / value.abs().max()))
    return worst


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """Asserts that results are equal to the last bit."""
    assert all(math.isfinite(loss) for loss in found["losses"])
    assert found["losses"] == expected["losses"]
    assert found["state"].keys() == expected["state"].keys()
    for key, value in expected["state"].items():
        assert torch.equal(found["state"][key], value), key
