"""Kill all and restart from shared storage, in real time: `python -m testbed.restart`.

A system without elasticity does so after the loss of a device. By Varuna's rule every worker is
killed, a job starts on the remaining devices, and each worker reloads its stage from shared
storage. It runs plain PyTorch (`testbed.comparators.restartable`) with one process per device on
this machine, without root. The setting favours the restart: the loss is detected immediately, there
is no wait for a notice, and all workers start together. With `--beside STRATEGY` each run is
followed by Medley's own recovery (`testbed.recovery`) of the same model on as many devices, under a
plan of this strategy.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from testbed import recovery
from testbed.ranks import KEEP_MEMORY

PATIENCE = 300.0  # seconds for a job to get to a step
PARTS = ("killed", "imported", "joined", "loaded", "first step", "caught up")


@dataclasses.dataclass(frozen=True)
class Grid:
    """Replicas x stages."""

    replicas: int
    stages: int

    @staticmethod
    def parse(text: str) -> Grid:
        """Reads "1x4". Raises ValueError."""
        words = text.split("x")
        if len(words) != 2 or not all(word.isdigit() and int(word) > 0 for word in words):
            raise ValueError(f"found {text}, expected replicas x stages, such as 1x4")
        return Grid(int(words[0]), int(words[1]))

    @property
    def size(self) -> int:
        """Returns how many devices it has."""
        return self.replicas * self.stages


@dataclasses.dataclass(frozen=True)
class Recovery:
    """When each part of a recovery was over, in seconds after the kill, on the slowest worker."""

    seconds: dict[str, float]  # by PARTS
    bytes_read: float  # over all workers, from shared storage
    repeated: int  # steps that had been done already
    losses: list[float]  # losses of the steps, repeated ones once

    @property
    def total(self) -> float:
        """Returns the time from the kill until the step that it hit was done."""
        return self.seconds["caught up"]


class Job:
    """The workers of one life of the run."""

    def __init__(self, options: argparse.Namespace, grid: Grid, folder: Path, life: int) -> None:
        self._logs = [folder / f"{life}.{rank}.jsonl" for rank in range(grid.size)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        command = [
            *(sys.executable, "-m", "testbed.comparators.restartable", options.workload, "-"),
            *("--replicas", str(grid.replicas), "--microbatches", str(options.microbatches)),
            *("--storage", str(folder / "storage"), "--save-every", str(options.save_every)),
            *("--bytes-per-second", str(options.gbit * 1e9 / 8), "--steps", str(options.steps)),
        ]
        self.workers = [
            subprocess.Popen(
                [*command, "--output", str(log)],
                env={
                    **os.environ,
                    **KEEP_MEMORY,
                    **{"RANK": str(rank), "WORLD_SIZE": str(grid.size)},
                    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)},
                    **{"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                },
                stdout=subprocess.DEVNULL,
                stderr=log.with_suffix(".err").open("wb"),
            )
            for rank, log in enumerate(self._logs)
        ]

    def lines(self, rank: int) -> list[dict[str, Any]]:
        """Returns the log of a worker."""
        return recovery.whole_lines(self._logs[rank])

    def wait_for(self, step: int) -> None:
        """Returns once rank 0 has done a step. Raises OSError if a worker ends before."""
        end = time.monotonic() + PATIENCE
        while not any(
            line.get("step") == step and line["what"] == "step" for line in self.lines(0)
        ):
            for rank, worker in enumerate(self.workers):
                if worker.poll() not in (None, 0):
                    said = self._logs[rank].with_suffix(".err").read_text()[-2000:]
                    raise OSError(f"restart: worker {rank} ended: {said}")
            if time.monotonic() > end:
                raise OSError(f"restart: no step {step} within {PATIENCE:.0f} s")
            time.sleep(0.002)

    def kill(self) -> None:
        """Kills all workers and waits until they are gone."""
        for worker in self.workers:
            worker.send_signal(signal.SIGKILL)
        for worker in self.workers:
            worker.wait()

    def finish(self) -> None:
        """Waits until all workers have done all steps. Raises OSError if one fails."""
        codes = [worker.wait(timeout=PATIENCE) for worker in self.workers]
        if any(codes):
            raise OSError(f"restart: workers ended with exit codes {codes}")


def recover(options: argparse.Namespace, folder: Path) -> Recovery:
    """Trains, kills a worker in the step after `kill_step`, and restarts all on the remaining
    devices."""
    before = Job(options, options.before, folder, 0)
    after = None
    try:
        before.wait_for(options.kill_step)
        victim = before.workers[options.kill_rank]
        begin = time.monotonic()
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        before.kill()
        killed = time.monotonic()
        after = Job(options, options.after, folder, 1)
        after.finish()
        lives = [job.lines(0) for job in (before, after)]
        logs = [after.lines(rank) for rank in range(options.after.size)]
    finally:
        for job in (before, after):
            if job is not None:
                job.kill()
    return summary(begin, killed, lives, logs)


def summary(
    begin: float,
    killed: float,
    lives: Sequence[Sequence[dict[str, Any]]],
    logs: Sequence[Sequence[dict[str, Any]]],
) -> Recovery:
    """Returns the recovery from the logs: of rank 0 in both lives, of all in the second."""
    steps = [[line for line in life if line["what"] == "step"] for life in lives]
    done = max(line["step"] for line in steps[0])

    def last(what: str) -> float:
        ends = [float(line["at"]) for log in logs for line in log if line["what"] == what]
        return max(ends) - begin

    loaded = next(line for line in logs[0] if line["what"] == "loaded")
    losses = {line["step"]: line["loss"] for life in steps for line in life}
    return Recovery(
        seconds={
            "killed": killed - begin,
            **{what: last(what) for what in ("imported", "joined", "loaded")},
            "first step": steps[1][0]["at"] - begin,
            "caught up": next(line["at"] for line in steps[1] if line["step"] > done) - begin,
        },
        bytes_read=sum(line["bytes"] for log in logs for line in log if line["what"] == "loaded"),
        repeated=done - int(loaded["step"]),
        losses=[losses[step] for step in sorted(losses)],
    )


def table(recoveries: Sequence[Recovery]) -> str:
    """Returns the medians as Markdown."""
    lines = ["| until | seconds after the kill, median | least to most |", "|---|---|---|"]
    lines += [recovery.row(what, [each.seconds[what] for each in recoveries], 2) for what in PARTS]
    read = statistics.median(each.bytes_read for each in recoveries)
    repeated = statistics.median(each.repeated for each in recoveries)
    lines.append(f"\n{read / 1e6:.1f} MB from shared storage; {repeated:g} steps repeated.")
    return "\n".join(lines)


def read(path: Path) -> list[Recovery]:
    """Reads the file of `--output`."""
    return [Recovery(**entry) for entry in json.loads(path.read_text())]


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the arguments. Ends with a sentence if they do not fit."""
    parser = argparse.ArgumentParser(prog="python -m testbed.restart", description=__doc__)
    recovery.add_options(parser)
    parser.add_argument("--before", type=Grid.parse, default="1x4", help="replicas x stages (1x4)")
    parser.add_argument("--after", type=Grid.parse, default="1x3", help="on the devices left (1x3)")
    parser.add_argument("--microbatches", type=int, default=8, help="of each pipeline (8)")
    parser.add_argument("--gbit", type=float, default=1.0, help="Gbit/s of shared storage (1)")
    parser.add_argument("--save-every", type=int, default=5, help="steps (5)")
    parser.add_argument("--beside", metavar="STRATEGY", help="such as data-parallel-even")
    options = parser.parse_args(arguments)
    if not options.kill_rank < options.before.size:
        parser.error(f"--kill-rank: found {options.kill_rank}, expected a rank of --before")
    if not 0 < options.kill_step < options.steps:
        parser.error(f"--kill-step: found {options.kill_step}, expected one before --steps")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    options = parse(arguments)
    recoveries: list[Recovery] = []
    own: list[recovery.Recovery] = []
    with tempfile.TemporaryDirectory(prefix="medley-prepared-") as prepared:
        devices = []
        if options.beside is not None:
            size = options.before.size
            devices = recovery.prepare(options.workload, size, options.beside, Path(prepared))
        for number in range(options.runs):
            with tempfile.TemporaryDirectory(prefix="medley-restart-") as name:
                recoveries.append(recover(options, Path(name)))
            said = f"run {number + 1}: {recoveries[-1].total:.2f} s"
            if devices:
                own.append(recovery.recover(options, Path(prepared), devices))
                said += f", Medley {own[-1].total:.2f} s"
            print(said, flush=True)
            if options.output is not None:
                options.output.write_text(json.dumps([dataclasses.asdict(r) for r in recoveries]))
    print(f"\n{table(recoveries)}")
    if own:
        ratio = statistics.median(a.total / b.total for a, b in zip(recoveries, own, strict=True))
        print(f"\nMedley, {options.beside}\n\n{recovery.table(own)}")
        print(f"\nFrom the kill until the step that it hit is done: {ratio:.2f}x faster, median.")
    print(f"Load: {os.getloadavg()[0]:.1f}.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(str(error))
