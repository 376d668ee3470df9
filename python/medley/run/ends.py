"""The end of a process of a job: its messages to and from the others, and its exit code."""

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

# The attribute of an error that another process of the job prints.
SAID_ELSEWHERE = "_medley_said_elsewhere"
_FINISHED = "finished"  # keys under which processes publish the end of their scripts
FIRST_FAILURE = "failure"  # key of the first failure of the job in the store
_DISCONNECT_SECONDS = 5.0
# Seconds that other processes leave to the one that failed first, to announce its exit and then to
# exit. The launcher takes the first process that ends for the cause.
_LEAVE_SECONDS = 6.0
_AFTER_SECONDS = 0.3  # until the launcher has seen the exit
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep


class OthersError(OSError):
    """Another process failed to take part, usually because of its own failure or exit."""


class Member(Protocol):
    """An object in this process that must notify other processes of its end."""

    def fail(self, cause: str) -> str:
        """Notifies the others of a failure. Returns the first cause of the run, which may be
        another's."""

    def finish(self) -> None:
        """Notifies the others that this process has finished."""


class Store(Protocol):
    """The message store of a job (`_runtime.Store`)."""

    def set(self, key: str, value: str) -> None: ...
    def set_first(self, key: str, value: str) -> str: ...
    def get(self, key: str) -> str | None: ...


@dataclasses.dataclass
class Process:
    """This process as the others know it."""

    names: list[str] = dataclasses.field(default_factory=list)  # "rank 1", "fast/0/1"
    store: Store | None = None
    members: list[weakref.ref[Member]] = dataclasses.field(default_factory=list)
    left: list[Callable[[], Any]] = dataclasses.field(default_factory=list)  # calls at the end
    last: list[Callable[[], Any]] = dataclasses.field(default_factory=list)  # calls after `left`

    def living(self) -> list[Member]:
        """Returns the members that still exist."""
        return [member for member in (each() for each in self.members) if member is not None]


_process = Process()
_leaves = threading.Event()  # this process left its group


def watch(member: Member) -> None:
    """Publishes uncaught errors and the end of the script to the other processes from now on."""
    _process.members.append(weakref.ref(member))


def leave_to_the_end(complete: Callable[[], Any]) -> None:
    """Calls `complete` when the script has ended, for collective work at an unknown time."""
    _process.left.append(complete)


def leave_to_the_last(end: Callable[[], Any]) -> None:
    """Calls `end` when all processes have finished."""
    _process.last.append(end)


def connect(store: Store, *names: str) -> None:
    """Sets the store of the job and the names of this process, the most descriptive last."""
    _process.store = store
    _process.names.extend(names)


def name() -> str:
    """Returns the name of this process for others."""
    return _process.names[-1]


def who_has_finished(ranks: int) -> str:
    """Returns the name of a process whose script has ended, among `ranks`, or ""."""
    assert _process.store is not None
    found = (_process.store.get(f"{_FINISHED}/rank {rank}") for rank in range(ranks))
    return next((each for each in found if each), "")


def know_as(name: str) -> None:
    """Renames this process."""
    if name not in _process.names:
        _process.names.append(name)


def first_failure(store: Store) -> dict[str, Any] | None:
    """Returns the first failure of the job: `device` ("" for none), its reporter `told_by`,
    `in_exchange`, `blame` (caller, environment, medley) and `cause`."""
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
    """Returns the device that reported its own failure, or "" if others reported it."""
    own = failure["device"] == failure["told_by"]
    return str(failure["device"]) if own else ""


def tell(cause: str, blame: str, in_exchange: bool = False) -> None:
    """Publishes that this process has failed, in a run or outside."""
    for member in _process.living():
        member.fail(cause)
    if _process.store is None:
        return
    with contextlib.suppress(OSError):
        _tell_first(name(), in_exchange, blame, f"{name()}: {cause}")


def tell_of_an_exchange(cause: str, finished: bool) -> None:
    """Publishes the failure of an exchange here. If a process has `finished`, the caller is at
    fault; otherwise a connection is lost because another process ended."""
    device, blame = ("", "caller") if finished else (name(), "environment")
    _tell_first(device, not finished, blame, cause)


def _tell_first(device: str, in_exchange: bool, blame: str, cause: str) -> None:
    """Publishes the failure unless there is one already."""
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
    """Prints uncaught errors of Medley in one line without a traceback, and sets the exit code of
    the command line: 2 for errors of the caller, 3 for those of the environment."""
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
    end.start()  # started now: no thread can start at exit
    atexit.register(_disconnect, end)
    atexit.register(_finish)  # runs first


def _is_ours(trace: TracebackType | None) -> bool:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _is_the_cause() -> bool:
    """Returns whether this process caused the first failure of the job."""
    first = _first()
    return first is not None and first["device"] in _process.names


def _first() -> dict[str, Any] | None:
    if _process.store is not None:
        with contextlib.suppress(OSError):
            return first_failure(_process.store)
    return None


def _note_for_torchrun(error: BaseException) -> None:
    """Lets torchrun print this error as the root cause."""
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
        with contextlib.suppress(OSError, ValueError):  # other processes have failed or finished
            end()
    if _process.store is not None:
        with contextlib.suppress(OSError):
            _process.store.set(f"{_FINISHED}/{_process.names[0]}", name())
    _let_the_cause_leave()


def _let_the_cause_leave(expected: bool = False) -> None:
    """Waits until the process that failed first has exited. If it is `expected`, waits for its
    message too."""
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
    """Returns whether the announced process ("HOST PID") still runs on this machine. Processes of
    other machines count as gone."""
    host, _, pid = left.rpartition(" ")
    return host == socket.gethostname() and is_running(pid)


def is_running(pid: int | str) -> bool:
    """Returns whether a process of this machine exists and is no zombie."""
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
    # Gloo's threads must end before the interpreter, or the process may be aborted. After a failure
    # elsewhere this may block, so the wait is short.
    _leaves.set()
    end.join(_DISCONNECT_SECONDS)
    for each in _process.last:
        each()
    _say_that_it_leaves()


def _leave(sentence: str, code: int, expected: bool = False) -> None:
    if sentence:
        # Not sys.stderr: torch.distributed holds back output of hooks there.
        print(f"medley: {sentence}", file=sys.__stderr__, flush=True)
    _let_the_cause_leave(expected)
    _say_that_it_leaves()
    os._exit(code)
