"""The time from the kill of a process to the end of the interrupted step, by cause, in real time:
`python -m testbed.recovery`. It measures Medley's own recovery (`medley launch --elastic`) with one
process per device on this machine, without root. `python -m testbed.restart --beside STRATEGY` runs
it together with a restart from shared storage."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PATIENCE = 300.0  # seconds for a job to get to a step, and to end
ROOT = Path(__file__).resolve().parent.parent
SCRIPT = Path(__file__).with_name("comparators") / "recovering.py"
# In this order. Those from `catch_up` on are the times of the slowest member, each by itself.
PARTS = ("seen", "agree", "catch_up", "plan", "program", "build", "restore", "step", "total")
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {{name: a, count: {count}, device: CPU, devices_per_node: 1}}
networks:
  - {{name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 10 us}}
"""


@dataclasses.dataclass(frozen=True)
class Recovery:
    """The cost of a loss."""

    seconds: dict[str, float]  # by PARTS
    bytes: dict[str, float]  # bytes of the state by source, over all members
    step_seconds: float  # median of the steps before
    repeated: int  # steps done before the kill and repeated
    losses: list[float]

    @property
    def total(self) -> float:
        """Returns the time from the kill until the step that it hit was done, on the slowest."""
        return self.seconds["total"]


class Job:
    """A run of `medley launch --elastic`."""

    def __init__(
        self,
        folder: Path,
        devices: Sequence[str],
        workload: str,
        steps: int,
        options: Sequence[str] = (),
    ) -> None:
        self._folder, self._devices = folder, list(devices)
        command = [
            *(sys.executable, "-m", "medley", "launch", "--elastic"),
            *("--elastic-log", str(folder / "elastic.jsonl"), *options),
            str(folder / "plan.json"),
            *(str(SCRIPT), workload, str(folder), "--steps", str(steps)),
        ]
        self._errors = folder / "errors"
        with self._errors.open("wb") as errors:
            self._launch = subprocess.Popen(
                command,
                env=environment(),
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def steps(self, device: str) -> list[dict[str, Any]]:
        """Returns the steps that a device has noted."""
        return whole_lines(self._folder / f"{device.replace('/', '.')}.jsonl")

    def wait_for(self, step: int) -> None:
        """Returns once the first device has done a step. Raises OSError if the run ends before."""
        end = time.monotonic() + PATIENCE
        while not any(line["step"] == step for line in self.steps(self._devices[0])):
            if self._launch.poll() is not None or time.monotonic() > end:
                raise OSError(f"recovery: no step {step}: {self._errors.read_text()[-2000:]}")
            time.sleep(0.002)

    @property
    def launcher(self) -> int:
        """The process that has started those of the devices."""
        return self._launch.pid

    def finish(self) -> None:
        """Waits until all steps are done. Raises OSError if the run fails."""
        if self._launch.wait(timeout=PATIENCE) != 0:
            raise OSError(f"recovery: {self._errors.read_text()[-2000:]}")

    def end(self) -> None:
        """Ends the run and its processes, unless it has ended."""
        if self._launch.poll() is None:
            self._launch.kill()
            self._launch.wait()


def environment() -> dict[str, str]:
    """Returns the environment of a command whose processes run SCRIPT."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def whole_lines(log: Path) -> list[dict[str, Any]]:
    """Returns the complete lines of a process's log."""
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    return [json.loads(line) for line in lines]


def row(what: str, seconds: Sequence[float], digits: int) -> str:
    """Returns a line of a table: the median, and least to most."""
    least, most = min(seconds), max(seconds)
    return (
        f"| {what} | {statistics.median(seconds):.{digits}f} | {least:.{digits}f} to "
        f"{most:.{digits}f} |"
    )


def process_of(launcher: int, device: str) -> int:
    """Returns the process of a device, which `medley launch` has started. Raises OSError if there
    is none."""
    for task in Path(f"/proc/{launcher}/task").iterdir():
        for child in map(int, (task / "children").read_text().split()):
            variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
            if f"MEDLEY_DEVICE={device}".encode() in variables:
                return child
    raise OSError(f"recovery: found no process of {device}")


def prepare(
    workload: str, devices: int, strategy: str, folder: Path, double: bool = False
) -> list[str]:
    """Writes graph, cluster and plan. Returns the devices of the plan."""
    import torch

    import medley
    from testbed.comparators import workloads

    torch.set_default_dtype(torch.float64 if double else torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    model, example = workloads.load(workload)
    graph = medley.capture(model, example)
    (folder / "model.graph").write_text(graph.text())
    (folder / "cluster.yaml").write_text(CLUSTER.format(count=devices))
    rows = len(next(iter(example.values())))
    chosen = medley.plan(graph, folder / "cluster.yaml", strategy, global_batch=rows)
    chosen.save(folder / "plan.json")
    return list(chosen.devices)


def recover(options: argparse.Namespace, prepared: Path, devices: Sequence[str]) -> Recovery:
    """Trains, and kills a process in the step after `kill_step`."""
    victim = devices[options.kill_rank]
    with tempfile.TemporaryDirectory(prefix="medley-recovery-") as name:
        folder = Path(name)
        for file in prepared.iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        job = Job(folder, devices, options.workload, options.steps)
        try:
            job.wait_for(options.kill_step)
            process = process_of(job.launcher, victim)
            begin, wall = time.monotonic(), time.time()
            os.kill(process, signal.SIGKILL)
            job.finish()
            (line,) = [json.loads(text) for text in (folder / "elastic.jsonl").open()]
            logs = [job.steps(device) for device in devices if device != victim]
        finally:
            job.end()
    return summary(begin, wall, line, logs)


def summary(
    begin: float, wall: float, line: dict[str, Any], logs: Sequence[Sequence[dict[str, Any]]]
) -> Recovery:
    """Returns the cost of a kill from the logs of the survivors and the line of the recovery. The
    kill was at `begin` on the clock of the logs, and at `wall` in seconds since 1970."""
    before = [entry["at"] for entry in logs[0] if entry["at"] <= begin]
    hit = max(entry["step"] for log in logs for entry in log if entry["at"] <= begin) + 1
    total = max(entry["at"] for log in logs for entry in log if entry["step"] == hit) - begin
    parts = line["seconds"]
    seconds = {
        "seen": line["at"] - wall,
        **{part: parts[part] for part in PARTS if part in parts and part != "total"},
        "total": total,
    }
    seconds["step"] = total - seconds["seen"] - parts["total"]
    return Recovery(
        seconds=seconds,
        bytes={source: float(count) for source, count in line["bytes"].items()},
        step_seconds=statistics.median(b - a for a, b in zip(before, before[1:], strict=False)),
        repeated=max(0, hit - 1 - (line["step"] + 1)),
        losses=[entry["loss"] for entry in logs[0]],
    )


def table(recoveries: Sequence[Recovery]) -> str:
    """Returns the medians as Markdown."""
    lines = ["| cause | seconds, median | least to most |", "|---|---|---|"]
    lines += [row(part, [each.seconds[part] for each in recoveries], 3) for part in PARTS]
    step = statistics.median(each.step_seconds for each in recoveries)
    moved = ", ".join(
        f"{statistics.median(each.bytes[source] for each in recoveries) / 1e6:.1f} MB {source}"
        for source in recoveries[0].bytes
    )
    repeated = statistics.median(each.repeated for each in recoveries)
    lines.append(
        f"\nAn undisturbed step takes {step:.3f} s. Of the state: {moved}; {repeated:g} finished "
        "steps repeated. `step` is what is left: from the end of the recovery until the step is "
        "done."
    )
    return "\n".join(lines)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds options shared with testbed.restart."""
    parser.add_argument("--workload", default="gpt", help="a GPT: gpt or gpt?layers=12&width=256")
    parser.add_argument("--kill-step", type=int, default=7, help="the step after it is hit (7)")
    parser.add_argument("--kill-rank", type=int, default=1, help="who is killed (1)")
    parser.add_argument("--steps", type=int, default=10, help="of the whole run (10)")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--output", type=Path, help="write all figures here, as JSON")


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the arguments. Ends with a sentence if they do not fit."""
    parser = argparse.ArgumentParser(prog="python -m testbed.recovery", description=__doc__)
    add_options(parser)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--strategy", default="data-parallel-even", help="of the plans")
    options = parser.parse_args(arguments)
    if not 0 <= options.kill_rank < options.devices:
        parser.error(f"--kill-rank: found {options.kill_rank}, expected a number below --devices")
    if not 1 < options.kill_step < options.steps:
        parser.error(f"--kill-step: found {options.kill_step}, expected one before --steps")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0."""
    options = parse(arguments)
    recoveries = []
    with tempfile.TemporaryDirectory(prefix="medley-prepared-") as name:
        devices = prepare(options.workload, options.devices, options.strategy, Path(name))
        for number in range(options.runs):
            recoveries.append(recover(options, Path(name), devices))
            print(f"run {number + 1}: {recoveries[-1].total:.2f} s", flush=True)
            if options.output is not None:
                text = json.dumps([dataclasses.asdict(each) for each in recoveries])
                options.output.write_text(text)
    print(f"\n{table(recoveries)}\nLoad: {os.getloadavg()[0]:.1f}.")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as error:
        sys.exit(str(error))
