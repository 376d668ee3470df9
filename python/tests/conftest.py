"""Settings of all tests: rare garbage collection. PyTorch alone has a million objects, and scanning
them takes a tenth of the test time."""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """After everything is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    """Writes the number of skipped slow tests to the file given by scripts/run_tests.py."""
    if file := os.environ.get("MEDLEY_COUNT_SLOW"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        Path(file).write_text(str(len(slow)))


def pytest_unconfigure(config: pytest.Config) -> None:
    """Frees all remaining objects, because bindings count them at exit."""
    gc.unfreeze()
