"""torchrun on several nodes, here on one machine, with one plan of several stages; messages on
interfaces, missing processes and slow devices."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from test_processes import CLUSTER, SCRIPT, TORCHRUN, cut_into_stages, environment, folder, run

import warm_start
from medley.run import connections, job, launch
from medley_extras.race import stragglers

__all__ = ["folder"]  # a fixture

pytestmark = [pytest.mark.multi, pytest.mark.slow]


def start_node(rank: int, port: int, *command: str, **more: str) -> subprocess.Popen[str]:
    """Starts torchrun as the one of a node, with one process."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1"]
    torchrun += [f"--node-rank={rank}", "--master-addr=127.0.0.1", f"--master-port={port}"]
    return subprocess.Popen(
        warm_start.command([*torchrun, *command]),
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_nodes(*command: str, **more: str) -> list[tuple[int, str, str]]:
    """Runs a command on two nodes. Returns code, output and errors of each."""
    port = launch.free_port()
    nodes = [start_node(rank, port, *command, **more) for rank in range(2)]
    found = []
    for node in nodes:
        out, err = node.communicate(timeout=300)
        found.append((node.returncode, out, err))
    return found


def test_nodes_train_one_plan_of_two_stages(folder: Path) -> None:
    cut_into_stages(folder, "gpt")
    for code, _, err in run_nodes(SCRIPT, str(folder), "gpt", "3"):
        assert code == 0, err
    across = json.loads((folder / "seen.json").read_text())
    done = run([*TORCHRUN, "--nproc-per-node=2", SCRIPT, str(folder), "gpt", "3"])
    assert done.returncode == 0, done.stderr
    assert across["loss"] == json.loads((folder / "seen.json").read_text())["loss"]


def test_an_interface_that_is_not_there_is_named(folder: Path) -> None:
    for code, _, err in run_nodes(SCRIPT, str(folder), "gpt", "1", GLOO_SOCKET_IFNAME="wlan7"):
        assert code != 0
        assert "environment: GLOO_SOCKET_IFNAME: found wlan7, expected one of lo" in err


def test_the_interface_of_a_verb_is_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from medley import cli

    arguments = [
        "train",
        "medley_extras.models:gpt",
        "--data",
        str(folder / "none"),
        "--steps",
        "1",
    ]
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(sys, "argv", ["medley", *arguments, "--interface", "wlan7"])
    assert cli.main() == 2
    assert "--interface: found wlan7, expected one of lo" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["medley", *arguments, "--interface", "lo"])
    assert cli.main() == 2  # there is no such folder
    assert "wlan7" not in capsys.readouterr().err
    assert job.interface() == "lo"


# The other node never starts.
def test_timed_out_wait_names_its_place(folder: Path) -> None:
    script = folder / "impatient.py"
    script.write_text(
        "from medley.run import exchange\nexchange.TIMEOUT_SECONDS = 3\nexchange.join()\n",
        encoding="utf-8",
    )
    port = launch.free_port()
    more = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    done = run([sys.executable, str(script)], **more)
    assert done.returncode != 0
    assert (
        f"rank 0: the 2 processes of the job did not meet at 127.0.0.1:{port} through lo: "
        in done.stderr
    )


# Both take as long, where the plan is made to expect far less of one.
EXPECTS = """
import runpy, sys
import medley.engine
medley.engine.expected_nanoseconds = lambda *_, **__: {"a/0/0": 1.0, "b/0/0": 1000.0}
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize(
    "kinds", [("half", "half"), pytest.param(("CPU", "half"), marks=pytest.mark.nightly)]
)
def test_a_device_slower_than_planned_is_named(folder: Path, kinds: tuple[str, str]) -> None:
    cluster = CLUSTER
    for name, kind in zip("ab", kinds, strict=True):
        cluster = re.sub(rf"(name: {name}, count: 1, device: )[\w-]+", rf"\1{kind}", cluster)
    (folder / "cluster.yaml").write_text(cluster)
    (folder / "expects.py").write_text(EXPECTS)
    command = [str(folder / "expects.py"), SCRIPT, str(folder), "gpt", "12"]
    (code, _, first), (_, _, second) = run_nodes(*command)
    assert code == 0, first
    lines = [line for line in first.splitlines() if " is slow: " in line]
    if kinds[0] == kinds[1]:
        (line,) = lines
        assert line.startswith("medley: a/0/0 is slow: computing takes it ")
    else:  # the factor of two between them was never measured
        assert not lines
    assert " is slow: " not in second


def test_slow_is_measured_by_the_others() -> None:
    expected = {"a": 10.0, "b": 20.0, "c": 10.0, "idle": 0.0}
    kinds = dict.fromkeys(expected, "CPU")
    assert stragglers.slow_devices(expected, {"a": 30, "b": 60, "c": 31, "idle": 5}, kinds) == {}
    took = {"a": 30, "b": 120, "c": 30}
    assert stragglers.slow_devices(expected, took, kinds) == {"b": pytest.approx(2.0)}
    (sentence,) = stragglers.slow(expected, took, kinds)
    assert sentence.startswith("b is slow: computing takes it 2.0x as long")
    alone = kinds | {"b": "imaginary"}
    assert stragglers.slow_devices(expected, took, alone) == {}


def test_a_port_taken_meanwhile_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        ports = iter([taken.getsockname()[1]] * 2 + [launch.free_port()])
        monkeypatch.setattr(launch, "free_port", lambda: next(ports))
        store, port = launch.serve_store()
        assert port != taken.getsockname()[1]
        store.set("a", "1")


def test_connections_made_inside_are_guarded() -> None:
    def alive(one: socket.socket) -> int:
        return one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)

    with socket.create_server(("127.0.0.1", 0)) as server:
        before = socket.create_connection(server.getsockname())
        with connections.guarded():
            inside = socket.create_connection(server.getsockname())
        with before, inside:
            assert (alive(before), alive(inside)) == (0, 1)
            limit = inside.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
            assert limit == 1000 * connections.DEAD_SECONDS
            assert inside.getblocking()
