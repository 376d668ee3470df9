"""A process of a run that may lose others and goes on: what it tells whoever has started them all
(`medley/run/leader.py`), and what it is told. Knows nothing of training (`recovery.py` does).
"""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from medley import _core, _runtime
from medley.run import ends, job
from medley.run.epochs import PREFIX, fail_epoch, finish_epoch, has_finished
from medley.run.groups import EpochGroup
from medley.run.watch import Watch

POLL_SECONDS = 0.01  # of who waits for others
CONNECT_SECONDS = 10.0  # for what takes moments, once all members are there
WAIT_SECONDS = 600.0  # for whoever has started all


class RunEndError(ends.OthersError):
    """The run has ended, or goes on without this process."""


class EpochError(OSError):
    """The epoch has failed: somebody is lost, or has not done what all have to do."""


class ScriptError(Exception):
    """An error of what is the script's own, which no other process has to do with."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def of_script() -> Iterator[None]:
    """What is raised inside ends the run: it would come again. What others have told does not."""
    try:
        yield
    except (ends.OthersError, EpochError):
        raise
    except Exception as error:
        raise ScriptError(error) from None


class Member:
    """This process in one epoch after another."""

    def __init__(
        self, store: ends.Store, use: Callable[[EpochGroup], None], seconds: float
    ) -> None:
        """`use`: from now on all exchange through this group, for so many seconds at most."""
        self.name, self.store = job.device_name(), store
        self._use, self._seconds = use, seconds
        self._watch = Watch()
        self.epoch = -1
        self.is_new = job.joins_later()
        self.group: EpochGroup | None = None
        self.members: list[str] = []  # of this epoch, by rank
        address = job.store_address()
        # For process groups: they keep others out of a connection while they wait.
        self._torch_store = TCPStore(
            address["host"], address["port"], None, False, wait_for_workers=False
        )
        self._prefix = address["prefix"]
        self._pulse = _runtime.Pulse(  # whatever the script does meanwhile
            **address, key=f"{PREFIX}lives/{self.name}", period_ms=round(1000 * job.pulse_seconds())
        )
        if self.is_new:
            self.epoch = job.joined_epoch()

    def key(self, what: str, epoch: int | None = None) -> str:
        """Of an epoch, this one if none is given."""
        return f"{PREFIX}{self.epoch if epoch is None else epoch}/{what}"

    # --- between epochs ---

    def next_agreement(self) -> _core.Agreement:
        """Waits for the next epoch, which then is this one. Raises OSError when the run has ended
        instead, or goes on without this process."""
        while True:
            end = time.monotonic() + (math.inf if self.is_new else WAIT_SECONDS)
            while (text := self.store.get(self.key("agreement", self.epoch + 1))) is None:
                self._check_run()
                if time.monotonic() > end:
                    raise RunEndError(f"no new epoch after {WAIT_SECONDS:g} s")
                time.sleep(POLL_SECONDS)
            self.epoch += 1
            if self.name in (agreement := _core.Agreement(json.loads(text))).members:
                return agreement
            if not self.is_new:
                raise RunEndError(f"{self.name}: the others have gone on without this device")

    def _check_run(self) -> None:
        if (failure := ends.first_failure(self.store)) is not None:
            raise RunEndError(failure["cause"])
        if self.is_new and self.store.get(f"{PREFIX}over") is not None:
            raise RunEndError("the run has ended")

    def arrive(self, gain: float) -> None:
        """Tells that this process can be taken in, and what part of a step it would save."""
        self.store.set(f"{PREFIX}arrived/{self.name}/{self.epoch}", repr(gain))

    def report(self, left: _core.StepLeft, state: int, kept: Sequence[tuple[int, int]]) -> None:
        """Tells where this process is, of an epoch that has failed: of its last step; the epoch
        whose plan says what it has, -1: nothing; and which copies it keeps."""
        self.store.set(self.key(f"report/{self.name}"), json.dumps([left.told, state, kept]))

    def fail(self, cause: str) -> None:
        """Ends the epoch for all."""
        fail_epoch(self.store, self.epoch, f"{self.name}: {cause}", self.name, self.name)

    def check(self) -> None:
        """Raises EpochError if the epoch has failed."""
        if (text := self.store.get(self.key(f"epoch/{self.epoch}/failure"))) is not None:
            raise EpochError(json.loads(text)["cause"])

    def watched(self, abort: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Calls `abort` if the epoch fails meanwhile. While training runs, the core's watchdog does
        that."""
        return self._watch.over(self.store, self.key(f"epoch/{self.epoch}/failure"), abort)

    # --- to begin one ---

    def wait(self, what: str) -> str:
        """Returns what another member tells in this epoch."""
        while (text := self.store.get(self.key(what))) is None:
            self.check()
            self._check_run()
            time.sleep(POLL_SECONDS)
        return text

    def connect(self, members: Sequence[str]) -> EpochGroup:
        """Connects to all members, ranks in this order, and lets exchanges go there from now on."""
        self.members = list(members)
        self.store.set(self.key(f"here/{self.name}"), "yes")
        for name in members:
            self.wait(f"here/{name}")
        try:
            self.group = EpochGroup(
                self._torch_store,
                f"{self._prefix}{PREFIX}{self.epoch}",
                members.index(self.name),
                len(members),
                job.interface(),
                self._seconds,
            )
        except RuntimeError as error:  # Gloo's own
            raise EpochError(str(error).partition("\n")[0]) from None
        self._use(self.group)
        return self.group

    def finish_with(self, members: Sequence[str]) -> None:
        """Waits until all members have nothing more to do. Raises EpochError if one is lost."""
        self.store.set(self.key(f"finished/{self.name}"), "yes")
        try:
            for name in members:
                self.wait(f"finished/{name}")
        except EpochError:
            if not has_finished(self.store, self.epoch):
                raise
        if not finish_epoch(self.store, self.epoch):
            raise EpochError("a process is lost while all finish")

    def leave(self) -> None:
        """Lets go of the group of an epoch that is over."""
        if self.group is not None:
            self.group.close()
            self.group = None


_member: list[Member] = []


def begin(store: ends.Store, use: Callable[[EpochGroup], None], seconds: float) -> None:
    """This process begins the first epoch, or waits for one to take it in."""
    _member.append(Member(store, use, seconds))
    if not _member[0].is_new:
        agreement = _member[0].next_agreement()
        _member[0].connect(agreement.members)


def member() -> Member:
    """Returns this process, which has joined the run."""
    return _member[0]


def membership(this: Member) -> dict[str, Any]:
    """Returns the options of `_runtime.Run` that say how its watchdog looks at an epoch."""
    address = job.store_address()
    return {
        **address,
        "prefix": f"{address['prefix']}{PREFIX}{this.epoch}/",
        "epoch": this.epoch,
        "interface": job.interface(),
        "dead_after_ms": round(1000 * job.dead_after_seconds()),
        "poll_ms": 40,
        "meet_ms": round(1000 * CONNECT_SECONDS),
        "ends_process": False,
    }
