"""Garbage is collected seldom: PyTorch alone has a million objects, and looking at them again and
again is a tenth of what the tests take."""

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
    """Writes how many slow tests do not run to the file that scripts/run_tests.py asks for."""
    if file := os.environ.get("MEDLEY_COUNT_SLOW"):
        slow = [item for item in items if item.get_closest_marker("slow")]
        Path(file).write_text(str(len(slow)))


def pytest_unconfigure(config: pytest.Config) -> None:
    """So that what is left is let go, and bindings that count their objects find none."""
    gc.unfreeze()
