"""Faults in running jobs: all processes end soon, and the last line names the cause."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import medley

sys.path.insert(0, str(Path(__file__).parent))
import faulty
from test_processes import LAUNCH, TORCHRUN, environment, left_running, pids_in, run

import warm_start
from medley.run import launch

pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

SCRIPT = str(Path(__file__).with_name("faulty.py"))
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 2}
  - {name: slow, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
  - {name: lan, connects: [fast, slow], bandwidth: 1 Gbit/s, latency: 50 us}
devices:
  half: {based_on: CPU, speed: 0.5}
"""
DEVICES = ["fast/0/0", "fast/0/1", "slow/0/0"]


@pytest.fixture(scope="module")
def graph() -> str:
    """Returns the graph that faulty.py trains, captured once."""
    return medley.capture(*faulty.make()).text()


@pytest.fixture
def folder(tmp_path: Path, graph: str) -> Path:
    """Returns a folder with a graph, a cluster of three devices and a plan that divides rows and
    the weight over them: all processes must read parameters."""
    (tmp_path / "model.graph").write_text(graph)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    mesh = {"axes": ["x"], "shape": [3], "devices": DEVICES}
    stage = {"mesh": mesh, "placements": {"layer.weight": "S(0, even)"}}
    plan = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": 8,
        "pipelines": [
            {"microbatches": [{"rows": 8, "lengths": [3, 3, 2]}], "stages": [stage]},
        ],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return tmp_path


def launched(folder: Path, *options: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs the script under `medley launch`."""
    return run([*LAUNCH, *options, str(folder / "plan.json"), SCRIPT, str(folder)], **more)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Returns the last line of the launcher."""
    return done.stderr.splitlines()[-1]


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns the messages of the processes on the fault, without those on waiting."""
    lines = done.stderr.splitlines()
    return [line for line in lines if "] medley: " in line and "waiting for" not in line]


def test_last_line_names_the_raising_process(folder: Path) -> None:
    cause = "RuntimeError: my data is broken"
    done = launched(folder, TROUBLE="raise RuntimeError('my data is broken')")
    name = "fast/0/1"
    expected = f"medley launch: device {name} left with exit code 1: {cause}"
    assert last_line(done) == f"{expected}; stopped the other 2"
    assert done.returncode == 1
    others = said(done)
    assert len(others) == 2
    assert all(f"medley: {name}: {cause}" in line for line in others)


def test_torchrun_shows_the_raising_process_as_root_cause(folder: Path) -> None:
    trouble = "raise RuntimeError('my data is broken')"
    done = run([*TORCHRUN, "--nproc-per-node=3", SCRIPT, str(folder)], TROUBLE=trouble)
    assert done.returncode == 1
    root = done.stderr[done.stderr.index("Root Cause") :]
    assert re.search(r"rank\s*: 1 ", root), root
    assert "my data is broken" in root


def test_process_that_leaves_early_is_named(folder: Path) -> None:
    done = launched(folder, TROUBLE="sys.exit(0)")
    assert done.returncode == 2
    expected = r"fast/0/1 has finished, (fast/0/0|slow/0/0) waits for it in step\(\): all processes"
    assert re.search(expected, last_line(done)), done.stderr


# Its process stays alive: no connection reports it.
def test_live_process_that_stops_training_is_named(folder: Path) -> None:
    done = launched(folder, TROUBLE="trainer.finish(); time.sleep(10000)")
    assert done.returncode == 2
    assert "fast/0/1 has finished, " in last_line(done)


@pytest.mark.parametrize(
    "call", ["parameters()", pytest.param("save_model(folder / 'model')", marks=NIGHTLY)]
)
def test_a_call_that_one_process_alone_makes_is_named(folder: Path, call: str) -> None:
    done = launched(folder, TROUBLE=f"trainer.{call}", TROUBLED="0")
    name = re.sub(r"\(.*\)", "()", call)
    assert done.returncode == 2, done.stderr
    assert f"fast/0/0 is in {name}, " in last_line(done) or f"fast/0/0 in {name}: " in last_line(
        done
    )
    assert "in step()" in last_line(done)
    assert "Traceback" not in done.stderr


def test_a_stopped_process_is_named(folder: Path) -> None:
    done = launched(
        folder, "--heartbeat-timeout", "2", TROUBLE="os.kill(os.getpid(), 19)", TROUBLED="2"
    )
    assert done.returncode == 3
    assert last_line(done) == (
        "medley launch: slow/0/0: " + last_line(done).partition("slow/0/0: ")[2]
    )
    assert "no sign of life for 2000 ms, says fast/0/1" in last_line(done)
    assert last_line(done).endswith("; stopped all 3 devices")


def test_two_killed_at_once_are_both_named(folder: Path) -> None:
    trouble = "for other in (1, 2): os.kill(int((folder / f'pid{other}').read_text()), 9)"
    done = launched(folder, TROUBLED="0", TROUBLE=trouble)
    assert done.returncode == 128 + signal.SIGKILL
    assert last_line(done) == (
        "medley launch: device fast/0/1 was killed by SIGKILL and device slow/0/0 was killed by "
        "SIGKILL; stopped the other 1"
    )


def test_the_peer_that_has_gone_is_named_once(folder: Path) -> None:
    done = launched(folder, TROUBLE="os.kill(os.getpid(), 9)")
    assert said(done)
    for line in said(done):
        assert "fast/0/1" in line
        assert "GLHF" not in line
        assert ".cc" not in line
        assert line.count("step") <= 1


# Only the store stood still, which is in the launcher.
@NIGHTLY
def test_a_launcher_that_was_stopped_goes_on(folder: Path) -> None:
    command = [*LAUNCH, "--heartbeat-timeout", "2", str(folder / "plan.json"), SCRIPT, str(folder)]
    process = subprocess.Popen(
        command,
        env=environment(SLOWLY="1", STEPS="60"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "step 5" in line:
            break
    process.send_signal(signal.SIGSTOP)
    time.sleep(8)
    process.send_signal(signal.SIGCONT)
    rest = process.stdout.read()
    assert process.wait(timeout=60) == 0, rest
    assert "step 59" in rest


def test_a_hung_process_after_ctrl_c(folder: Path) -> None:
    trouble = "import signal; signal.signal(2, signal.SIG_IGN); print('hung', flush=True)\n"
    trouble += "while True: time.sleep(1)"
    process = subprocess.Popen(
        warm_start.command([*LAUNCH, str(folder / "plan.json"), SCRIPT, str(folder)]),
        env=environment(TROUBLE=trouble),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    text = ""
    asked = 0
    for line in process.stdout:
        text += line
        if "hung" in line or "Ctrl-C again" in line:
            process.send_signal(signal.SIGINT)
            asked += 1
    assert process.wait(timeout=60) == 130
    assert asked == 2, text
    assert "medley launch: waiting up to 60 s for fast/0/1; Ctrl-C again ends all at once" in text


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGHUP, marks=NIGHTLY)])
def test_a_signal_ends_all(folder: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(
        warm_start.command([*LAUNCH, str(folder / "plan.json"), SCRIPT, str(folder)]),
        env=environment(SLOWLY="1", STEPS="100000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Under nohup it is ignored, and launch keeps it so.
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert process.stdout is not None
    text = ""
    while "step 3" not in text:
        text += process.stdout.readline()
    process.send_signal(number)
    text += process.stdout.read()
    assert process.wait(timeout=60) == 128 + number
    assert f"medley launch: ended by {number.name}; all devices stopped" in text
    assert not left_running(pids_in(text))


# The processes that share the virtual clock are killed before they could remove anything.
def test_a_killed_launcher_leaves_nothing(folder: Path) -> None:
    before = set(os.listdir("/dev/shm"))
    process = subprocess.Popen(
        [
            *LAUNCH,
            "--emulate",
            str(folder / "cluster.yaml"),
            str(folder / "plan.json"),
            SCRIPT,
            str(folder),
        ],
        env=environment(SLOWLY="1", STEPS="100000"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    text = ""
    while text.count("step 3") < 3:
        text += process.stdout.readline()
    process.kill()
    text += process.stdout.read()  # the rest, from all processes
    process.wait()
    assert not left_running(pids_in(text))
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "medley" in name]


def test_a_full_disk_under_the_log_does_not_end_the_training(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            warm_start.command([*LAUNCH, str(folder / "plan.json"), SCRIPT, str(folder)]),
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=100,
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("medley launch: standard output: No space left on device") == 1


# --- before the first step ------------------------------------------------------------------------


def alone(folder: Path, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs one process of a job of three."""
    path = folder / "join.py"
    path.write_text(script)
    values = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1"}
    values["MASTER_PORT"] = str(launch.free_port())
    return run([sys.executable, str(path)], **{**values, **more})


JOIN = "from medley.run import exchange\nexchange.TIMEOUT_SECONDS = 4\nexchange.join()\n"


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"RANK": "5"}, "environment: RANK: found 5, expected less than WORLD_SIZE, which is 3"),
        ({"RANK": "-1"}, "environment: RANK: found '-1', expected a number >= 0"),
        ({"MASTER_ADDR": "no.such.host.invalid"}, "environment: MASTER_ADDR: found 'no.such.host"),
    ],
)
def test_a_wrong_environment_is_one_sentence(
    folder: Path, values: dict[str, str], sentence: str
) -> None:
    done = alone(folder, JOIN, **values)
    assert done.returncode in (2, 3)
    assert f"medley: {sentence}" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_one_sentence(folder: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = alone(folder, JOIN, MASTER_PORT=str(port))
    assert done.returncode == 3
    line = f"medley: rank 0: cannot serve 127.0.0.1:{port}: Address already in use"
    assert line in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("rank", "waiting", "why"),
    [
        ("0", "1 of 3 processes are at {} through lo; waiting for ranks 1, 2, up to 4 s", "ranks"),
        pytest.param(
            "2",
            "rank 2 waits for rank 0 to listen at {} through lo, up to 4 s",
            "nobody has",
            marks=NIGHTLY,
        ),
    ],
)
def test_waiting_process_names_the_missing_one(
    folder: Path, rank: str, waiting: str, why: str
) -> None:
    port = launch.free_port()
    done = alone(folder, JOIN, RANK=rank, MASTER_PORT=str(port))
    assert done.returncode == 3
    assert f"medley: {waiting.format(f'127.0.0.1:{port}')}" in done.stderr
    assert f"did not meet at 127.0.0.1:{port} through lo: {why}" in done.stderr
    assert "Traceback" not in done.stderr


# Longer than the limit of an exchange: the heartbeat of the first process counts.
@NIGHTLY
def test_processes_wait_for_the_first_as_long_as_it_lives(folder: Path) -> None:
    script = folder / "patient.py"
    script.write_text(
        "import time\n"
        "from medley.run import exchange\n"
        "exchange.TIMEOUT_SECONDS = 3\n"
        "exchange._WAIT_IN_SILENCE_SECONDS = 2\n"
        "print(exchange.from_first(lambda: time.sleep(8) or b'late', 'sleeps').decode())\n"
    )
    done = run([*LAUNCH, str(folder / "plan.json"), str(script)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("late") == 3
    assert "[fast/0/1] medley: waiting for rank 0, which sleeps" in done.stderr


@pytest.mark.parametrize(
    ("end", "last"),
    [
        ("os.kill(os.getpid(), 9)", "device fast/0/0 was killed by SIGKILL; stopped the other 2"),
        pytest.param(
            "1 / 0",
            "device fast/0/0 left with exit code 1: ZeroDivisionError: division by zero",
            marks=NIGHTLY,
        ),
        pytest.param("os.kill(os.getpid(), 19)", "rank 0: no sign of life for 2 s", marks=NIGHTLY),
    ],
)
def test_no_wait_for_a_lost_first_process(folder: Path, end: str, last: str) -> None:
    script = folder / "first.py"
    script.write_text(
        "import os, time\n"
        "from medley.run import exchange\n"
        "this = exchange.join()\n"
        f"if this.rank == 0: time.sleep(1); {end}\n"
        "exchange.from_first(lambda: b'', 'makes nothing')\n"
    )
    done = run([*LAUNCH, "--heartbeat-timeout", "2", str(folder / "plan.json"), str(script)])
    assert done.returncode != 0
    assert last in last_line(done)
