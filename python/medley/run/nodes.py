"""The nodes of an elastic run: on each of them the same command runs, the first one leads.

Keys in the store, R a node: `node/R/ended` its processes that have ended, with their exit codes,
one after the other; `node/R/beat` counts while it lives; `node/R/orders` what the leader wants of
it, one after the other: ["fence", DEVICE] to kill a process, ["start", DEVICE, EPOCH] to start one
again that was lost in this epoch, or ["start", DEVICE, EPOCH, DEVICES] one of a node that has come
back, and that says what all its devices are good for; `node/R/comes` counts how often the command
was started there; `node/R/left` it has ended; `run/over` all have finished.
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
from medley.run.epochs import PREFIX
from medley.run.supervisor import EXIT_CODES, Device, Failed, Supervisor

LEASE_SECONDS = 5.0  # without a beat: the node is lost
BEAT_SECONDS = 0.5
LEAVE_SECONDS = 5.0  # that the leader leaves the others to end
_LOOK_SECONDS = 0.02


def nodes_of(devices: Sequence[str]) -> list[list[str]]:
    """Returns the devices of each node ("fast/0/1" is on fast/0), nodes in the order of these."""
    nodes: dict[str, list[str]] = {}
    for device in devices:
        nodes.setdefault(device.rpartition("/")[0], []).append(device)
    return list(nodes.values())


def joins(epoch: int, offers: list[str] | None = None) -> dict[str, str]:
    """Returns what the environment says of a process that joins a run (`job.joins_later()`)."""
    return {"MEDLEY_JOINS": str(epoch), "MEDLEY_OFFERS": json.dumps(offers or [])}


class Node:
    """Another node, as the leader sees it."""

    def __init__(self, store: ends.Store, rank: int, devices: Sequence[str]) -> None:
        self.rank, self.devices = rank, list(devices)
        self.is_lost = False
        self._running = set(devices)
        self._store = store
        self._heard = 0  # of its ends
        self._orders: list[list[Any]] = []
        self._beat: str | None = None
        self._since = time.monotonic()
        self._begins = True
        self._comes = 1

    def runs_any(self, names: Sequence[str]) -> bool:
        """Whether a process of these devices may still run."""
        return not self.is_lost and not self._running.isdisjoint(names)

    @property
    def has_left(self) -> bool:
        """Whether it has said that it ends."""
        return self.is_lost or self._store.get(f"node/{self.rank}/left") is not None

    def comes_back(self) -> bool:
        """Whether the command has been started there again since the last look."""
        comes = int(self._store.get(f"node/{self.rank}/comes") or 1)
        if comes == self._comes:
            return False
        self.look()  # what has ended there before is no loss of what will run
        self._comes, self._begins, self.is_lost = comes, True, False
        self._running.clear()
        return True

    def look(self) -> list[tuple[str, int]]:
        """Returns the processes that have ended since the last look, with their exit codes."""
        text = self._store.get(f"node/{self.rank}/ended")
        ended = [] if text is None else json.loads(text)
        new = [(str(name), int(code)) for name, code in ended[self._heard :]]
        self._heard = len(ended)
        self._running -= {name for name, _ in new}
        if (beat := self._store.get(f"node/{self.rank}/beat")) != self._beat:
            self._beat, self._since, self._begins = beat, time.monotonic(), False
        # Before its first beat people may still be starting it.
        silent = time.monotonic() - self._since > LEASE_SECONDS
        self.is_lost = silent and not self._begins and bool(self._running)
        return new

    def fence(self, device: str) -> None:
        self._send(["fence", device])

    def start(self, device: str, epoch: int, *offers: list[str]) -> None:
        """Lets it start a process again; if it `offers` devices, it says what they are good for."""
        self._running.add(device)
        self._send(["start", device, epoch, *offers])

    def _send(self, order: list[Any]) -> None:
        self._orders.append(order)
        self._store.set(f"node/{self.rank}/orders", json.dumps(self._orders))


@dataclasses.dataclass
class Guest:
    """Devices of a node that has come to a run, which goes on without them."""

    devices: list[str]
    epoch: int  # in which they have come
    gain: float = 0.0  # part of a step that it would take less with them
    is_told: bool = False

    def is_here(self, store: ends.Store) -> bool:
        """Whether all could be taken in."""
        here = [store.get(f"{PREFIX}arrived/{name}/{self.epoch}") for name in self.devices]
        if None in here:
            return False
        self.gain = float(here[0] or 0)
        return True


class NodeSupervisor(Supervisor):
    """Runs the processes of a node that does not lead, and does what the leader wants.

    If the leader is gone, or takes this node for lost, its processes are ended.
    """

    def __init__(
        self,
        command: Sequence[str],
        environments: Mapping[str, Mapping[str, str]],
        store: ends.Store,
        rank: int,
        restarts: int,
    ) -> None:
        super().__init__(command, list(environments), list(environments.values()), store)
        self._environments = environments
        self._rank = rank
        self._restarts = restarts
        self._ends: list[tuple[str, int]] = []
        self._obeyed = 0  # orders
        self._gone: list[Device] = []  # whose end was told, or wanted
        self._comes_back = False
        self._beats = time.time_ns()  # other ones than those of a command that ran here before
        self._next_beat = 0.0
        self._why = ""  # it has to end
        self._notices = 0
        self._look_seconds = _LOOK_SECONDS

    def _start(self) -> None:
        key = f"node/{self._rank}/comes"
        comes = int(self._store.get(key) or 0) + 1
        self._store.set(key, str(comes))
        self._comes_back = comes > 1
        if self._comes_back:  # the run goes on: its leader says who is started, and when
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
        self._look()  # tells of the last ones
        if self._comes_back and not self._devices:
            return not self._why
        starts = len(self._devices) - len(self._environments)
        return self._restarts > starts and any(code < 0 for _, code in self._ends) and not self._why

    def _is_over(self) -> bool:
        self._look()
        if self._asked == [signal.SIGTERM]:  # notice; a second one ends all
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
                epoch, *offers = more
                self._start_one(name, {**self._environments[name], **joins(epoch, *offers)})
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
