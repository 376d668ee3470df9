"""A cluster is built, runs a command, and leaves no trace after any end. Needs root."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from testbed import quota
from testbed.tests.clusters import Testbed, environment, run

pytestmark = pytest.mark.testbed


def left_by(pid: int) -> list[Path]:
    """Returns the control groups and folders that a process made."""
    controller = quota.find_controller()
    assert controller is not None
    return [*controller.root.glob(f"medley-{pid}-*"), *Path("/tmp").glob(f"medley-{pid}-*")]


def processes(word: str) -> list[str]:
    """Returns the processes whose command line has a word."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words and entry.parent.name != str(os.getpid()):
            found.append(entry.parent.name)
    return found


def wait_for(condition: Callable[[], bool]) -> None:
    """Waits until a condition is true. Fails after half a minute."""
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_every_device_has_its_place(testbed: Testbed, four: str, tmp_path: Path) -> None:
    script = (
        "echo rank $RANK of $WORLD_SIZE, master $MASTER_ADDR, on $GLOO_SOCKET_IFNAME; "
        "ip -4 -o addr show eth0; ip -o link | wc -l"
    )
    done = run(testbed(four, "--logs", str(tmp_path / "logs"), "--", "sh", "-c", script))
    assert done.returncode == 0, done.stderr
    for rank, name in enumerate(["fast/0/0", "fast/1/0", "slow/0/0", "slow/1/0"]):
        assert f"[{name}] rank {rank} of 4, master 10.77.0.1, on eth0" in done.stdout
        log = (tmp_path / "logs" / f"{name.replace('/', '-')}.log").read_text()
        assert f"inet 10.77.0.{rank + 1}/24" in log
        assert log.splitlines()[-1] == "2"  # the loopback and eth0: no interface of the host
    assert "slow/1/0: 4 ms of every 20 ms" in done.stderr


def test_the_order_of_ranks_is_that_of_the_plan(
    testbed: Testbed, four: str, tmp_path: Path
) -> None:
    mesh = '{"mesh": {"axes": ["x"], "shape": [2], "devices": ["slow/1/0", "fast/0/0"]}}'
    (tmp_path / "plan.json").write_text(
        '{"format": "medley-plan", "version": 1, "global_batch": 8, "pipelines": [{'
        f'"microbatches": [{{"rows": 8, "lengths": [7, 1]}}], "stages": [{mesh}]}}]}}'
    )
    options = ["--plan", str(tmp_path / "plan.json"), four]
    done = run(testbed(*options, "--", "sh", "-c", "echo $RANK $WORLD_SIZE $MASTER_ADDR"))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[fast/0/0] 1 2 10.77.0.4",
        "[slow/1/0] 0 2 10.77.0.4",
    ]


def test_quotas_hold_when_all_are_ready(testbed: Testbed, four: str) -> None:
    script = (
        "quota() { cat /sys/fs/cgroup/cpu/medley-*-$RANK/cpu.cfs_quota_us 2>/dev/null || "
        "cut -d' ' -f1 $(find /sys/fs/cgroup -name 'medley-*-'$RANK)/cpu.max; }; "
        "quota | tail -1; touch $MEDLEY_TESTBED/ready.$RANK; "
        "while ! [ -e $MEDLEY_TESTBED/go ]; do sleep 0.01; done; quota | tail -1"
    )
    done = run(testbed("--when-ready", four, "--", "sh", "-c", script))
    assert done.returncode == 0, done.stderr
    seen = re.findall(r"\[slow/0/0\] (\S+)", done.stdout)
    assert seen[0] in ("-1", "max")
    assert seen[1] == "4000"


def test_process_that_is_never_ready_is_an_error(testbed: Testbed, four: str) -> None:
    done = run(testbed("--when-ready", four, "--", "true"))
    assert done.returncode == 1
    assert "not all devices said that they are ready" in done.stderr


def test_the_first_failure_ends_all(testbed: Testbed, four: str) -> None:
    script = "if [ $RANK = 2 ]; then exit 7; fi; exec sleep 1000"
    done = run(testbed(four, "--", "sh", "-c", script))
    assert done.returncode == 7
    assert "device slow/0/0 left with exit code 7" in done.stderr


def test_a_job_without_end_is_ended(testbed: Testbed, four: str) -> None:
    done = run(testbed("--timeout", "1", four, "--", "sleep", "1000"))
    assert done.returncode == 124
    assert "no end after 1 s" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_by_signal_leaves_nothing(
    testbed: Testbed, four: str, number: signal.Signals
) -> None:
    word = f"{1000 + os.getpid()}.{int(number)}"  # used by no other process
    process = subprocess.Popen(
        testbed(four, "--", "sleep", word), env=environment(), stderr=subprocess.DEVNULL
    )
    wait_for(lambda: len(processes(word)) >= 4)
    assert left_by(process.pid)
    process.send_signal(number)
    assert process.wait(timeout=30) == (130 if number == signal.SIGINT else -signal.SIGKILL)
    wait_for(lambda: not processes(word))
    if number == signal.SIGKILL:
        # Only remains that the kernel does not remove by itself: empty groups and the folder.
        assert left_by(process.pid)
        assert run(testbed(four, "--", "true")).returncode == 0
    assert not left_by(process.pid)


def test_mistakes_are_sentences(testbed: Testbed, tmp_path: Path) -> None:
    assert run(testbed(str(tmp_path / "none.yaml"), "--", "true")).returncode == 2
    done = run(testbed())
    assert (done.returncode, done.stderr) == (2, "testbed: expected cluster.yaml -- COMMAND\n")
