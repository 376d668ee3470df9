"""Garbage is collected seldom: PyTorch alone has a million objects, and looking at them again and
again is a tenth of what the tests take."""

from __future__ import annotations

import gc

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """After everything is imported."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def pytest_unconfigure(config: pytest.Config) -> None:
    """So that what is left is let go, and bindings that count their objects find none."""
    gc.unfreeze()
