"""A second job begins under the plan that the race of the first one has chosen."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_race_processes import train

pytestmark = [pytest.mark.multi, pytest.mark.slow]


@pytest.mark.parametrize("way", ["emulated", "elastic"])
def test_second_job_does_not_race(
    way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # for race.json

    def start(name: str, *more: str) -> tuple[list[float], str, str]:
        log = ["--elastic", "--elastic-log", str(tmp_path / name / "elastic.jsonl")]
        emulate = ["--emulate", str(tmp_path / name / "cluster.yaml")]
        return train(tmp_path / name, "1000", *(log if way == "elastic" else emulate), *more)

    losses, last, told = start("first")
    assert "verdict" in told
    assert "races again" not in told
    again, same, told = start("second")
    assert "verdict" not in told
    assert told.count("races again") == 1
    assert same == last
    for found, each in zip(again, losses, strict=True):
        assert abs(found - each) <= 1e-10 * abs(each)
    if way == "emulated":
        _, _, told = start("third", "--no-memory")
        assert "verdict" in told
        assert "races again" not in told
