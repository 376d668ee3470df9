"""Starts one process per device, forwards their output, and ends all when one fails."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO

from medley.run import ends

# Seconds after the first failure for the others to report and exit, and then to clean up.
GRACE_SECONDS = 5.0
# Further seconds for the process that reported the first failure, to obtain its exit code.
CAUSE_SECONDS = 20.0
# Seconds after Ctrl-C for a script to save its state. A second Ctrl-C ends it.
SAVE_SECONDS = 60.0
SAY_SECONDS = 2.0  # until a message about the wait
TERMINATE_SECONDS = 2.0
_MOST_OF_A_CAUSE = 500  # characters, in the last line
EXIT_CODES = {"caller": 2, "environment": 3, "medley": 1}  # by the party at fault


class Device:
    """A process that drives one device, in a process group of its own."""

    def __init__(
        self, name: str, command: Sequence[str], values: Mapping[str, str], files: Sequence[int]
    ) -> None:
        self.name = name
        self.buffers: dict[int, bytes] = {}
        self._code: int | None = None
        # -I and -S: no user module is imported before the command itself.
        start = [sys.executable, "-I", "-S", str(Path(__file__).with_name("start_device.py"))]
        try:
            self._process = subprocess.Popen(
                [*start, str(os.getpid()), *command],
                env=dict(values),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=files,
            )
        except OSError as error:
            raise OSError(f"{name}: cannot start a process: {error.strerror or error}") from None

    @property
    def streams(self) -> list[tuple[IO[bytes], IO[str]]]:
        """The output streams of the process with their targets."""
        out, err = self._process.stdout, self._process.stderr
        assert out is not None
        assert err is not None
        return [(out, sys.stdout), (err, sys.stderr)]

    @property
    def code(self) -> int | None:
        """The exit code, -n after signal n, or None while it runs. It stays a zombie, which
        reserves the number of its process group."""
        if self._code is None:
            with contextlib.suppress(ChildProcessError):
                how = os.WEXITED | os.WNOHANG | os.WNOWAIT
                if (end := os.waitid(os.P_PID, self._process.pid, how)) is not None:
                    exited = end.si_code == os.CLD_EXITED
                    self._code = end.si_status if exited else -end.si_status
        return self._code

    @property
    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.code is None

    def send(self, number: int) -> None:
        """Sends a signal to the process and all its descendants."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def notify(self, number: int) -> None:
        """Sends a signal to the process alone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            self._process.send_signal(number)

    def remove(self) -> None:
        """Kills the process and its remaining descendants."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def describe_end(self) -> str:
        """Returns a text on how the process ended."""
        code = self.code or 0
        if code < 0:
            with contextlib.suppress(ValueError):
                return f"killed by {signal.Signals(-code).name}"
        return f"left with exit code {code}"


# Starts a device's process from its name, command, environment and open files.
Start = Callable[[str, Sequence[str], Mapping[str, str], Sequence[int]], Device]


def exit_code(returncode: int) -> int:
    """Returns the exit code of a shell: 128 + the signal for a killed process."""
    return 128 - returncode if returncode < 0 else returncode


@dataclasses.dataclass
class Failed:
    """The failure of a job: the last line, and the exit code."""

    sentence: str
    code: int


class Supervisor:
    """Runs a command once per device. `store` is that of the job, where processes publish the first
    failure. `files` are open in all of them. `start` starts a process, maybe elsewhere."""

    def __init__(
        self,
        command: Sequence[str],
        names: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        store: ends.Store,
        files: Sequence[int] = (),
        start: Start | None = None,
    ) -> None:
        self._start_device = start or Device
        self._starts = list(zip(names, environments, strict=True))
        self._command = command
        self._files = files
        self._store = store
        self._selector = selectors.DefaultSelector()
        self._width = max(len(name) for name in names)
        self._devices: list[Device] = []
        self._failed: list[Device] = []  # by themselves, in observed order
        self._signalled = False
        self._asked: list[int] = []  # signals received by this process
        self._lost: set[int] = set()  # our outputs that rejected a line
        self._look_seconds = 0.05

    def run(self) -> int:
        """Returns the exit code of the first failure, 128 + n after signal n, else 0."""
        with self._signals():
            try:
                self._start()
                while self._goes_on():
                    self._pass_on(self._look_seconds)
                    if self._is_over():
                        self._end_all()
                        break
                while self._selector.get_map() and self._pass_on(0):
                    pass
            finally:
                for device in self._devices:
                    device.remove()
        return self._report()

    def _goes_on(self) -> bool:
        return any(device.runs for device in self._devices)

    def _start(self) -> None:
        for name, values in self._starts:
            self._start_one(name, values)

    def _start_one(self, name: str, values: Mapping[str, str]) -> None:
        device = self._start_device(name, self._command, values, self._files)
        self._devices.append(device)
        for stream, target in device.streams:
            os.set_blocking(stream.fileno(), False)
            self._selector.register(stream, selectors.EVENT_READ, (device, target))

    # --- the end ---

    def _is_over(self) -> bool:
        """Returns whether to end all processes now."""
        return self._has_failed() or bool(self._asked)

    def _has_failed(self) -> bool:
        for device in self._devices:
            if not self._signalled and device.code and device not in self._failed:
                self._failed.append(device)
        return bool(self._failed)

    def _end_all(self) -> None:
        grace = GRACE_SECONDS
        if self._asked:
            self._send(signal.SIGINT)
            grace = SAVE_SECONDS
        ended = self._wait(grace, until_asked_again=True)
        if not ended and not self._asked and self._cause_still_runs():
            ended = self._wait(CAUSE_SECONDS, until_asked_again=True)
        if not ended:
            self._send(signal.SIGTERM)
        if not self._wait(TERMINATE_SECONDS):
            self._send(signal.SIGKILL)
        self._wait(1.0)

    def _wait(self, seconds: float, until_asked_again: bool = False) -> bool:
        start = time.monotonic()
        said = not (until_asked_again and self._asked)
        while any(device.runs for device in self._devices):
            waited = time.monotonic() - start
            if waited > seconds or (until_asked_again and len(self._asked) > 1):
                return False
            if not said and waited > SAY_SECONDS:
                said = True
                late = ", ".join(device.name for device in self._devices if device.runs)
                self._say(f"waiting up to {seconds:g} s for {late}; Ctrl-C again ends all at once")
            self._pass_on(0.05)
            self._has_failed()
        return True

    def _send(self, number: int) -> None:
        self._signalled = True
        for device in self._devices:
            if device.runs:
                device.send(number)

    def _report(self) -> int:
        if self._asked:
            first = signal.Signals(self._asked[0])
            what = "interrupted" if first == signal.SIGINT else f"ended by {first.name}"
            self._say(f"{what}; all devices stopped")
            return 128 + first
        if not self._has_cause():
            return 0
        failed = self._cause()
        self._say(failed.sentence)
        return failed.code

    def _has_cause(self) -> bool:
        return bool(self._failed)

    def _cause(self) -> Failed:
        """Returns the cause of the failure. A killed process cannot report: failures of others in
        exchanges are consequences."""
        killed = [d for d in self._devices if d in self._failed and (d.code or 0) < 0]
        failure = self._first_failure()
        if killed and (failure is None or failure["in_exchange"]):
            return self._who_ended(killed)
        if failure is None:
            return self._who_ended(self._failed[:1])
        cause = str(failure["cause"]).partition("\n")[0][:_MOST_OF_A_CAUSE]
        for device in self._failed:
            if device.name == ends.failed_itself(failure):
                failed = self._who_ended([device])
                cause = cause.removeprefix(f"{device.name}: ")
                head, _, tail = failed.sentence.rpartition(";")
                return Failed(f"{head}: {cause};{tail}", failed.code)
        return Failed(
            f"{cause}; stopped all {len(self._devices)} devices", EXIT_CODES[failure["blame"]]
        )

    def _cause_still_runs(self) -> bool:
        failure = self._first_failure()
        return failure is not None and any(
            device.runs and device.name == ends.failed_itself(failure) for device in self._devices
        )

    def _first_failure(self) -> dict[str, str] | None:
        with contextlib.suppress(OSError):
            failure = ends.first_failure(self._store)
            if failure is not None and failure["blame"] in EXIT_CODES:
                return failure
        return None

    def _who_ended(self, devices: Sequence[Device]) -> Failed:
        texts = []
        for device in devices:
            was = "was " if (device.code or 0) < 0 else ""
            texts.append(f"device {device.name} {was}{device.describe_end()}")
        stopped = len(self._devices) - len(devices)
        return Failed(
            f"{' and '.join(texts)}; stopped the other {stopped}", exit_code(devices[0].code or 0)
        )

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        def note(number: int, frame: object) -> None:
            self._asked.append(number)

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, note) for number in numbers}
        # A process that ignores this signal has no zombies.
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    # --- output ---

    def _pass_on(self, timeout: float) -> bool:
        """Prints the new lines. Returns whether there were any."""
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
                text = line.decode(errors="replace")
                self._print(f"[{device.name:<{self._width}}] {text}", target)
        return bool(ready)

    def _say(self, sentence: str) -> None:
        self._print(f"medley launch: {sentence}", sys.stderr)

    def _print(self, line: str, target: IO[str]) -> None:
        """Prints a line. A line that cannot be written is dropped, and the devices continue."""
        try:
            write(f"{line}\n", target)
        except BrokenPipeError:  # `medley launch ... | head`
            self._asked.append(signal.SIGPIPE)
        except OSError as error:
            if id(target) not in self._lost:
                self._lost.add(id(target))
                name = "standard output" if target is sys.stdout else "standard error"
                sentence = f"{name}: {error.strerror}: what does not fit is lost, the devices go on"
                with contextlib.suppress(OSError):
                    write(f"medley launch: {sentence}\n", sys.stderr)


def write(text: str, target: IO[str]) -> None:
    """Writes to a file that may be full, without buffering."""
    try:
        number = target.fileno()
    except OSError:  # stream of a notebook
        target.write(text)
        target.flush()
        return
    target.flush()
    data = text.encode(errors="replace")
    while data:
        data = data[os.write(number, data) :]
