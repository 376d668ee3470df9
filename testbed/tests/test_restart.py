"""Killing all and restarting from shared storage: its parts are timed, its curve is that of one
device. Runs on this machine without the testbed, without root."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from testbed import recovery, restart
from testbed.reference import losses_of_one_device
from testbed.shared_storage import PIECE, SharedStorage
from testbed.tests.clusters import environment

pytestmark = pytest.mark.testbed

WORKLOAD = "gpt?rows=12&layers=5"


class Clock:
    """Advances only in sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_storage_takes_its_time_both_ways(tmp_path: Path) -> None:
    clock = Clock()
    storage = SharedStorage(tmp_path, 1e6, clock, clock.sleep)
    storage.write("a", bytes(500_000))
    assert clock.now == pytest.approx(100.5)
    assert storage.read("a") == bytes(500_000)
    assert clock.now == pytest.approx(101.0)
    assert storage.moved == 1_000_000
    assert storage.has("a")
    assert not storage.has("b")
    clock.now += 10.0  # an idle link accumulates no credit
    storage.read("a")
    assert clock.now == pytest.approx(111.5)


# The link is busy until 102 with a request of another. Both clocks are that of the machine.
def test_readers_share_the_link(tmp_path: Path) -> None:
    first, second = Clock(), Clock()
    one = SharedStorage(tmp_path, 1e6, first, first.sleep)
    one.write("a", bytes(2_000_000))
    other = SharedStorage(tmp_path, 1e6, second, second.sleep)
    other.read("a")
    assert second.now == pytest.approx(104.0)
    assert PIECE < 2_000_000


# Killed after step 7, saved after 5: 6 and 7 are done again.
def test_the_parts_of_a_recovery_are_read_from_the_logs() -> None:
    def step(at: float, number: int) -> dict[str, float | str]:
        return {"what": "step", "at": at, "step": number, "loss": float(number)}

    before = [step(10.0 + n, n) for n in range(1, 8)]
    rank0: list[dict[str, float | str]] = [
        {"what": "imported", "at": 22.0},
        {"what": "joined", "at": 23.0},
        {"what": "loaded", "at": 24.0, "bytes": 100, "step": 5},
        *(step(25.0 + n, n) for n in (6, 7, 8, 9)),
    ]
    rank1: list[dict[str, float | str]] = [
        {"what": "imported", "at": 22.5},
        {"what": "joined", "at": 22.9},
        {"what": "loaded", "at": 25.0, "bytes": 50, "step": 5},
    ]
    found = restart.summary(20.0, 20.5, [before, rank0], [rank0, rank1])
    assert found.seconds == pytest.approx(
        {
            "killed": 0.5,
            "imported": 2.5,
            "joined": 3,
            "loaded": 5,
            "first step": 11,
            "caught up": 13,
        }
    )
    assert (found.bytes_read, found.repeated, found.total) == (150, 2, 13.0)
    assert found.losses == [float(n) for n in range(1, 10)]
    assert "| caught up | 13.00 | 13.00 to 13.00 |" in restart.table([found])


def test_grids_are_read_and_mistakes_are_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    assert restart.Grid.parse("2x3").size == 6
    for word in ("4", "0x2", "axb", "1x2x3"):
        with pytest.raises(ValueError, match="expected replicas x stages"):
            restart.Grid.parse(word)
    with pytest.raises(SystemExit):
        restart.parse(["--before", "1x2", "--kill-rank", "2"])
    assert "--kill-rank: found 2, expected a rank of --before" in capsys.readouterr().err


# Three stages, then two: other cuts, the same curve.
@pytest.mark.slow
def test_a_restart_goes_on_with_the_same_curve(tmp_path: Path) -> None:
    output = tmp_path / "recoveries.json"
    command = [sys.executable, "-m", "testbed.restart", "--workload", WORKLOAD, "--runs", "1"]
    command += ["--before", "1x3", "--after", "1x2", "--microbatches", "3", "--save-every", "2"]
    command += ["--kill-step", "3", "--steps", "6", "--output", str(output)]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (found,) = restart.read(output)
    assert found.losses == pytest.approx(losses_of_one_device(WORKLOAD, 6), rel=1e-4)
    assert found.repeated == 1
    assert 0 < found.seconds["killed"] < found.seconds["loaded"] < found.seconds["caught up"]
    # Three floats per parameter, and the overhead of a file.
    assert 1.1e6 * 12 < found.bytes_read < 1.2 * 1.2e6 * 12


# Killed at 20.0, when the first survivor had done step 7 and the other one 6: the kill hit step 8.
def test_the_parts_of_our_own_recovery_add_up() -> None:
    def log(shift: float) -> list[dict[str, float]]:
        steps = [(n, 12.0 + n + shift) for n in range(1, 8)] + [(8, 21.5), (9, 22.5)]
        return [{"step": n, "at": at, "loss": 1.0 / n} for n, at in steps]

    line = {
        "at": 1000.02,
        "step": 6,
        "seconds": {"agree": 0.1, "enter": 0.4, "plan": 0.2, "total": 0.5},
        "bytes": {"kept": 100, "received": 7},
    }
    found = recovery.summary(20.0, 1000.0, line, [log(0.0), log(0.5)])
    assert found.total == pytest.approx(1.5)
    assert found.seconds["seen"] == pytest.approx(0.02)
    assert found.seconds["step"] == pytest.approx(1.5 - 0.02 - 0.5)
    assert found.step_seconds == pytest.approx(1.0)
    assert found.repeated == 0
    assert found.bytes == {"kept": 100, "received": 7}
