"""`medley launch --elastic`: a run that goes on when it loses processes.

What to do is decided by the core (`medley/elastic/leader.h`); here is what it takes for that: the
processes, the store that they meet at (`medley/run/epochs.py` has the keys), the clock, and a line
of JSON for every recovery.
"""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Mapping, Sequence
from typing import Any

from medley import _core
from medley.files import write_atomically
from medley.run import ends
from medley.run.epochs import PREFIX, Agreement, fail_epoch
from medley.run.supervisor import Device, Failed, Supervisor

_LOOK_SECONDS = 0.02


class ElasticSupervisor(Supervisor):
    """Runs a command once per device, and tells those that are left how to go on.

    A process that a signal has killed, or that has gone silent, is lost; one that leaves with an
    error of its own ends the run as ever. Up to `restarts` times a lost one is started again and
    waited for. `log`: where the lines go.
    """

    def __init__(
        self,
        command: Sequence[str],
        names: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        store: ends.Store,
        *,
        log: str,
        restarts: int = 0,
    ) -> None:
        super().__init__(command, names, environments, store)
        self._leader = _core.Leader(list(names))
        self._names = list(names)
        self._environments = dict(zip(names, environments, strict=True))
        self._restarts = restarts
        self._log = log
        self._gone: list[Device] = []  # whose end has been seen
        self._awaited: dict[str, int] = {}  # started again in this epoch, not there yet
        self._recovery: dict[str, Any] = {}
        self._since = 0.0
        self._look_seconds = _LOOK_SECONDS
        self._ended = ""
        members = {name: -1 for name in names}
        self._begin(Agreement(0, self._names, members, -1, None))
        self._recovery = {}

    def _is_over(self) -> bool:
        self._look_at_processes()
        if self._failed or self._asked:
            return True
        with contextlib.suppress(OSError):  # of who writes nonsense
            if ends.first_failure(self._store) is not None:
                return True
        self._look_at_store()
        for order in self._leader.next(time.monotonic_ns()):
            self._obey(order)
        return bool(self._ended)

    def _has_failed(self) -> bool:
        for device in self._devices:
            if not self._signalled and device.code and device not in self._gone:
                self._failed.append(device)
                self._gone.append(device)
        return bool(self._failed)

    # --- what happens ---

    def _look_at_processes(self) -> None:
        for device in list(self._devices):
            if device.code is None or device in self._gone:
                continue
            self._gone.append(device)
            if device.code < 0:
                self._lose(device, f"was {device.describe_end()}")
            elif device.code > 0:
                self._failed.append(device)

    def _lose(self, device: Device, why: str) -> None:
        if not self._recovery:
            self._recovery = {"detected": "process", "at": time.time()}
        self._leader.lost(device.name, why, time.monotonic_ns())
        if self._restarts > 0:
            self._restarts -= 1
            epoch = self._leader.epoch
            self._leader.expect(device.name, time.monotonic_ns())
            self._awaited[device.name] = epoch
            self._start_one(
                device.name, {**self._environments[device.name], "MEDLEY_JOINS": str(epoch)}
            )

    def _look_at_store(self) -> None:
        epoch, now = self._leader.epoch, time.monotonic_ns()
        if (text := self._get(epoch, "failure")) is not None:
            told = json.loads(text)
            # Of itself everybody tells; of others only who has not heard of them.
            suspect = told["device"] if told["device"] != told["told_by"] else ""
            if not self._recovery:
                self._recovery = {
                    "detected": "silence" if suspect else "peer",
                    "at": time.time(),
                }
            self._leader.failed(epoch, told["cause"], suspect, now)
        if self._leader.runs:
            return
        for name in self._leader.members:
            if (text := self._get(epoch, f"report/{name}")) is not None:
                left = json.loads(text)
                state = left.pop("state")
                left.pop("at")
                self._leader.reported(epoch, _core.StepLeft(**left), state, now)
            if self._get(epoch, f"built/{name}") is not None:
                self._leader.built(epoch, name, now)
        for name, since in list(self._awaited.items()):
            if self._store.get(f"{PREFIX}arrived/{name}/{since}") is not None:
                del self._awaited[name]
                self._leader.arrived(name, now)

    def _get(self, epoch: int, what: str) -> str | None:
        return self._store.get(f"{PREFIX}{epoch}/{what}")

    # --- what is to be done ---

    def _obey(self, order: _core.Order) -> None:
        if order.kind == "stop":
            fail_epoch(self._store, order.epoch, order.text)
            self._since = time.monotonic()
            self._recovery.setdefault("at", time.time())
            self._recovery.setdefault("cause", order.text)
            self._recovery.setdefault("before", order.epoch)
            self._say(f"{order.text}; the others go on")
        elif order.kind == "fence":
            for device in self._devices:
                if device.name == order.device and device not in self._gone:
                    self._gone.append(device)
                    device.send(signal.SIGKILL)
            self._say(f"{order.device}: {order.text}; it is out")
        elif order.kind == "begin":
            self._note("agree")
            self._begin(
                Agreement(
                    self._leader.epoch, order.members, order.states, order.step, order.committed
                )
            )
        elif order.kind == "go on":
            self._note("enter")
            self._write_line(order.epoch)
        elif order.kind == "end":
            self._ended = order.text
            self._tell_all(order.text)

    def _tell_all(self, cause: str) -> None:
        """Lets those that wait for the next epoch leave."""
        told = {"device": "", "told_by": "", "in_exchange": False, "blame": "environment"}
        self._store.set_first(ends.FIRST_FAILURE, json.dumps({**told, "cause": cause}))

    def _begin(self, agreement: Agreement) -> None:
        self._recovery["step"] = agreement.step
        self._recovery["members"] = agreement.members
        self._store.set(f"{PREFIX}{agreement.epoch}/agreement", agreement.to_text())

    def _note(self, what: str) -> None:
        now = time.monotonic()
        seconds = self._recovery.setdefault("seconds", {})
        seconds[what] = seconds.get(what, 0.0) + now - self._since
        self._since = now

    def _write_line(self, epoch: int) -> None:
        """One recovery, one line; and the plan of the epoch beside it."""
        line = self._recovery
        self._recovery = {}
        told = [self._get(epoch, f"built/{name}") for name in line["members"]]
        built = [json.loads(text) for text in told if text is not None]
        line["epoch"] = epoch
        line["lost"] = [name for name in self._names if name not in line["members"]]
        line["seconds"]["total"] = sum(line["seconds"].values())
        for cause in built[0]["seconds"]:
            line["seconds"][cause] = max(each["seconds"][cause] for each in built)
        line["bytes"] = {
            source: sum(each["bytes"][source] for each in built) for source in built[0]["bytes"]
        }
        with contextlib.suppress(OSError):  # a full disk does not end training
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            plan = self._get(epoch, "plan")
            if plan is not None:
                write_atomically(f"{self._log.removesuffix('.jsonl')}-{epoch}.plan.json", plan)
        self._say(
            f"epoch {epoch} of {len(line['members'])} devices goes on after step {line['step']}, "
            f"{line['seconds']['total']:.2f} s after the loss was seen"
        )

    # --- how it ends ---

    def _cause(self) -> Failed:
        if self._ended:
            return Failed(f"{self._ended}; stopped all devices", 3)
        return super()._cause()

    def _has_cause(self) -> bool:
        return bool(self._ended) or super()._has_cause()
