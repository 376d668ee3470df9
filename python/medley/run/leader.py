"""`medley launch --elastic`: a run that continues when it loses processes. The core decides
(`medley/elastic/leader.h`). This module has the processes, their store (`medley/run/generations.py`
has the keys), the clock, and a line of JSON per recovery."""

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
from medley.run.generations import EVALUATES, PREFIX, WISH, fail_generation, has_finished
from medley.run.nodes import LEASE_SECONDS, LEAVE_SECONDS, JoiningNode, Node, joins
from medley.run.supervisor import Device, Failed, Start, Supervisor

_LOOK_SECONDS = 0.02
SETTLE_SECONDS = 600.0
CHANGE_SECONDS = 10.0  # duration of a change before one was measured; a share of `settle` at most
CHANGE_SHARE = 0.1


class ElasticSupervisor(Supervisor):
    """Runs a command once per device, and directs the remaining processes after a loss. A process
    killed by a signal or without a heartbeat is lost. A process that exits with an error ends the
    run. Up to `restarts` times a lost one is restarted and awaited. `log`: output of lines.
    `names`: all devices. `environments`: those of this node. `others`: the other nodes. `settle`:
    minimum seconds between two changes made only for their gain."""

    def __init__(
        self,
        command: Sequence[str],
        names: Sequence[str],
        environments: Mapping[str, Mapping[str, str]],
        store: ends.Store,
        *,
        log: str,
        max_restarts: int = 0,
        others: Sequence[Node] = (),
        settle: float = SETTLE_SECONDS,
        start: Start | None = None,
    ) -> None:
        values = list(environments.values())
        super().__init__(command, list(environments), values, store, start=start)
        self._others = others
        self._leader = _core.Leader(list(names))
        self._names = list(names)
        self._environments = environments
        self._restarts = max_restarts
        self._log = log
        self._gone: list[Device] = []  # devices whose end was seen
        self._pulses: dict[str, str | None] = {}  # heartbeats since the end of a generation
        self._awaited: dict[str, int] = {}  # restarted in this generation, not yet arrived
        self._joining: dict[int, JoiningNode] = {}  # by node
        self._agrees = False  # between the end of a generation and the start of the next
        self._settle = settle
        self._built = -1  # the last generation known to have all runs
        self._changed: float | None = None  # time when the last guests joined
        self._change_seconds = min(CHANGE_SECONDS, CHANGE_SHARE * settle)
        self._kept: dict[str, list[tuple[int, int]]] = {}  # copies reported by members
        self._recovery: dict[str, Any] = {}
        self._since = 0.0
        self._look_seconds = _LOOK_SECONDS
        self._ended = ""
        members = {name: -1 for name in names}
        self._begin(_core.Agreement((0, self._names, members, -1, None, {}, [])))
        self._recovery = {}

    def _goes_on(self) -> bool:
        members = self._leader.members
        others = any(node.runs_any(members) for node in self._others)
        return super()._goes_on() or (others and not self._ended)

    def _is_over(self) -> bool:
        self._look_at_processes()
        self._look_at_nodes()
        if self._failed or self._asked:
            return True
        with contextlib.suppress(OSError):  # invalid reports
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

    # --- events ---

    def _look_at_processes(self) -> None:
        for device in list(self._devices):
            if device.code is None or device in self._gone:
                continue
            self._gone.append(device)
            if device.code < 0:
                self._lose(device.name, f"was {device.describe_end()}")
            elif device.code > 0:
                self._failed.append(device)

    def _look_at_nodes(self) -> None:
        for node in self._others:
            if node.comes_back():
                self._welcome(node)
            if node.is_lost:
                continue
            for name, code in node.look():
                if code < 0:
                    self._lose(name, f"was killed by {signal.Signals(-code).name}")
                elif code > 0 and not self._ended:
                    self._ended = f"{name} left with exit code {code}"
                    self._tell_all(self._ended)
            if node.is_lost:
                for name in node.devices:
                    self._lose(name, f"its node gives no sign of life for {LEASE_SECONDS:g} s")

    def _lose(self, name: str, why: str) -> None:
        generation = self._leader.generation
        is_member = name in self._leader.members
        if is_member and has_finished(self._store, generation):  # needed by no process
            return
        if not self._recovery and is_member:
            self._recovery = {"detected": "process", "at": time.time()}
        self._leader.lost(name, why, time.monotonic_ns())
        self._joining = {
            rank: joining_node
            for rank, joining_node in self._joining.items()
            if name not in joining_node.devices
        }
        node = self._node(name)
        if self._restarts > 0 and (node is None or not node.is_lost):
            self._restarts -= 1
            self._leader.expect(name, time.monotonic_ns())
            self._awaited[name] = generation
            if node is not None:
                node.start(name, generation)
            else:
                self._start_one(name, {**self._environments[name], **joins(generation)})

    # --- joining processes ---

    def _welcome(self, node: Node) -> None:
        """Lets the processes of a returning node start."""
        generation = self._leader.generation
        for name in node.devices:
            self._leader.lost(name, "its node was started again", time.monotonic_ns())
            offers = node.devices if name == node.devices[0] else []
            node.start(name, generation, offers)
        self._joining[node.rank] = JoiningNode(node.devices, generation)
        self._say(f"node {node.rank} comes: {', '.join(node.devices)}")

    def _look_at_guests(self) -> None:
        """Lets guests join that are ready and pay off, or all ready ones if the others must change
        anyway."""
        for rank, joining_node in list(self._joining.items()):
            if not joining_node.is_here(self._store):
                continue
            if not self._agrees and (not self._may_change() or not self._takes_in(joining_node)):
                continue
            del self._joining[rank]
            for name in joining_node.devices:
                self._leader.expect(name, time.monotonic_ns())
                self._leader.arrived(name, time.monotonic_ns())
            if self._leader.runs:
                self._change("offer", f"{', '.join(joining_node.devices)} join")

    def _look_at_wishes(self) -> None:
        """Changes to a requested plan, or to one for devices that became slow or fast again if it
        pays off."""
        if not self._may_change():
            return
        if self._get(self._leader.generation, WISH) is not None:
            self._change("request", "another plan is tried")
        elif (text := self._get(self._leader.generation, "drift")) is not None:
            message = json.loads(text)
            if self._pays(message["gain"]):
                self._change("drift", message["cause"])

    def _may_change(self) -> bool:
        """Returns whether all processes train and may change for a gain. False while they make
        their first runs or evaluate."""
        now = self._leader.generation
        if self._built < now:
            if any(self._get(now, f"built/{each}") is None for each in self._leader.members):
                return False
            self._built = now
        return self._leader.runs and self._get(now, EVALUATES) != "yes"

    def _change(self, why: str, cause: str) -> None:
        if has_finished(self._store, self._leader.generation):
            return
        self._changed = time.monotonic()
        self._recovery = {"detected": why, "at": time.time()}
        self._leader.failed(self._leader.generation, cause, "", time.monotonic_ns())

    def _pays(self, gain: float) -> bool:
        """Returns whether a change pays off before the next one is allowed."""
        waits = self._changed is not None and time.monotonic() - self._changed < self._settle
        return not waits and gain * self._settle > self._change_seconds

    def _takes_in(self, joining_node: JoiningNode) -> bool:
        pays = self._pays(joining_node.gain)
        if not pays and not joining_node.is_reported:
            joining_node.is_reported = True
            self._say(
                f"{', '.join(joining_node.devices)}: a step would take "
                f"{100 * joining_node.gain:.1f} % less, a "
                f"change {self._change_seconds:.1f} s; not used"
            )
        return pays

    def _node(self, name: str) -> Node | None:
        return next((node for node in self._others if name in node.devices), None)

    def _look_at_store(self) -> None:
        generation, now = self._leader.generation, time.monotonic_ns()
        text = self._get(generation, "failure")
        if text is not None and not has_finished(self._store, generation):
            message = json.loads(text)
            # Every process reports itself. A report on another device counts only without its own.
            suspect = message["device"] if message["device"] != message["told_by"] else ""
            if not self._recovery:
                self._recovery = {"detected": "silence" if suspect else "peer", "at": time.time()}
            self._leader.failed(generation, message["cause"], suspect, now)
        self._look_at_guests()
        self._look_at_wishes()
        if self._leader.runs:
            return
        for name in self._leader.members:
            if (pulse := self._pulse_of(name)) != self._pulses.get(name):
                self._pulses[name] = pulse
                self._leader.lives(name, now)
            if (text := self._get(generation, f"report/{name}")) is not None:
                left, state, self._kept[name] = json.loads(text)
                self._leader.reported(generation, _core.StepLeft(*left), state, now)
            if self._get(generation, f"built/{name}") is not None:
                self._leader.built(generation, name, now)
        for name, since in list(self._awaited.items()):
            if self._store.get(f"{PREFIX}arrived/{name}/{since}") is not None:
                del self._awaited[name]
                self._leader.arrived(name, now)

    def _pulse_of(self, name: str) -> str | None:
        return self._store.get(f"{PREFIX}lives/{name}")

    def _get(self, generation: int, what: str) -> str | None:
        return self._store.get(f"{PREFIX}{generation}/{what}")

    # --- actions ---

    def _obey(self, order: _core.Order) -> None:
        if order.kind == "stop":
            self._agrees = True
            self._pulses = {name: self._pulse_of(name) for name in self._leader.members}
            fail_generation(self._store, order.generation, order.text)
            self._since = time.monotonic()
            self._recovery.setdefault("at", time.time())
            self._recovery.setdefault("cause", order.text)
            self._recovery.setdefault("before", order.generation)
            who = (
                "all"
                if self._recovery.get("detected") in ("offer", "drift", "request")
                else "the others"
            )
            self._say(f"{order.text}; {who} go on")
        elif order.kind == "fence":
            for device in self._devices:
                if device.name == order.device and device not in self._gone:
                    self._gone.append(device)
                    device.send(signal.SIGKILL)
            if (node := self._node(order.device)) is not None:
                node.fence(order.device)
            self._say(f"{order.device}: {order.text}; it is out")
        elif order.kind == "begin":
            self._agrees = False
            self._note("agree")
            agreement = order.agreement
            agreement.kept = {n: k for n, k in self._kept.items() if n in agreement.members}
            self._kept = {}
            agreement.leaving = self._leaving(agreement.members)
            self._begin(agreement)
        elif order.kind == "go on":
            self._note("enter")
            for name in self._recovery["left"]:
                self._leader.left(name)
            self._write_line(order.generation)
        elif order.kind == "end":
            self._ended = order.text
            self._tell_all(order.text)

    def _leaving(self, members: list[str]) -> list[str]:
        """Returns the members that have received notice, unless none would remain."""
        leaving = [n for n in members if self._store.get(f"{PREFIX}leaves/{n}") is not None]
        return leaving if len(leaving) < len(members) else []

    def _end_all(self) -> None:
        if self._asked and self._others:
            self._tell_all(f"node 0 was ended by {signal.Signals(self._asked[0]).name}")
        super()._end_all()

    def _report(self) -> int:
        """Lets the other nodes receive the end of the run before the store ends."""
        end = time.monotonic() + LEAVE_SECONDS
        self._store.set(f"{PREFIX}over", "yes")
        members = self._leader.members
        heard = [
            node
            for node in self._others
            if node.rank in self._joining or not set(node.devices).isdisjoint(members)
        ]
        while not all(node.has_left for node in heard) and time.monotonic() < end:
            time.sleep(self._look_seconds)
        return super()._report()

    def _tell_all(self, cause: str) -> None:
        """Lets the processes that wait for the next generation exit."""
        failure = {"device": "", "told_by": "", "in_exchange": False, "blame": "environment"}
        self._store.set_first(ends.FIRST_FAILURE, json.dumps({**failure, "cause": cause}))

    def _begin(self, agreement: _core.Agreement) -> None:
        self._recovery["step"] = agreement.step
        self._recovery["members"] = agreement.staying
        self._recovery["left"] = agreement.leaving
        self._store.set(f"{PREFIX}{agreement.generation}/agreement", json.dumps(agreement.fields))

    def _note(self, what: str) -> None:
        now = time.monotonic()
        seconds = self._recovery.setdefault("seconds", {})
        seconds[what] = seconds.get(what, 0.0) + now - self._since
        self._since = now

    def _write_line(self, generation: int) -> None:
        """Writes a line per recovery, and the plan of the generation."""
        line = self._recovery
        self._recovery = {}
        texts = [self._get(generation, f"built/{name}") for name in line["members"]]
        built = [json.loads(text) for text in texts if text is not None]
        line["generation"] = generation
        line["back"] = line["step"] - built[0]["step"]
        line["step"] = built[0]["step"]
        line["source"] = built[0]["source"]
        line["planned_ahead"] = self._get(generation, "ahead") is not None
        if (costs := self._get(line["before"], "copies")) is not None:
            line["replicas"] = json.loads(costs)
        line["lost"] = [name for name in self._names if name not in line["members"]]
        line["seconds"]["total"] = self._change_seconds = sum(line["seconds"].values())
        for cause in built[0]["seconds"]:
            line["seconds"][cause] = max(each["seconds"][cause] for each in built)
        line["bytes"] = {
            source: sum(each["bytes"][source] for each in built) for source in built[0]["bytes"]
        }
        with contextlib.suppress(OSError):  # a full disk does not end training
            with open(self._log, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            for objective, plan in json.loads(self._get(generation, "plans") or "{}").items():
                name = f"{generation}.{objective}" if objective else f"{generation}"
                write_atomically(f"{self._log.removesuffix('.jsonl')}-{name}.plan.json", plan)
        back = f", {line['back']} steps back," if line["back"] else ""
        self._say(
            f"generation {generation} of {len(line['members'])} devices goes on after step "
            f"{line['step']}"
            f"{back or ','} {line['seconds']['total']:.2f} s after the loss was seen"
        )

    # --- the end ---

    def _cause(self) -> Failed:
        if self._ended:
            return Failed(f"{self._ended}; stopped all devices", 3)
        return super()._cause()

    def _has_cause(self) -> bool:
        return bool(self._ended) or super()._has_cause()
