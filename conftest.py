"""Gives each test a cache folder of its own, such that none reads the results of another."""

from __future__ import annotations

import itertools

import pytest

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def own_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sets MEDLEY_CACHE to a folder that does not exist yet."""
    folder = tmp_path_factory.getbasetemp() / f"cache-{next(_numbers)}"
    monkeypatch.setenv("MEDLEY_CACHE", str(folder))
