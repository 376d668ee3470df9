"""Starts the processes of one place of a job: `python -m medley_extras.deploy.start`.

The files that `medley launch --for` writes run it on every node. From the plan it finds which
devices the place has, gives their processes the variables that a trainer reads (RANK, LOCAL_RANK,
WORLD_SIZE, MASTER_ADDR, MASTER_PORT, MEDLEY_PLAN), and passes SIGTERM and SIGINT on to them.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from medley import Plan
from medley.files import make_folder
from medley_extras.deploy.job import Node, groups_of, script_of

Place = TypeVar("Place")
GRACE_SECONDS = 10.0  # after the first failure, for the others to say why and leave


def variables(
    plan: str, devices: Sequence[str], node: Node, device: str, meet: str
) -> dict[str, str]:
    """Returns what the process of a device reads; `devices`: of the plan, by rank."""
    host, _, port = meet.rpartition(":")
    threads = max(1, len(os.sched_getaffinity(0)) // len(node.devices))
    return {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "MEDLEY_DEVICE": device,
        "MEDLEY_PLAN": os.path.abspath(plan),
        "RANK": str(devices.index(device)),
        "LOCAL_RANK": str(node.devices.index(device)),
        "WORLD_SIZE": str(len(devices)),
        "LOCAL_WORLD_SIZE": str(len(node.devices)),
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
    }


def run_all(commands: Sequence[tuple[list[str], dict[str, str]]]) -> int:
    """Runs commands in parallel; returns the exit code of the first one that fails, else 0."""
    processes = [subprocess.Popen(command, env=values) for command, values in commands]
    signals: list[int] = []

    def send(number: int, frame: object = None) -> None:
        signals.append(number)
        for each in processes:
            each.send_signal(number)  # no effect on a process that has ended

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, send)
    first, ends = 0, float("inf")
    while None in (codes := [each.poll() for each in processes]):
        failed = [code for code in codes if code]
        if failed and not first and not signals:  # else all save first
            first, ends = failed[0], time.monotonic() + GRACE_SECONDS
        if time.monotonic() > ends:
            send(signal.SIGKILL)
        time.sleep(0.05)
    first = first or next((code for code in codes if code), 0)
    return 128 - first if first < 0 else first


def main() -> int:
    """Starts what the arguments say; returns the exit code."""
    parser = argparse.ArgumentParser(prog="medley_extras.deploy.start", description=__doc__)
    parser.add_argument("--plan", required=True)
    parser.add_argument("--rdzv-endpoint", metavar="HOST:PORT", required=True)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--task", type=int, help="which process, counted over groups")
    place.add_argument("--node", type=int, help="which node, counted over groups")
    parser.add_argument("--first", type=int, default=0, help="added to --node")
    parser.add_argument("--elastic", action="store_true")
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--log", metavar="FOLDER", help="with --elastic: of elastic.jsonl")
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    words = [word for i, word in enumerate(options.words) if i > 0 or word != "--"]
    devices = Plan.load(options.plan).devices
    nodes = [node for group in groups_of(devices) for node in group.nodes]
    python = [sys.executable, "-u"]
    if options.elastic:
        node = _at(nodes, options.first + options.node, "--node")
        launch = ["-m", "medley", "launch", "--elastic"]
        launch += ["--max-restarts", str(options.max_restarts)]
        if options.log:
            make_folder(options.log)
            launch += ["--elastic-log", str(Path(options.log, "elastic.jsonl"))]
        where = (
            []
            if len(nodes) == 1
            else ["--rdzv-endpoint", options.rdzv_endpoint, "--node-rank", str(node.rank)]
        )
        os.execv(sys.executable, [*python, *launch, *where, options.plan, *script_of(words)])
    if options.task is not None:
        tasks = [(node, device) for node in nodes for device in node.devices]
        node, device = _at(tasks, options.task, "--task")
        values = variables(options.plan, devices, node, device, options.rdzv_endpoint)
        os.execve(sys.executable, [*python, *words], values)
    node = _at(nodes, options.first + options.node, "--node")
    meeting = options.rdzv_endpoint
    every = [variables(options.plan, devices, node, each, meeting) for each in node.devices]
    return run_all([([*python, *words], values) for values in every])


def _at(places: Sequence[Place], number: int, option: str) -> Place:
    if not 0 <= number < len(places):
        raise ValueError(
            f"{option}: no such place in the plan (got {number}, expected 0 to {len(places) - 1}). "
            "Write the job again for this plan."
        )
    return places[number]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ValueError as error:
        sys.exit(f"medley: {error}")
