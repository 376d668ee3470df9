"""The part of the testbed that runs inside its private namespaces, as their first process. It
builds the network, starts one process per device, and applies quotas at the right time. It ends all
processes when one fails or when the outer process closes standard input."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

from testbed import network, quota
from testbed.layout import Flow, Layout, Pair, Port, Quota

GRACE_SECONDS = 5.0
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


@dataclasses.dataclass(frozen=True)
class DeviceSlot:
    """The place and arguments of a process. `device` is its number in the cluster."""

    name: str
    device: int
    quota: Quota
    group: str
    environment: dict[str, str]


@dataclasses.dataclass(frozen=True)
class Job:
    """The job of the inner process; slots are indexed by rank."""

    layout: Layout
    slots: tuple[DeviceSlot, ...]
    command: tuple[str, ...]
    folder: str  # for the protocol of ready.py
    logs: str
    when_ready: bool
    delays: bool
    timeout: float


def to_json(job: Job) -> str:
    """Returns the text that from_json() reads."""
    return json.dumps(dataclasses.asdict(job))


def from_json(text: str) -> Job:
    """Returns the job that to_json() wrote."""
    raw: dict[str, Any] = json.loads(text)
    layout = raw["layout"]
    layout["pairs"] = tuple(Pair(tuple(p["one"]), tuple(p["other"])) for p in layout["pairs"])
    layout["ports"] = tuple(
        Port(**{**port, "flows": tuple(Flow(**flow) for flow in port["flows"])})
        for port in layout["ports"]
    )
    raw["layout"] = Layout(**layout)
    raw["slots"] = tuple(DeviceSlot(**{**s, "quota": Quota(**s["quota"])}) for s in raw["slots"])
    return Job(**raw)


class Process:
    """The process of one device. Its output goes to a file and, line by line, to ours."""

    def __init__(self, slot: DeviceSlot, job: Job) -> None:
        self.slot = slot
        self.log = Path(job.logs, slot.name.replace("/", "-") + ".log")
        self._written: IO[bytes] = self.log.open("wb")
        self._read: IO[bytes] = self.log.open("rb")
        self._rest = b""
        self.popen = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/d{slot.device}", *job.command],
            env={**os.environ, **slot.environment},
            stdin=subprocess.DEVNULL,
            stdout=self._written,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=self._prepare,
        )

    def _prepare(self) -> None:
        quota.enter(Path(self.slot.group))
        os.sched_setaffinity(0, {self.slot.quota.core})
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)

    def pass_on(self, width: int, last: bool = False) -> None:
        """Prints the lines that have come."""
        *lines, self._rest = (self._rest + self._read.read()).split(b"\n")
        if last and self._rest:
            lines.append(self._rest)
        for line in lines:
            text = line.decode(errors="replace")
            print(f"[{self.slot.name:<{width}}] {text}", flush=True)

    def send(self, number: int) -> None:
        """Sends a signal to the process and all that it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.popen.pid, number)

    def describe_end(self) -> str:
        """Returns a text on how it ended."""
        code = self.popen.returncode
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"left with exit code {code}"


class Supervisor:
    """Runs the processes of a job."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._limited = False
        self._end = time.monotonic() + job.timeout
        self._processes = [Process(slot, job) for slot in job.slots]
        self._width = max(len(slot.name) for slot in job.slots)

    def run(self) -> int:
        """Returns the exit code of the first failure, 130 if interrupted, 124 after the time
        limit."""
        if not self._job.when_ready:
            self._limit(True)
        code = None
        while code is None:
            time.sleep(0.02 if not self._limited else 0.1)
            self._pass_on()
            if not self._limited and self._all_ready():
                self._limit(True)
                Path(self._job.folder, "go").touch()
            code = self._state()
        self._limit(False)  # throttled processes take long to end
        if any(process.popen.poll() is None for process in self._processes):
            self._end_all()
        self._pass_on(last=True)
        for process in self._processes:
            process.send(signal.SIGKILL)  # descendants may outlive a process
        return code

    def _all_ready(self) -> bool:
        count = len(self._processes)
        return all(Path(self._job.folder, f"ready.{rank}").exists() for rank in range(count))

    def _limit(self, on: bool) -> None:
        for process in self._processes:
            amount = process.slot.quota
            quota_us = amount.quota_us if on else -1
            quota.limit(Path(process.slot.group), quota_us, amount.period_us)
        self._limited = self._limited or on

    def _state(self) -> int | None:
        """Returns the exit code of the whole, None while it runs."""
        failed = [p for p in self._processes if p.popen.poll() not in (None, 0)]
        if failed:
            # A killed process is the cause; the others only react.
            first = min(failed, key=lambda process: process.popen.returncode)
            self._say(f"device {first.slot.name} {first.describe_end()}")
            code = int(first.popen.returncode)
            return 128 - code if code < 0 else code
        if all(process.popen.poll() == 0 for process in self._processes):
            if self._limited:
                return 0
            self._say("not all devices said that they are ready, so their speed was not limited")
            return 1
        if time.monotonic() > self._end:
            self._say(f"no end after {self._job.timeout:g} s")
            return 124
        if select.select([sys.stdin], [], [], 0)[0] and not os.read(sys.stdin.fileno(), 1):
            self._say("interrupted")
            return 130
        return None

    def _end_all(self) -> None:
        for process in self._processes:
            process.send(signal.SIGTERM)
        end = time.monotonic() + GRACE_SECONDS
        while time.monotonic() < end and any(p.popen.poll() is None for p in self._processes):
            time.sleep(0.02)
        for process in self._processes:
            process.send(signal.SIGKILL)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(timeout=1.0)

    def _pass_on(self, last: bool = False) -> None:
        for process in self._processes:
            process.pass_on(self._width, last)

    def _say(self, sentence: str) -> None:
        print(f"testbed: {sentence}", file=sys.stderr, flush=True)


def main(path: str) -> int:
    """Runs the job that a file describes."""
    job = from_json(Path(path).read_text())
    # The first process of a namespace ignores signals without a handler.
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the outer process decides
    try:
        Path("/run/netns").mkdir(parents=True, exist_ok=True)
        network.run("mount", "-t", "tmpfs", "none", "/run/netns")
        network.run("ip", "link", "set", "lo", "up")
        network.build(job.layout, job.delays)
        return Supervisor(job).run()
    except OSError as error:
        print(error, file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
