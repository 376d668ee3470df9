"""Plans for the loss of any node or process, computed in parallel with training. The process of a
plan's first device starts `python -m medley.run.ahead`, which uses only idle CPU time and publishes
its results in the store, where they outlive that process."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medley import _core
from medley.cluster import Cluster, parse_cluster, text_of
from medley.plan import Plan, Question, find_plan, measured
from medley.run.nodes import nodes_of
from medley.run.replanning import agreed, question
from medley.run.threads import behind_all_others

if TYPE_CHECKING:
    from medley.engine import Engine

_START = Path(__file__).with_name("start_device.py")


def key_of(devices: Sequence[str]) -> str:
    """Returns the key of the plan for these devices."""
    return "ahead/" + hashlib.sha256(",".join(sorted(devices)).encode()).hexdigest()[:32]


class PlansAhead:
    """The plans of all engines for the devices that remain of `members` after a loss, published as
    (key, texts as JSON) once they are found."""

    def __init__(
        self,
        engines: Sequence[Engine],
        plans: Sequence[Plan],
        members: Sequence[str],
        tell: Callable[[str, str], None],
    ) -> None:
        self._engines, self._plans, self._members = engines, plans, list(members)
        self._tell = tell
        self._process: subprocess.Popen[bytes] | None = None
        self._read = 0  # bytes read of its output
        self._steps = 0

    def note_step(self) -> None:
        """Publishes new results at the start of a step. The first step starts without planning, so
        that training resumes immediately after a loss."""
        self._steps += 1
        if self._steps == 2:
            self._start()
        if self._process is None:
            return
        ended = self._process.poll() is not None
        file = self._output.fileno()
        found = os.pread(file, os.fstat(file).st_size - self._read, self._read)
        whole = found[: found.rfind(b"\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            devices, texts = json.loads(line)
            self._tell(key_of(devices), json.dumps(texts))
        if ended:
            self.close()

    def close(self) -> None:
        """Ends the planning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._output.close()
            self._process = None

    def _start(self) -> None:
        # After an error, such as a missing profile or a full disk, planning happens after a loss.
        with contextlib.suppress(OSError, ValueError), tempfile.TemporaryFile() as words:
            request = _request(self._engines, self._plans, self._members)
            if request is not None:
                words.write(request.encode())
                words.seek(0)
                self._output = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
                self._process = subprocess.Popen(
                    [sys.executable, _START, str(os.getpid()), sys.executable, "-m", __name__],
                    stdin=words,
                    stdout=self._output,
                    stderr=subprocess.DEVNULL,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
                )


def left_of(members: Sequence[str]) -> Iterator[list[str]]:
    """Yields the remaining devices without each node, then without each of several devices of a
    node."""
    nodes = nodes_of(members)
    single = [[name] for node in nodes if len(node) > 1 for name in node]
    for lost in nodes + single:
        if len(lost) < len(members):
            yield [name for name in members if name not in lost]


def _request(
    engines: Sequence[Engine], plans: Sequence[Plan], members: Sequence[str]
) -> str | None:
    cluster = text_of(engines[0].machines)
    kept = set(plans[0].devices)
    asked = [left for left in left_of(members) if not kept.issubset(left)]
    if cluster is None or not asked:
        return None
    return json.dumps(
        {
            "cluster": cluster,
            "plans": [
                {
                    "graph": engine.graph.text(),
                    "question": question(plan),
                    "optimizer": engine.optimizer.arguments(engine.graph.core),
                    "times": measured(plan.profile),
                }
                for engine, plan in zip(engines, plans, strict=True)
            ],
            "devices": asked,
        }
    )


def main() -> None:
    """Reads a request, and writes a line for each list of devices."""
    behind_all_others()
    asked = json.load(sys.stdin)
    cluster = parse_cluster(asked["cluster"])
    finders = [_finder(cluster, each) for each in asked["plans"]]
    for devices in asked["devices"]:
        with contextlib.suppress(ValueError):  # no plan exists
            plans = agreed(
                lambda left: [find(left) for find in finders], lambda plan: plan.devices, devices
            )
            print(json.dumps([devices, [plan.text() for plan in plans]]), flush=True)


def _finder(cluster: Cluster, asked: Mapping[str, Any]) -> Callable[[Sequence[str]], _core.Plan]:
    """Returns a function that finds the plan of one engine for some devices."""
    graph = _core.Graph.parse(asked["graph"], "<graph>")
    rule = _core.Optimizer(*asked["optimizer"])
    times, file = asked["times"]
    question = Question(*asked["question"])
    return lambda devices: find_plan(graph, cluster, question, rule, (times, file), devices)


if __name__ == "__main__":
    main()
