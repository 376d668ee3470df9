"""The messages between a process of an elastic run and its leader (`medley/run/leader.py`). Knows
nothing of training (`recovery.py` does)."""

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
from medley.run.generations import PREFIX, fail_generation, finish_generation, has_finished
from medley.run.groups import GenerationGroup
from medley.run.patience import Patience, say
from medley.run.watch import Watch

POLL_SECONDS = 0.01  # interval of polling for other processes
CONNECT_SECONDS = 10.0  # for short operations once all members exist
WAIT_SECONDS = 600.0  # for the leader


class RunEndError(ends.OthersError):
    """The run has ended, or continues without this process."""


class GenerationError(OSError):
    """The generation has failed: a process is lost, or skipped a collective call."""


class ScriptError(Exception):
    """An error of the script itself, independent of other processes."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


@contextlib.contextmanager
def of_script() -> Iterator[None]:
    """Lets an error inside the block end the run, because it would occur again. Errors from other
    processes do not."""
    try:
        yield
    except (ends.OthersError, GenerationError):
        raise
    except Exception as error:
        raise ScriptError(error) from None


class Member:
    """This process in successive generations."""

    def __init__(
        self, store: ends.Store, use: Callable[[GenerationGroup], None], seconds: float
    ) -> None:
        """`use`: sets the group of all exchanges, with a limit of `seconds` each."""
        self.name, self.store = job.device_name(), store
        self._use, self._seconds = use, seconds
        self._watch = Watch()
        self.generation = -1
        self.is_new = job.joins_later()
        self.group: GenerationGroup | None = None
        self.members: list[str] = []  # members of this generation, by rank
        address = job.store_address()
        # Used by process groups, which block a connection while they wait.
        self._torch_store = TCPStore(
            address["host"], address["port"], None, False, wait_for_workers=False
        )
        self._prefix = address["prefix"]
        self._pulse = _runtime.Pulse(  # independent of the script
            **address, key=f"{PREFIX}lives/{self.name}", period_ms=round(1000 * job.pulse_seconds())
        )
        if self.is_new:
            self.generation = job.joined_generation()

    def key(self, what: str, generation: int | None = None) -> str:
        """Returns a key of a generation, by default the current one."""
        return f"{PREFIX}{self.generation if generation is None else generation}/{what}"

    # --- between generations ---

    def next_agreement(self) -> _core.Agreement:
        """Waits for the next generation and enters it. Raises OSError if the run has ended, or
        continues without this process."""
        while True:
            end = time.monotonic() + (math.inf if self.is_new else WAIT_SECONDS)
            while (text := self.store.get(self.key("agreement", self.generation + 1))) is None:
                self._check_run()
                if time.monotonic() > end:
                    raise RunEndError(f"no new generation after {WAIT_SECONDS:g} s")
                time.sleep(POLL_SECONDS)
            self.generation += 1
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
        """Publishes that this process is ready to join, and the share of a step that it would
        save."""
        self.store.set(f"{PREFIX}arrived/{self.name}/{self.generation}", repr(gain))

    def report(self, left: _core.StepLeft, state: int, kept: Sequence[tuple[int, int]]) -> None:
        """Publishes the state of this process after a failed generation. `left`: its last step.
        `state`: generation of the plan of its state, or -1 without state. `kept`: the copies that
        it keeps."""
        self.store.set(self.key(f"report/{self.name}"), json.dumps([left.fields, state, kept]))

    def fail(self, cause: str) -> None:
        """Ends the generation for all."""
        fail_generation(self.store, self.generation, f"{self.name}: {cause}", self.name, self.name)

    def check(self) -> None:
        """Raises GenerationError if the generation has failed."""
        if (text := self.store.get(self.key(f"generation/{self.generation}/failure"))) is not None:
            raise GenerationError(json.loads(text)["cause"])

    def watched(self, abort: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Calls `abort` if the generation fails meanwhile. During training the watchdog of the core
        does so."""
        return self._watch.over(
            self.store, self.key(f"generation/{self.generation}/failure"), abort
        )

    # --- the first generation ---

    def wait(self, what: str) -> str:
        """Returns a value that another member publishes in this generation."""
        patience = Patience()
        while (text := self.store.get(self.key(what))) is None:
            self.check()
            self._check_run()
            if what.startswith("here/") and self.name == self.members[0] and patience.should_say():
                say(f"waiting for {what.removeprefix('here/')}")
            time.sleep(POLL_SECONDS)
        return text

    def connect(self, members: Sequence[str]) -> GenerationGroup:
        """Connects to all members, with ranks in this order, and uses their group for exchanges."""
        self.members = list(members)
        self.store.set(self.key(f"here/{self.name}"), "yes")
        for name in members:
            self.wait(f"here/{name}")
        try:
            self.group = GenerationGroup(
                self._torch_store,
                f"{self._prefix}{PREFIX}{self.generation}",
                members.index(self.name),
                len(members),
                job.interface(),
                (CONNECT_SECONDS if self.generation > 0 else self._seconds, self._seconds),
            )
        except RuntimeError as error:  # raised by Gloo
            sentence = str(error).partition("\n")[0]
            if self.generation > 0:
                raise GenerationError(sentence) from None
            where = "{host}:{port}".format(**job.store_address())
            raise OSError(
                f"{self.name}: the {len(members)} processes of the job met at {where}, but "
                f"could not connect to each other: {sentence}"
            ) from None
        self.group.check = self.check
        self._use(self.group)
        return self.group

    def finish_with(self, members: Sequence[str]) -> None:
        """Waits until all members have finished. Raises GenerationError if one is lost."""
        self.store.set(self.key(f"finished/{self.name}"), "yes")
        try:
            for name in members:
                self.wait(f"finished/{name}")
        except GenerationError:
            if not has_finished(self.store, self.generation):
                raise
        if not finish_generation(self.store, self.generation):
            raise GenerationError("a process is lost while all finish")

    def leave(self) -> None:
        """Frees the group of a past generation."""
        if self.group is not None:
            self.group.close()
            self.group = None


_member: list[Member] = []


def begin(store: ends.Store, use: Callable[[GenerationGroup], None], seconds: float) -> None:
    """Enters the first generation, or waits for one to join."""
    _member.append(Member(store, use, seconds))
    if not _member[0].is_new:
        agreement = _member[0].next_agreement()
        _member[0].connect(agreement.members)


def member() -> Member:
    """Returns this process as a member of the run."""
    return _member[0]


def membership(this: Member) -> dict[str, Any]:
    """Returns the options of `_runtime.Run` for the watchdog of a generation."""
    address = job.store_address()
    return {
        **address,
        "prefix": f"{address['prefix']}{PREFIX}{this.generation}/",
        "generation": this.generation,
        "interface": job.interface(),
        "heartbeat_timeout_ms": round(1000 * job.heartbeat_timeout_seconds()),
        "poll_ms": 40,
        "meet_ms": round(1000 * CONNECT_SECONDS),
        "ends_process": False,
    }
