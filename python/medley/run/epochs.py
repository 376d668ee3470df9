"""What the processes of an elastic run and whoever has started them tell each other in the store.

Keys, N an epoch: `run/N/agreement` who its members are and what they have; `run/N/plan`;
`run/N/here/DEVICE`, `run/N/built/DEVICE`, `run/N/report/DEVICE`, `run/N/finished/DEVICE`;
`run/N/failure` why it has ended, and `run/N/epoch/N/failure` the same as the core's watchdog reads
and writes it; `run/arrived/DEVICE/N` a process that was started again in epoch N.
"""

from __future__ import annotations

import dataclasses
import json

from medley.run import ends

PREFIX = "run/"


@dataclasses.dataclass(frozen=True)
class Agreement:
    """What all members of an epoch begin it with."""

    epoch: int
    members: list[str]  # devices, in the order of the first plan
    states: dict[str, int]  # the epoch whose plan says what a member has; -1: nothing
    step: int  # that all have done; -1: none
    committed: float | None  # what its commit gave

    def to_text(self) -> str:
        """For the store."""
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def parse(text: str) -> Agreement:
        """Of what to_text() returns."""
        return Agreement(**json.loads(text))

    @property
    def eldest(self) -> str:
        """The first of those that have a state: who plans for all."""
        return next(name for name in self.members if self.states[name] >= 0)


def fail_epoch(store: ends.Store, epoch: int, cause: str, device: str = "", by: str = "") -> None:
    """Ends an epoch for all its members, unless somebody already has."""
    failure = {
        "epoch": epoch,
        "device": None,
        "call": "",
        "edge": "",
        "cause": cause,
        "blame": "environment",
    }
    store.set_first(f"{PREFIX}{epoch}/epoch/{epoch}/failure", json.dumps(failure))
    told = {"device": device, "told_by": by, "cause": cause}
    store.set_first(f"{PREFIX}{epoch}/failure", json.dumps(told))
