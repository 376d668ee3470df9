"""docs/quickstart_two_machines.md on two machines: network namespaces of this one, joined by a link
with the addresses of the page. Its commands run as printed, with the replacements that it names for
CPUs, and its failures are provoked."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from medley.cluster import parse_cluster

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "quickstart_two_machines.md").read_text()
DATA = (ROOT / "docs" / "howto" / "train.md").read_text()
ADDRESSES = {"A": "10.0.0.1", "B": "10.0.0.2"}
ENOUGH = 500.0  # seconds until a wait is a failure: no result depends on them
# Without warnings and without the straggler of a step, which depend on the load.
RANK_0 = re.compile(r"\[a/0/0\] (?!medley: )([^;\n]*)")
# Only the losses on the page are the same on all machines.
LOSS = re.compile(r"(loss) ([\d.]+)")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?")

pytestmark = [pytest.mark.multi, pytest.mark.slow, pytest.mark.nightly]


def lacking() -> str:
    """Returns the reason why there can be no namespaces, or ""."""
    for tool, package in {
        "ip": "iproute2",
        "unshare": "util-linux",
        "nsenter": "util-linux",
    }.items():
        if shutil.which(tool) is None:
            return f"{tool} of the Debian package {package} is not installed"
    command = ["unshare", "-n", "-u", "sh", "-c", "ip link add one type veth peer name other"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() if done.returncode else ""


# --- the page -------------------------------------------------------------------------------------


def on_cpus(text: str) -> str:
    """Returns text of the page with its replacements for machines without GPUs."""
    table = PAGE[PAGE.index("## Rehearse without GPUs") : PAGE.index("## If it fails")]
    pairs = re.findall(r"^\| `(.*?)` \| `(.*?)` \|$", table, re.M)
    assert len(pairs) == 6
    for old, new in pairs:
        assert old in PAGE.replace(table, ""), old
        text = text.replace(old, new)
    return text


def section(number: int) -> str:
    """Returns a numbered section of the page."""
    found = re.search(rf"^## {number}\. .*?(?=^##)", PAGE, re.M | re.S)
    assert found
    return on_cpus(found[0])


def fence(text: str, name: str) -> str:
    """Returns the content of the only fence with a name."""
    (found,) = re.findall(rf"^```{name}\n(.*?)^```$", text, re.M | re.S)
    return str(found)


def command_of(text: str, machine: str) -> str:
    """Returns the command that a section has for one machine."""
    found = re.search(rf"^On {machine}:\n\n```sh\n(.*?)^```$", text, re.M | re.S)
    assert found
    return found[1]


def symptom(of: str) -> list[str]:
    """Returns the quoted parts of a row of the table of failures, which are in this order."""
    (row,) = re.findall(rf"^\| (.*{re.escape(of)}.*?) \|.*\|$", PAGE, re.M)
    return [part for text in re.findall("`(.*?)`", row) for part in text.split("...") if part]


def says(text: str, parts: Sequence[str]) -> bool:
    return re.search(".*".join(map(re.escape, parts)), text, re.S) is not None


# --- the machines ---------------------------------------------------------------------------------


class Machine:
    """A namespace with a folder. It ends with this process, or with `end`."""

    def __init__(self, name: str, folder: Path, programs: Path) -> None:
        self.folder = folder / name.lower()
        self.folder.mkdir()
        self._programs = programs
        self._running: list[subprocess.Popen[bytes]] = []
        # The host name of a machine is not that of another.
        script = f"hostname {name.lower()} && echo && exec cat"
        self._holder = subprocess.Popen(
            ["unshare", "-n", "-u", "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout and self._holder.stdout.readline()
        self.pid = self._holder.pid

    def start(self, command: str, log: str = "log", **more: str) -> subprocess.Popen[bytes]:
        """Starts a command of the page here. Its output goes to a file of the folder."""
        environment = {
            **os.environ,
            "PATH": f"{self._programs}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "python"),
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "100",
            **more,
        }
        with (self.folder / log).open("wb") as file:
            started = subprocess.Popen(
                ["nsenter", "-t", str(self.pid), "-n", "-u", "sh", "-c", command],
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._running.append(started)
        return started

    def text(self, log: str = "log") -> str:
        return (self.folder / log).read_text(errors="replace")

    def run(self, command: str, code: int = 0) -> str:
        """Runs a command to its end. Returns its output."""
        assert self.start(command).wait(ENOUGH) == code, self.text()
        return self.text()

    def wait_for(self, parts: Sequence[str]) -> None:
        """Waits until the last command has printed texts."""
        end = time.monotonic() + ENOUGH
        while not says(self.text(), parts):
            assert self._running[-1].poll() is None, self.text()
            assert time.monotonic() < end, self.text()
            time.sleep(0.1)

    def processes(self, variable: str) -> list[int]:
        """Returns the processes here with a setting in their environment."""
        space = os.readlink(f"/proc/{self.pid}/ns/net")
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns/net") == space:
                    values = (entry / "environ").read_bytes().split(b"\0")
                    found += [int(entry.name)] * (variable.encode() in values)
        return found

    def end(self) -> None:
        for process in self._running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for pid in self.processes("OMP_NUM_THREADS=1"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._holder.communicate()


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[tuple[Machine, Machine]]:
    """Returns A and B, joined, with the programs of the page and a folder that both mount."""
    if why := lacking():
        pytest.skip(f"no network namespaces: {why}")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, command in {
        "medley": f'{sys.executable} -m medley "$@"',
        "torchrun": f'{sys.executable} -m torch.distributed.run "$@"',
        "python": f'{sys.executable} "$@"',
        "scp": f'for last; do :; done; test "$last" = b: && set -- "$@" && '
        f'cp $(echo " $*" | sed "s/ b:$//") {tmp_path}/b',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\n{command}\n")
        (programs / name).chmod(0o755)
    (tmp_path / "shared").mkdir()
    with contextlib.ExitStack() as stack:
        both = []
        for name in ADDRESSES:
            both.append(Machine(name, tmp_path, programs))
            stack.callback(both[-1].end)
            (both[-1].folder / "shared").symlink_to(tmp_path / "shared")
        a, b = both
        a.run(f"ip link add eth0 type veth peer name eth0 netns {b.pid}")
        for machine, address in zip(both, ADDRESSES.values(), strict=True):
            assert address in PAGE
            machine.run(
                f"ip addr add {address}/24 dev eth0 && ip link set eth0 up && ip link set lo up"
            )
        yield a, b


@pytest.fixture
def planned(machines: tuple[Machine, Machine]) -> tuple[Machine, Machine]:
    """Returns A and B after steps 4 and 5."""
    a, _ = machines
    (a.folder / "cluster.yaml").write_text(fence(section(3), "yaml cluster.yaml"))
    for line in fence(section(4), "console").splitlines():
        if line.startswith("$ "):
            a.run(line.removeprefix("$ "))
    (a.folder / "books.py").write_text(fence(DATA, "python books.py"))
    a.run("python books.py")
    a.run(fence(section(5), "sh"))
    return machines


def finish(process: subprocess.Popen[bytes], machine: Machine) -> str:
    """Waits for the end of a command, which is a success. Returns its output."""
    assert process.wait(ENOUGH) == 0, machine.text()
    return machine.text()


def trains(a: Machine, b: Machine, **more: str) -> tuple[str, str]:
    """Runs step 6. Returns what A and B print."""
    started = [m.start(command_of(section(6), n), **more) for m, n in ((a, "A"), (b, "B"))]
    return finish(started[0], a), finish(started[1], b)


# --- steps ----------------------------------------------------------------------------------------


def test_doctor_finds_the_addresses(machines: tuple[Machine, Machine]) -> None:
    for machine, address in zip(machines, ADDRESSES.values(), strict=True):
        assert f"eth0 {address}" in " ".join(machine.run(fence(section(2), "sh")).split())


def test_probe_measures_both_machines(machines: tuple[Machine, Machine]) -> None:
    a, b = machines
    started = [m.start(command_of(section(3), n)) for m, n in ((a, "A"), (b, "B"))]
    printed = finish(started[0], a)
    finish(started[1], b)
    expected = NUMBER.sub("N", fence(section(3), "text").strip())
    assert expected in NUMBER.sub("N", printed)
    text = (a.folder / "cluster.yaml").read_text()
    parse_cluster(text)
    counts = [int(each) for each in re.findall(r"devices_per_node: (\d+)", text)]
    # Noise may split the devices of a machine into several types, but not join the machines.
    assert sum(counts) == 6 and any(sum(counts[:n]) == 2 for n in range(len(counts)))
    assert "name: lan" in text
    assert not (b.folder / "cluster.yaml").exists()
    capture, plan = re.findall(r"^\$ (.*)$", fence(section(4), "console"), re.M)
    a.run(capture)
    assert "Predicted step" in a.run(plan)


def test_both_machines_train(planned: tuple[Machine, Machine]) -> None:
    printed, of_b = trains(*planned)
    expected = RANK_0.findall(fence(section(6), "text"))
    found = RANK_0.findall(printed)
    assert [NUMBER.sub("N", line) for line in found] == [NUMBER.sub("N", each) for each in expected]
    losses = [[float(each) for _, each in LOSS.findall("\n".join(x))] for x in (found, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert len(re.findall(r"^\[b/", of_b, re.M)) <= 1
    out = planned[0].folder / "shared" / "out"
    assert (out / "model.safetensors").exists() and (out / "step-00000005").is_dir()


# --- failures -------------------------------------------------------------------------------------


def test_a_closed_port_of_a_is_named(planned: tuple[Machine, Machine]) -> None:
    a, b = planned
    b.run("ip link set eth0 down")
    second = b.start(command_of(section(6), "B"))
    at_b, at_a, _ = symptom("did not meet at")
    b.wait_for([at_b])
    first = a.start(command_of(section(6), "A"))
    a.wait_for([at_a])
    b.start("ip link set eth0 up", "link").wait()
    finish(first, a)
    finish(second, b)


def test_closed_ports_between_both_are_named(planned: tuple[Machine, Machine]) -> None:
    # The first connection is to A's port, all others are to an address of no other machine.
    a, b = planned
    started = [
        m.start(command_of(section(6), n), GLOO_SOCKET_IFNAME="lo") for m, n in ((a, "A"), (b, "B"))
    ]
    assert all(process.wait(ENOUGH) for process in started)
    # The first process that fails ends all, on either machine.
    assert says(a.text() + b.text(), symptom("could not connect to each other"))


def test_a_folder_that_only_one_machine_mounts_is_named(
    planned: tuple[Machine, Machine],
) -> None:
    a, b = planned
    (b.folder / "shared").unlink()
    printed, _ = trains(a, b)
    assert says(printed, symptom("is not saved"))
    assert "saved shared/out/model.safetensors after 5 steps" in printed


def test_a_silent_process_is_named_and_the_others_go_on(
    planned: tuple[Machine, Machine],
) -> None:
    a, b = planned
    long = [command_of(section(6), n).replace("--steps 5", "--steps 300") for n in "AB"]
    started = [m.start(command) for m, command in zip(planned, long, strict=True)]
    a.wait_for(["step 1/300"])
    for pid in b.processes("MEDLEY_DEVICE=b/0/3"):
        os.kill(pid, signal.SIGSTOP)
    a.wait_for(symptom("no sign of life"))
    assert "step 300/300" in finish(started[0], a)
    assert started[1].wait(ENOUGH) == 128 + signal.SIGKILL
    assert "device b/0/3 was killed by SIGKILL" in b.text()
