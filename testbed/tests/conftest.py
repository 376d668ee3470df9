"""The testbed as a fixture: tests that build a cluster are skipped where there can be none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from testbed import requirements
from testbed.tests.clusters import FOUR, Testbed


@pytest.fixture
def testbed() -> Testbed:
    """Returns the command that runs another one in the testbed. Skips without its requirements."""
    lacking = requirements.missing()
    if lacking:
        pytest.skip(f"testbed: {'; '.join(lacking)}")
    return lambda *words: [sys.executable, "-m", "testbed", *words]


@pytest.fixture
def four(tmp_path: Path) -> str:
    """Returns the file of a cluster of four nodes, speeds 2:2:1:1, on 100 Mbit/s."""
    path = tmp_path / "four.yaml"
    path.write_text(FOUR)
    return str(path)
