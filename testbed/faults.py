"""A run that tolerates repeated faults: `python -m testbed.faults`. Each device is a node of its
own: a network namespace with `medley launch --elastic --rdzv-endpoint` in it, connected to the
others by a bridge. Processes are killed, nodes are stopped and continued, links are cut and
restored. If a node's command has ended, it is restarted there, as a user would do. The first node
leads and has no faults. Needs root."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from testbed import contestants, network, recovery, requirements

ADDRESS = "10.78.0.{}"
PORT = 29500
HOLD_SECONDS = 10.0  # duration of a stop of a node, or of a cut of its link
LEAVE_SECONDS = 60.0  # limit for its end after that
_LOOK_SECONDS = 0.02


@dataclasses.dataclass
class Node:
    """A device, the command that started it, and its current fault."""

    rank: int
    device: str
    command: Sequence[str]
    log: IO[bytes]
    process: subprocess.Popen[bytes] | None = None
    held: list[int] = dataclasses.field(default_factory=list)  # processes that are stopped
    is_cut: bool = False
    mend_at: float | None = None
    hit_at: float | None = None  # until the command is started again
    hits: int = 0

    def start(self) -> None:
        """Runs the command in the node's namespace."""
        self.hit_at = None
        self.process = subprocess.Popen(
            ["nsenter", f"--net=/run/netns/d{self.rank}", *self.command],
            env=recovery.environment(),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def kill(self) -> None:
        """Kills the process of the device."""
        assert self.process is not None
        os.kill(recovery.process_of(self.process.pid, self.device), signal.SIGKILL)

    def stop(self) -> None:
        """Stops the whole node for some time."""
        assert self.process is not None
        self.held = [
            self.process.pid,
            recovery.process_of(self.process.pid, self.device),
        ]
        for each in self.held:
            os.kill(each, signal.SIGSTOP)
        self.mend_at = time.monotonic() + HOLD_SECONDS

    def cut(self) -> None:
        """Cuts its link for some time."""
        network.run("ip", "link", "set", f"p{self.rank}", "down")
        self.is_cut = True
        self.mend_at = time.monotonic() + HOLD_SECONDS

    def look(self) -> None:
        """Ends faults after their time, and restarts a command that has ended. Raises OSError if it
        does not end."""
        now = time.monotonic()
        if self.mend_at is not None and now >= self.mend_at:
            self.mend_at = None
            for each in self.held:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, signal.SIGCONT)
            self.held = []
            if self.is_cut:
                network.run("ip", "link", "set", f"p{self.rank}", "up")
                self.is_cut = False
        if self.hit_at is None or self.mend_at is not None:
            return
        assert self.process is not None
        if self.process.poll() is not None:
            self.start()
        elif now - self.hit_at > HOLD_SECONDS + LEAVE_SECONDS:
            raise OSError(f"faults: {self.device} was out, and its command has not ended")


KINDS: dict[str, Callable[[Node], None]] = {"kill": Node.kill, "stop": Node.stop, "cut": Node.cut}


@dataclasses.dataclass(frozen=True)
class Result:
    """The result of a run: the steps of the first node with their times, and the losses."""

    at: list[float]
    losses: list[float]
    faults: list[tuple[float, str, str]]  # time, type, device
    recoveries: list[dict[str, Any]]
    calm: float  # when the first fault could come
    distance: float | None = None  # distance of the losses from those of one device

    @property
    def step_seconds(self) -> float:
        """The median time in seconds of a step without a recovery."""
        return statistics.median(self._gaps()[0])

    @property
    def lost(self) -> float:
        """The share of the time spent in recoveries: the additional time of interrupted steps."""
        whole = self.at[-1] - self.calm
        return sum(each - self.step_seconds for each in self._gaps()[1]) / whole

    @property
    def steps_against_calm(self) -> float:
        """Steps a second, against the time before the first fault."""
        before = [at for at in self.at if at <= self.calm]
        calm = (len(before) - 1) / (before[-1] - before[0])
        return (len(self.at) - len(before)) / (self.at[-1] - self.calm) / calm

    def _gaps(self) -> tuple[list[float], list[float]]:
        """Returns the seconds of steps that nothing has interrupted, and of the others."""
        offset = time.monotonic() - time.time()
        seen = [line["at"] + offset for line in self.recoveries]
        undisturbed: list[float] = []
        others: list[float] = []
        for begin, end in zip(self.at, self.at[1:], strict=False):
            is_hit = any(begin < each <= end for each in seen)
            (others if is_hit else undisturbed).append(end - begin)
        return undisturbed, others


class Run:
    """All nodes of a run, and their faults."""

    def __init__(self, options: argparse.Namespace, folder: Path, devices: Sequence[str]) -> None:
        self._options, self._folder = options, folder
        self._random = random.Random(options.seed)
        self._faults: list[tuple[float, str, str]] = []
        self._logs = contextlib.ExitStack()
        self._nodes = []
        for rank, device in enumerate(devices):
            log = (folder / f"node{rank}.log").open("wb")
            command = self._command(rank)
            self._nodes.append(Node(rank, device, command, self._logs.enter_context(log)))

    def _command(self, rank: int) -> list[str]:
        more = ["--double"] if self._options.double else []
        silence = self._options.heartbeat_timeout
        watch = [] if silence is None else ["--heartbeat-timeout", str(silence)]
        return [
            *(sys.executable, "-m", "medley", "launch", "--elastic", "--settle", "1e9"),
            *("--elastic-log", str(self._folder / "elastic.jsonl"), *watch),
            *("--rdzv-endpoint", f"{ADDRESS.format(1)}:{PORT}", "--node-rank", str(rank)),
            *(str(self._folder / "plan.json"), str(recovery.SCRIPT), self._options.workload),
            *(str(self._folder), "--steps", str(10**9), "--pause", str(self._options.pause), *more),
        ]

    def go(self) -> Result:
        """Trains during faults. Raises OSError if the run does not continue."""
        try:
            return self._go()
        finally:
            for node in self._nodes:
                if node.process is not None:
                    node.process.kill()
            self._logs.close()

    def _go(self) -> Result:
        for node in self._nodes:
            node.start()
        while not self._steps():
            self._look(time.monotonic())
        begin = time.monotonic() + self._options.calm
        self._look_until(begin)
        every = 60 * self._options.minutes / self._options.faults
        for number in range(self._options.faults):
            self._look_until(begin + every * (number + self._random.uniform(0.1, 0.5)))
            self._hit()
        self._look_until(begin + 60 * self._options.minutes)
        steps = self._steps()
        return Result(
            [line["at"] for line in steps],
            [line["loss"] for line in steps],
            self._faults,
            self._recoveries(),
            begin,
        )

    def _steps(self) -> list[dict[str, Any]]:
        return recovery.whole_lines(
            self._folder / f"{self._nodes[0].device.replace('/', '.')}.jsonl"
        )

    def _recoveries(self) -> list[dict[str, Any]]:
        return recovery.whole_lines(self._folder / "elastic.jsonl")

    def _look_until(self, end: float) -> None:
        while time.monotonic() < end:
            self._look(end)

    def _look(self, end: float) -> None:
        first = self._nodes[0].process
        assert first is not None
        if first.poll() is not None:
            said = (self._folder / "node0.log").read_text()[-3000:]
            raise OSError(f"faults: the run has ended: {said}")
        for node in self._nodes:
            node.look()
        time.sleep(max(0.0, min(_LOOK_SECONDS, end - time.monotonic())) or _LOOK_SECONDS)

    def _hit(self) -> None:
        """Starts a fault of the least hit member without one. If all have one, it waits."""
        kinds = self._options.kinds
        kind = kinds[len(self._faults) % len(kinds)]
        while not (whole := self._whole()):
            self._look(time.monotonic() + 1)
        fewest = min(node.hits for node in whole)
        node = self._random.choice([each for each in whole if each.hits == fewest])
        KINDS[kind](node)
        node.hits += 1
        node.hit_at = time.monotonic()
        self._faults.append((node.hit_at, kind, node.device))
        print(f"{node.device}: {kind}", flush=True)

    def _whole(self) -> list[Node]:
        lines = self._recoveries()
        devices = [node.device for node in self._nodes]
        members = lines[-1]["members"] if lines else devices
        return [each for each in self._nodes[1:] if each.device in members and each.hit_at is None]


def build(count: int) -> None:
    """Makes a namespace for each of the nodes, and a bridge between them."""
    Path("/run/netns").mkdir(parents=True, exist_ok=True)
    network.run("mount", "-t", "tmpfs", "none", "/run/netns")
    network.run("ip", "link", "set", "lo", "up")
    network.run("ip", "link", "add", "bridge", "type", "bridge")
    network.run("ip", "link", "set", "bridge", "up")
    for rank in range(count):
        inside = ["netns", f"d{rank}"]
        network.run("ip", "netns", "add", inside[1])
        network.run(
            *("ip", "link", "add", f"p{rank}", "type", "veth", "peer", "name", "eth0", *inside)
        )
        network.run("ip", "link", "set", f"p{rank}", "master", "bridge", "up")
        lines = ["link set lo up", "link set eth0 up"]
        lines.insert(1, f"addr add {ADDRESS.format(rank + 1)}/24 dev eth0")
        network.batch("ip", inside[1], lines)


def table(result: Result) -> str:
    """Returns the results as Markdown."""
    lines = ["| fault | seen by | members | seconds |", "|---|---|---|---|"]
    offset = time.monotonic() - time.time()
    for line in result.recoveries:
        at = line["at"] + offset
        last = [fault for fault in result.faults if fault[0] <= at]
        hit = f"{last[-1][1]} {last[-1][2]}, {at - last[-1][0]:.2f} s before" if last else ""
        lines.append(
            f"| {hit} | {line['detected']} | {len(line['members'])} | "
            f"{line['seconds']['total']:.2f} |"
        )
    lines += [
        "",
        f"{len(result.faults)} faults, {len(result.recoveries)} recoveries, {len(result.at)} steps",
        f"of {result.step_seconds:.4f} s. Recoveries took {100 * result.lost:.2f} % of the time;",
        f"{100 * result.steps_against_calm:.1f} % of the steps a second that there were before.",
    ]
    if result.distance is not None:
        lines.append(f"The losses are within {result.distance:.1e} of those of one device.")
    return "\n".join(lines)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the arguments. Ends with a sentence if they do not fit."""
    parser = argparse.ArgumentParser(prog="python -m testbed.faults", description=__doc__)
    parser.add_argument("--workload", default="gpt?rows=32&layers=1&width=32")
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--faults", type=int, default=62)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--calm", type=float, default=60.0, help="seconds before the first (60)")
    parser.add_argument(
        "--heartbeat-timeout", type=float, help="seconds of silence, of medley launch"
    )
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between two steps")
    parser.add_argument("--strategy", default="data-parallel-even", help="of the plans")
    parser.add_argument("--double", action="store_true", help="train in float64")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, help="write all figures here, as JSON")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.devices < 3:
        parser.error(f"--devices: found {options.devices}, expected 3 or more")
    if options.faults < 1:
        parser.error(f"--faults: found {options.faults}, expected 1 or more")
    for name in ("minutes", "calm"):
        if not (found := getattr(options, name)) > 0:
            parser.error(f"--{name}: found {found:g}, expected more than 0")
    return options


def measured(options: argparse.Namespace) -> Result:
    """Runs it. Requires: namespaces of this process' own."""
    from testbed.reference import losses_of_one_device

    build(options.devices)
    with tempfile.TemporaryDirectory(prefix="medley-faults-") as name:
        folder = Path(name)
        devices = recovery.prepare(
            options.workload, options.devices, options.strategy, folder, options.double
        )
        result = Run(options, folder, devices).go()
    expected = losses_of_one_device(options.workload, len(result.losses), options.double)
    worst = max(abs(a - b) / abs(b) for a, b in zip(result.losses, expected, strict=True))
    return dataclasses.replace(result, distance=worst)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 if the run has continued after every fault."""
    options = parse(arguments)
    if not options.inside:
        if lacking := requirements.missing():
            raise OSError(f"faults: {'; '.join(lacking)}")
        given = list(sys.argv[1:] if arguments is None else arguments)
        inside = [sys.executable, "-m", "testbed.faults", "--inside", *given]
        contestants.end_on_sigterm()
        return subprocess.run([*requirements.UNSHARE, *inside], check=False).returncode
    result = measured(options)
    if options.output is not None:
        options.output.write_text(json.dumps(dataclasses.asdict(result)))
    print(table(result))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(str(error))
