"""The nodes of an elastic run. Each runs the same command, and the first one leads.

Keys in the store, with R a node:
- `node/R/ended`: its ended processes with exit codes, in sequence.
- `node/R/beat`: counts while it lives.
- `node/R/orders`: orders of the leader in sequence. ["fence", DEVICE] kills a process.
  ["start", DEVICE, GENERATION] restarts one lost in this generation.
  ["start", DEVICE, GENERATION, DEVICES] starts one of a returning node. It predicts the gain of
  DEVICES.
- `node/R/comes`: counts starts of the command. `node/R/left`: it has ended.
- `run/over`: all have finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from medley.run import ends
from medley.run.generations import PREFIX
from medley.run.supervisor import EXIT_CODES, Device, Failed, Supervisor

LEASE_SECONDS = 5.0  # without a heartbeat: the node is lost
BEAT_SECONDS = 0.5
LEAVE_SECONDS = 5.0  # that the leader gives the others to end
_LOOK_SECONDS = 0.02


def nodes_of(devices: Sequence[str]) -> list[list[str]]:
    """Returns the devices of each node ("fast/0/1" is on fast/0), with nodes in order of first
    device."""
    nodes: dict[str, list[str]] = {}
    for device in devices:
        nodes.setdefault(device.rpartition("/")[0], []).append(device)
    return list(nodes.values())


def joins(generation: int, offers: list[str] | None = None) -> dict[str, str]:
    """Returns the environment of a process that joins a run (`job.joins_later()`)."""
    return {"MEDLEY_JOINS": str(generation), "MEDLEY_OFFERS": json.dumps(offers or [])}


class Node:
    """Another node, as the leader sees it."""

    def __init__(self, store: ends.Store, rank: int, devices: Sequence[str]) -> None:
        self.rank, self.devices = rank, list(devices)
        self.is_lost = False
        self._running = set(devices)
        self._store = store
        self._heard = 0  # number of ends read
        self._orders: list[list[Any]] = []
        self._beat: str | None = None
        self._since = time.monotonic()
        self._begins = True
        self._comes = 1

    def runs_any(self, names: Sequence[str]) -> bool:
        """Returns whether a process of these devices may still run."""
        return not self.is_lost and not self._running.isdisjoint(names)

    @property
    def has_left(self) -> bool:
        """Returns whether it has announced its end."""
        return self.is_lost or self._store.get(f"node/{self.rank}/left") is not None

    def comes_back(self) -> bool:
        """Returns whether the command was started there again since the last call."""
        comes = int(self._store.get(f"node/{self.rank}/comes") or 1)
        if comes == self._comes:
            return False
        self.look()  # earlier ends are no loss of new processes
        self._comes, self._begins, self.is_lost = comes, True, False
        self._running.clear()
        return True

    def look(self) -> list[tuple[str, int]]:
        """Returns the processes that have ended since the last call, with their exit codes."""
        text = self._store.get(f"node/{self.rank}/ended")
        ended = [] if text is None else json.loads(text)
        new = [(str(name), int(code)) for name, code in ended[self._heard :]]
        self._heard = len(ended)
        self._running -= {name for name, _ in new}
        if (beat := self._store.get(f"node/{self.rank}/beat")) != self._beat:
            self._beat, self._since, self._begins = beat, time.monotonic(), False
        # Before its first heartbeat the user may still be starting it.
        silent = time.monotonic() - self._since > LEASE_SECONDS
        self.is_lost = silent and not self._begins and bool(self._running)
        return new

    def fence(self, device: str) -> None:
        self._send(["fence", device])

    def start(self, device: str, generation: int, *offers: list[str]) -> None:
        """Orders a restart of a process. With `offers` it predicts the gain of these devices."""
        self._running.add(device)
        self._send(["start", device, generation, *offers])

    def _send(self, order: list[Any]) -> None:
        self._orders.append(order)
        self._store.set(f"node/{self.rank}/orders", json.dumps(self._orders))


@dataclasses.dataclass
class JoiningNode:
    """Devices of a node that offers to join a run."""

    devices: list[str]
    generation: int  # in which they came
    gain: float = 0.0  # share of a step that they would save
    is_reported: bool = False

    def is_here(self, store: ends.Store) -> bool:
        """Returns whether all could join."""
        here = [store.get(f"{PREFIX}arrived/{name}/{self.generation}") for name in self.devices]
        if None in here:
            return False
        self.gain = float(here[0] or 0)
        return True


class NodeSupervisor(Supervisor):
    """Runs the processes of a node that does not lead, and obeys the leader. It ends its processes
    if the leader is gone or has declared this node lost."""

    def __init__(
        self,
        command: Sequence[str],
        environments: Mapping[str, Mapping[str, str]],
        store: ends.Store,
        rank: int,
        max_restarts: int,
    ) -> None:
        super().__init__(command, list(environments), list(environments.values()), store)
        self._environments = environments
        self._rank = rank
        self._restarts = max_restarts
        self._ends: list[tuple[str, int]] = []
        self._obeyed = 0  # number of orders
        self._gone: list[Device] = []  # whose end was reported or ordered
        self._comes_back = False
        self._beats = time.time_ns()  # differs from that of an earlier command here
        self._next_beat = 0.0
        self._why = ""  # reason to end
        self._notices = 0
        self._look_seconds = _LOOK_SECONDS

    def _start(self) -> None:
        key = f"node/{self._rank}/comes"
        comes = int(self._store.get(key) or 0) + 1
        self._store.set(key, str(comes))
        self._comes_back = comes > 1
        if self._comes_back:  # in a running job the leader starts processes
            self._ends = self._read("ended")
            self._obeyed = len(self._read("orders"))
        else:
            super()._start()

    def _read(self, what: str) -> list[Any]:
        text = self._store.get(f"node/{self._rank}/{what}")
        return [] if text is None else list(json.loads(text))

    def _goes_on(self) -> bool:
        if super()._goes_on():
            return True
        self._look()  # reports the last ones
        if self._comes_back and not self._devices:
            return not self._why
        starts = len(self._devices) - len(self._environments)
        return self._restarts > starts and any(code < 0 for _, code in self._ends) and not self._why

    def _is_over(self) -> bool:
        self._look()
        if self._asked == [signal.SIGTERM]:  # notice; a second signal ends all
            self._asked.clear()
            self._notices += 1
            for device in self._devices:
                device.notify(signal.SIGTERM)
        return bool(self._why or self._asked or self._notices > 1)

    def _look(self) -> None:
        try:
            if (failure := ends.first_failure(self._store)) is not None:
                self._why, self._code = failure["cause"], EXIT_CODES.get(failure["blame"], 3)
                return
            if self._comes_back and self._store.get(f"{PREFIX}over") is not None:
                self._why, self._code = "the run has ended without this node", 0
                return
            self._tell()
            self._obey()
        except OSError:
            self._why, self._code = "node 0, which leads the run, is gone", 3

    def _tell(self) -> None:
        new = [each for each in self._devices if each.code is not None and each not in self._gone]
        if new:
            self._gone += new
            self._ends += [(device.name, device.code or 0) for device in new]
            self._store.set(f"node/{self._rank}/ended", json.dumps(self._ends))
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + BEAT_SECONDS
            self._beats += 1
            self._store.set(f"node/{self._rank}/beat", str(self._beats))

    def _obey(self) -> None:
        orders = self._read("orders")
        for what, name, *more in orders[self._obeyed :]:
            if what == "start":
                generation, *offers = more
                self._start_one(name, {**self._environments[name], **joins(generation, *offers)})
                continue
            for device in self._devices:
                if device.name == name:
                    device.send(signal.SIGKILL)
        self._obeyed = len(orders)

    def _report(self) -> int:
        with contextlib.suppress(OSError):
            self._store.set(f"node/{self._rank}/left", "yes")
        return super()._report()

    def _has_cause(self) -> bool:
        return bool(self._why) or any(device.code for device in self._devices)

    def _cause(self) -> Failed:
        if self._why:
            return Failed(f"{self._why}; stopped all devices of this node", self._code)
        return self._who_ended([device for device in self._devices if device.code][:1])
