"""`medley launch`: one process per device of a plan on this machine, watched until all are gone.

The processes find everything in the environment (medley/job.py). The store through which they meet
lives here, so that it outlives any of them.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import IO

from medley import _core, _runtime, job
from medley.cluster import load_cluster
from medley.plan import Plan

# After the first failure: how long the others may take to say why and leave, and then to clean up.
GRACE_SECONDS = 5.0
# After Ctrl-C: how long a script may take to save what it has. A second Ctrl-C ends that.
SAVE_SECONDS = 60.0
TERMINATE_SECONDS = 2.0
_ATTEMPTS = 20  # to find a port
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG


@dataclasses.dataclass
class Device:
    """A process that drives one device."""

    name: str
    process: subprocess.Popen[bytes]
    buffers: dict[int, bytes] = dataclasses.field(default_factory=dict)

    def describe_end(self) -> str:
        """Returns how the process ended, in words."""
        code = self.process.returncode
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-code).name}"
        return f"left with exit code {code}"


def exit_code(returncode: int) -> int:
    """Returns what a shell would: 128 + the signal for a process that was killed."""
    return 128 - returncode if returncode < 0 else returncode


class Supervisor:
    """Starts the processes, passes on their output line by line, and ends all when one fails."""

    def __init__(self, command: Sequence[str], names: Sequence[str], port: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._width = max(len(name) for name in names)
        self._first: Device | None = None
        self._interrupts = 0
        self._devices: list[Device] = []
        for rank, name in enumerate(names):
            environment = _environment(rank, len(names), port)
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=_before_exec,
            )
            device = Device(name, process)
            self._devices.append(device)
            for stream, target in ((process.stdout, sys.stdout), (process.stderr, sys.stderr)):
                assert stream is not None
                os.set_blocking(stream.fileno(), False)
                self._selector.register(stream, selectors.EVENT_READ, (device, target))

    def run(self) -> int:
        """Returns the exit code of the first process that failed, 130 after Ctrl-C, else 0."""
        with self._signals():
            while any(device.process.poll() is None for device in self._devices):
                self._pass_on(0.05)
                if self._first_failed() or self._interrupts:
                    break
            if self._first is not None or self._interrupts:
                self._end_all()
        while self._selector.get_map() and self._pass_on(0):
            pass
        return self._report()

    def _first_failed(self) -> bool:
        failed = [d for d in self._devices if d.process.poll() not in (None, 0)]
        # Whoever was killed is the cause; the others only noticed.
        failed.sort(key=lambda device: device.process.returncode)
        if failed and self._first is None:
            self._first = failed[0]
        return self._first is not None

    def _end_all(self) -> None:
        grace = GRACE_SECONDS
        if self._interrupts:
            self._send(signal.SIGINT)
            grace = SAVE_SECONDS
        if not self._wait(grace, until_asked_again=True):
            self._send(signal.SIGTERM)
        if not self._wait(TERMINATE_SECONDS):
            self._send(signal.SIGKILL)
        self._wait(1.0)

    def _wait(self, seconds: float, until_asked_again: bool = False) -> bool:
        end = time.monotonic() + seconds
        while any(device.process.poll() is None for device in self._devices):
            if time.monotonic() > end or (until_asked_again and self._interrupts > 1):
                return False
            self._pass_on(0.05)
        return True

    def _send(self, number: int) -> None:
        for device in self._devices:
            if device.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(device.process.pid, number)

    def _report(self) -> int:
        for device in self._devices:  # what a process started may outlive it
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(device.process.pid, signal.SIGKILL)
        if self._interrupts:
            print("medley launch: interrupted; all devices stopped", file=sys.stderr)
            return 130
        if self._first is None:
            return 0
        others = len(self._devices) - 1
        stopped = f"; stopped the other {others}" if others else ""
        print(
            f"medley launch: device {self._first.name} {self._first.describe_end()}{stopped}",
            file=sys.stderr,
        )
        return exit_code(self._first.process.returncode)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def interrupt(number: int, frame: object) -> None:
            self._interrupts += 1

        before = {n: signal.signal(n, interrupt) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _pass_on(self, timeout: float) -> bool:
        """Prints the lines that have come; returns whether there was anything."""
        if not self._selector.get_map():
            time.sleep(timeout)
            return False
        ready = self._selector.select(timeout)
        for key, _ in ready:
            device, target = key.data
            stream = key.fileobj
            assert not isinstance(stream, int)
            data = os.read(stream.fileno(), 1 << 16)
            lines = (device.buffers.pop(stream.fileno(), b"") + data).split(b"\n")
            if data:
                device.buffers[stream.fileno()] = lines.pop()
            else:
                self._selector.unregister(stream)
                lines = [line for line in lines if line]
            for line in lines:
                self._print(device.name, line, target)
        return bool(ready)

    def _print(self, name: str, line: bytes, target: IO[str]) -> None:
        target.write(f"[{name:<{self._width}}] {line.decode(errors='replace')}\n")
        target.flush()


def _before_exec() -> None:
    # A shell lets what it starts in the background ignore SIGINT, and children inherit that: they
    # would not hear of Ctrl-C and be killed before they have saved anything.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Linux: nothing is left behind even if this process is killed without a chance to clean up.
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def _environment(rank: int, size: int, port: int) -> dict[str, str]:
    threads = max(1, len(os.sched_getaffinity(0)) // size)
    return {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is ours, not rank 0's
    }


def serve_store(prefix: str = "", timeout_ms: int = 60_000) -> tuple[_runtime.Store, int]:
    """Serves a store on the loopback, and returns it with its port."""
    for attempt in range(_ATTEMPTS):
        port = free_port()
        try:
            return _runtime.c10d_store("127.0.0.1", port, True, prefix, timeout_ms), port
        except OSError as error:  # somebody else was faster
            if attempt + 1 == _ATTEMPTS or "in use" not in str(error):
                raise
    raise AssertionError


def free_port() -> int:
    """Returns a port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def supervise(command: Sequence[str], names: Sequence[str], values: Mapping[str, str]) -> int:
    """Runs `command` once per device, with `values` in its environment; returns the exit code."""
    store, port = serve_store()
    with job.environment(values):
        code = Supervisor(command, names, port).run()
    del store
    return code


def launch(
    plan_path: str,
    script: str,
    arguments: Sequence[str] = (),
    emulate: str | None = None,
    **settings: float,
) -> int:
    """Runs a script once per device of a plan; returns the exit code.

    The script `train`, where no such file is, stands for the verb: `medley train ARGUMENTS`.
    `emulate` names a cluster.yaml whose times, links and memory take the place of this machine's;
    `settings` are those of `job.emulated()`.
    """
    plan = Plan.load(plan_path)
    command = [script]
    if script == "train" and not os.path.exists(script):
        command = ["-m", "medley", "train"]
    elif not os.path.isfile(script):
        raise ValueError(f"{script}: cannot be read: no such file")
    values = {"MEDLEY_PLAN": os.path.abspath(plan_path)}
    with contextlib.ExitStack() as stack:
        if emulate is not None:
            cluster = load_cluster(emulate)
            for name in plan.devices:
                if cluster.find(name) is None:
                    raise ValueError(
                        f"{emulate}: found no device {name}, expected those of the plan"
                    )
            path = os.path.join(stack.enter_context(_scratch()), "ledger")
            ledger = _core.EmulatedLedger(cluster, path)
            stack.callback(ledger.close)
            values["MEDLEY_EMULATION"] = json.dumps({**settings, "ledger": path})
        return supervise([sys.executable, "-u", *command, *arguments], plan.devices, values)


@contextlib.contextmanager
def _scratch() -> Iterator[str]:
    # In memory where there is such a file system.
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="medley-", dir=where) as folder:
        yield folder
