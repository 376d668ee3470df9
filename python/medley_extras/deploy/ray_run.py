"""Runs a plan on a Ray cluster: Ray places the processes and starts those that were lost again.

The driver serves the store and decides, in an elastic run, with which devices the run resumes. An
actor has the process of one device; if the actor is killed, so is the process.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from medley.files import make_folder, read_text
from medley.run.launch import Elastic, Place, launch
from medley.run.supervisor import Device
from medley_extras.deploy.job import STOPPED, script_of

PLACE_SECONDS = 600.0  # until Ray has found machines for all
_POLL_SECONDS = 0.02
# Variables that hold for the driver's machine alone.
_OWN = ("OMP_NUM_THREADS",)


class Worker:
    """The actor of one device."""

    def __init__(self, name: str, words: Sequence[str], values: Mapping[str, str], plan: str):
        self._folder = tempfile.TemporaryDirectory(prefix="medley-")
        path = Path(self._folder.name, "plan.json")
        path.write_text(plan, encoding="utf-8")
        environment = {**os.environ, **values, "MEDLEY_PLAN": str(path)}
        self._device = Device(name, [sys.executable, *words], environment, ())
        self._readers = [
            threading.Thread(target=_pass_on, args=(name, *each), daemon=True)
            for each in self._device.streams
        ]
        for reader in self._readers:
            reader.start()

    def wait(self) -> int:
        """Returns the exit code of the process, -n after signal n, when it has ended."""
        while (code := self._device.code) is None:
            time.sleep(_POLL_SECONDS)
        for reader in self._readers:
            reader.join(1.0)
        self._device.remove()
        return code

    def send(self, number: int, alone: bool) -> None:
        """Sends a signal to the process, or also to all that it has started."""
        (self._device.notify if alone else self._device.send)(number)


def _pass_on(name: str, source: IO[bytes], target: IO[str]) -> None:
    """Prints the lines of a process; Ray shows what its workers print."""
    for line in source:
        print(f"[{name}] {line.decode(errors='replace').rstrip()}", file=target, flush=True)


class RayDevice(Device):
    """The process of a device as the driver has it."""

    def __init__(self, name: str, actor: Any, ray: Any) -> None:
        self.name = name
        self.buffers = {}
        self._ray, self._actor, self._end = ray, actor, actor.wait.remote()
        self._found: int | None = None

    @property
    def streams(self) -> list[tuple[IO[bytes], IO[str]]]:
        return []  # Ray passes on what it prints

    @property
    def code(self) -> int | None:
        if self._found is None and self._ray.wait([self._end], timeout=0)[0]:
            try:
                self._found = int(self._ray.get(self._end))
            except self._ray.exceptions.RayActorError:  # killed, or its machine is lost
                self._found = -int(signal.SIGKILL)
        return self._found

    def send(self, number: int) -> None:
        if number == signal.SIGKILL:
            self._ray.kill(self._actor)
        elif self.runs:
            self._actor.send.remote(number, False)

    def notify(self, number: int) -> None:
        if self.runs:
            self._actor.send.remote(number, True)

    def remove(self) -> None:
        self._ray.kill(self._actor)


def run(
    plan: str,
    words: Sequence[str],
    groups: Sequence[Mapping[str, Any]],
    checkpoints: str,
    elastic: bool = False,
    restarts: int = 0,
) -> int:
    """Trains on the cluster that Ray finds; returns the exit code.

    `groups`: "name", "nodes" (the devices of each) and "resources" of each device. In an elastic
    run Ray starts lost processes again, else all of them, `restarts` times.
    """
    import ray

    ray.init(ignore_reinit_error=True)
    placed = _place(ray, groups)
    own = dict(os.environ)
    text = read_text(plan)

    def start(
        name: str, command: Sequence[str], values: Mapping[str, str], files: Sequence[int]
    ) -> Device:
        given = {key: value for key, value in values.items() if own.get(key) != value}
        for key in _OWN:
            given.pop(key, None)
        options, local = placed[name]
        given |= {"LOCAL_RANK": str(local), "MEDLEY_CHECKPOINTS": checkpoints}
        worker: Any = ray.remote(Worker).options(**options)
        return RayDevice(name, worker.remote(name, list(command[1:]), given, text), ray)

    make_folder(checkpoints)
    settings = Elastic(log=os.path.join(checkpoints, "elastic.jsonl"), max_restarts=restarts)
    script, *arguments = script_of(words)
    place = Place(start, ray.util.get_node_ip_address())
    for _ in range(1 if elastic else 1 + restarts):
        code = launch(plan, script, arguments, elastic=settings if elastic else None, place=place)
        if code in (0, 2, *STOPPED):
            break
    return code


def _place(ray: Any, groups: Sequence[Mapping[str, Any]]) -> dict[str, tuple[dict[str, Any], int]]:
    """Reserves the machines; returns by device the options of its actor, and its number there."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    made, found = [], {}
    for group in groups:
        needs = group["resources"]
        bundles = [{key: n * len(own) for key, n in needs.items()} for own in group["nodes"]]
        # A bundle is a node of the plan: each is on a machine of its own.
        reserved = ray.util.placement_group(bundles, strategy="STRICT_SPREAD", name=group["name"])
        made.append((group, reserved))
        others = {key: n for key, n in needs.items() if key not in ("CPU", "GPU")}
        for index, own in enumerate(group["nodes"]):
            for local, device in enumerate(own):
                strategy = PlacementGroupSchedulingStrategy(
                    placement_group=reserved, placement_group_bundle_index=index
                )
                options = {
                    "num_cpus": needs["CPU"],
                    "num_gpus": needs.get("GPU", 0),
                    "resources": others,
                    "max_concurrency": 4,  # signals come while it waits
                    "scheduling_strategy": strategy,
                }
                found[device] = (options, local)
    for group, reserved in made:
        if not reserved.wait(PLACE_SECONDS):
            raise OSError(
                f"ray: no machines for {group['name']} within {PLACE_SECONDS:g} s (expected "
                f"{len(group['nodes'])} with {reserved.bundle_specs[0]}). Start them, or select "
                "others with --node."
            )
    return found
