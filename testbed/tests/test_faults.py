"""A run with repeated faults: the statistics, and its continuation. The run needs root."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from testbed import faults
from testbed.tests.clusters import Testbed, run

pytestmark = pytest.mark.testbed


# One step per second, except two that recoveries have interrupted: of 3 s and 6 s.
def test_cost_of_faults_is_counted() -> None:
    at = [0.0, 1, 2, 3, 4, 7, 8, 9, 15, 16]
    clock = time.time() - time.monotonic()
    seen = [{"at": 5 + clock}, {"at": 10.5 + clock}]
    hits = [(4.5, "kill", "a/1/0"), (9.2, "cut", "a/2/0")]
    result = faults.Result(at, [1.0] * len(at), hits, seen, calm=4.0)
    assert result.step_seconds == pytest.approx(1)
    assert result.lost == pytest.approx((2 + 5) / 12)
    assert result.steps_against_calm == pytest.approx(5 / 12)


def test_a_run_without_a_member_that_may_be_lost_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for words, said in {
        "--devices 2": "--devices: found 2, expected 3 or more",
        "--faults 0": "--faults: found 0, expected 1 or more",
        "--minutes 0": "--minutes: found 0, expected more than 0",
        "--calm -1": "--calm: found -1, expected more than 0",
        "--kinds burn": "invalid choice: 'burn'",
    }.items():
        with pytest.raises(SystemExit):
            faults.parse(words.split())
        assert said in capsys.readouterr().err


# A process is killed, a node stopped for ten seconds, and a link cut for ten seconds.
@pytest.mark.slow
def test_a_run_goes_on_after_each_kind_of_fault(testbed: Testbed, tmp_path: Path) -> None:
    assert testbed()  # skips where there can be none
    output = tmp_path / "faults.json"
    command = [sys.executable, "-m", "testbed.faults", "--devices", "4", "--minutes", "1"]
    command += ["--faults", "3", "--calm", "5", "--double", "--output", str(output)]
    done = run(command)
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    assert [kind for _, kind, _ in found["faults"]] == ["kill", "stop", "cut"]
    losses = [line for line in found["recoveries"] if line["detected"] != "offer"]
    for (_, _, device), line in zip(found["faults"], losses, strict=True):
        assert device in line["lost"]
        assert line["back"] == 0
    assert found["distance"] < 1e-9
