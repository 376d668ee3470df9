"""How a process of a job ends: what it tells the others, what they have told, and its exit code."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import socket
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from medley.run import job

# The attribute of an error that another process of the job tells people of.
SAID_ELSEWHERE = "_medley_said_elsewhere"
_FINISHED = "finished"  # the keys under which processes say that their scripts have ended
FIRST_FAILURE = "failure"  # the key in the store under which the first failure of the job is
_DISCONNECT_SECONDS = 5.0
# How long the others leave the one that has failed first to say that it leaves, and then to be
# gone: whoever has started them takes the first one that ends for the cause.
_LEAVE_SECONDS = 6.0
_AFTER_SECONDS = 0.3  # until whoever has started them has seen it
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class OthersError(OSError):
    """Another process did not do its part: mostly a consequence of what it knows, or of its end."""


class Member(Protocol):
    """What runs in this process and has to tell the others how it ends."""

    def fail(self, cause: str) -> str:
        """Tells them; returns the first cause of the run, which may be another's."""

    def finish(self) -> None:
        """Tells them that there is nothing more to do."""


class Store(Protocol):
    """Where the processes of a job leave messages for each other (`_runtime.Store`)."""

    def set(self, key: str, value: str) -> None: ...
    def set_first(self, key: str, value: str) -> str: ...
    def get(self, key: str) -> str | None: ...


@dataclasses.dataclass
class Process:
    """This process, as the others know it."""

    names: list[str] = dataclasses.field(default_factory=list)  # "rank 1", "fast/0/1"
    store: Store | None = None
    members: list[weakref.ref[Member]] = dataclasses.field(default_factory=list)
    left: list[Callable[[], Any]] = dataclasses.field(default_factory=list)  # to do at the end
    last: list[Callable[[], Any]] = dataclasses.field(default_factory=list)  # behind all that

    def living(self) -> list[Member]:
        """Returns the members that are still there."""
        return [member for member in (each() for each in self.members) if member is not None]


_process = Process()
_leaves = threading.Event()  # the process from its group


def watch(member: Member) -> None:
    """From now on an error that nobody catches, or the end of the script, is told the others."""
    _process.members.append(weakref.ref(member))


def leave_to_the_end(complete: Callable[[], Any]) -> None:
    """Calls this when the script has ended: what all processes do together, and none of them knows
    when the others come to it before."""
    _process.left.append(complete)


def leave_to_the_last(end: Callable[[], Any]) -> None:
    """Calls this when all processes have finished."""
    _process.last.append(end)


def connect(store: Store, *names: str) -> None:
    """Gives the store of the job and the names of this process, the most telling last."""
    _process.store = store
    _process.names.extend(names)


def name() -> str:
    """Returns what others know this process by."""
    return _process.names[-1]


def who_has_finished(ranks: int) -> str:
    """Returns the name of a process whose script has ended, of so many; "" if none has."""
    assert _process.store is not None
    found = (_process.store.get(f"{_FINISHED}/rank {rank}") for rank in range(ranks))
    return next((each for each in found if each), "")


def know_as(name: str) -> None:
    """Gives this process another name."""
    if name not in _process.names:
        _process.names.append(name)


def first_failure(store: Store) -> dict[str, Any] | None:
    """Returns the first failure of the job: `device` ("" for none), who it was `told_by`, whether
    it was `in_exchange`, who is to `blame` (caller, environment, medley), and the `cause`."""
    text = store.get(FIRST_FAILURE)
    if text is None:
        return None
    keys = {"device", "told_by", "in_exchange", "blame", "cause"}
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict) and keys <= found.keys():
            return found
    raise OSError(f"store: {FIRST_FAILURE}: found {text[:60]!r}: somebody else writes to the store")


def failed_itself(failure: dict[str, Any]) -> str:
    """Returns the device that has failed and has said so itself, "" where others told of it."""
    own = failure["device"] == failure["told_by"]
    return str(failure["device"]) if own else ""


def tell(cause: str, blame: str, in_exchange: bool = False) -> None:
    """Tells the others that this process has failed, in or out of a run."""
    for member in _process.living():
        member.fail(cause)
    if _process.store is None:
        return
    with contextlib.suppress(OSError):
        _tell_first(name(), in_exchange, blame, f"{name()}: {cause}")


def tell_of_an_exchange(cause: str, finished: bool) -> None:
    """Tells the others why an exchange fails here: one of them has `finished`, which is a mistake
    of the caller, or a connection is lost, which follows from the end of another process."""
    device, blame = ("", "caller") if finished else (name(), "environment")
    _tell_first(device, not finished, blame, cause)


def _tell_first(device: str, in_exchange: bool, blame: str, cause: str) -> None:
    """Leaves the failure in the store, unless there is one."""
    assert _process.store is not None
    failure = {
        "device": device,
        "told_by": name(),
        "in_exchange": in_exchange,
        "blame": blame,
        "cause": cause,
    }
    _process.store.set_first(FIRST_FAILURE, json.dumps(failure))


def install() -> None:
    """An error of ours that nobody catches is printed as one sentence, without a traceback, and
    gives the exit code of the command line: 2 for the caller's mistakes, 3 for the world's."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stdout.flush()
        interrupted = isinstance(error, KeyboardInterrupt)
        caller = isinstance(error, ValueError)
        ours = isinstance(error, (ValueError, OSError)) and _is_ours(trace)
        said = getattr(error, SAID_ELSEWHERE, False)
        if not said:
            tell(
                "interrupted" if interrupted else f"{kind.__name__}: {error}",
                "caller" if caller or not ours else "environment",
                isinstance(error, OthersError),
            )
            _note_for_torchrun(error)
        if interrupted:
            _leave("interrupted", 130)
        if ours:
            _leave("" if said else str(error), 2 if caller else 3, expected=said)
        before(kind, error, trace)

    sys.excepthook = hook
    end = threading.Thread(target=_let_go, daemon=True)
    end.start()  # now: when the interpreter ends there are no new threads
    atexit.register(_disconnect, end)
    atexit.register(_finish)  # comes first


def _is_ours(trace: TracebackType | None) -> bool:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _is_the_cause() -> bool:
    """Whether the first failure of the job is this process's own."""
    first = _first()
    return first is not None and first["device"] in _process.names


def _first() -> dict[str, Any] | None:
    if _process.store is not None:
        with contextlib.suppress(OSError):
            return first_failure(_process.store)
    return None


def _note_for_torchrun(error: BaseException) -> None:
    """Its last lines then show this error as the root cause."""
    path = job.error_file()
    if not path or not _is_the_cause():
        return
    stack = "".join(traceback.format_exception(error))
    more = {"py_callstack": stack, "timestamp": str(int(time.time()))}
    note = {"message": f"{type(error).__name__}: {error}", "extraInfo": more}
    with contextlib.suppress(OSError), open(path, "w", encoding="utf-8") as file:
        json.dump({"message": note}, file)


def _finish() -> None:
    for end in (*_process.left, *(member.finish for member in _process.living())):
        with contextlib.suppress(OSError, ValueError):  # others have failed, or have finished
            end()
    if _process.store is not None:
        with contextlib.suppress(OSError):
            _process.store.set(f"{_FINISHED}/{_process.names[0]}", name())
    _let_the_cause_leave()


def _let_the_cause_leave(expected: bool = False) -> None:
    """Waits until the one that has failed first has left; if it is `expected`, until that one has
    told of its failure as well."""
    end = time.monotonic() + _LEAVE_SECONDS
    while (first := _first()) is None and expected and time.monotonic() < end:
        time.sleep(0.02)
    cause = failed_itself(first) if first else ""
    if not cause or cause in _process.names:
        return
    end = time.monotonic() + _LEAVE_SECONDS
    with contextlib.suppress(OSError):
        assert _process.store is not None
        while (left := _process.store.get(f"left/{cause}")) is None and time.monotonic() < end:
            time.sleep(0.02)
        end = time.monotonic() + _LEAVE_SECONDS
        while left is not None and _is_still_here(left) and time.monotonic() < end:
            time.sleep(0.02)
        time.sleep(_AFTER_SECONDS)


def _is_still_here(left: str) -> bool:
    """Whether the process that has said so ("HOST PID") runs on this machine, its last word
    notwithstanding. Of another machine's nothing is known."""
    host, _, pid = left.rpartition(" ")
    return host == socket.gethostname() and is_running(pid)


def is_running(pid: int | str) -> bool:
    """Whether a process of this machine is neither gone (maybe as it is looked at) nor a zombie."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _say_that_it_leaves() -> None:
    if _process.store is not None and _is_the_cause():
        with contextlib.suppress(OSError):
            for name in _process.names:
                _process.store.set(f"left/{name}", f"{socket.gethostname()} {os.getpid()}")


def _let_go() -> None:
    _leaves.wait()
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_initialized():
        dist.destroy_process_group()


def _disconnect(end: threading.Thread) -> None:
    # Gloo's threads have to end before the interpreter does, or the process may be aborted. Where
    # others have failed this may wait for them, so not for long.
    _leaves.set()
    end.join(_DISCONNECT_SECONDS)
    for each in _process.last:
        each()
    _say_that_it_leaves()


def _leave(sentence: str, code: int, expected: bool = False) -> None:
    if sentence:
        # Not to sys.stderr: torch.distributed keeps what hooks print there until they return.
        print(f"medley: {sentence}", file=sys.__stderr__, flush=True)
    _let_the_cause_leave(expected)
    _say_that_it_leaves()
    os._exit(code)
