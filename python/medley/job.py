"""The job that this process belongs to, if torchrun, Slurm or `medley launch` started several.

The only place that reads the environment. Everything else asks `current()`.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import datetime
import functools
import json
import os
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from medley import connections

# How long processes wait for each other where nobody says otherwise: to come, and in an exchange.
TIMEOUT_SECONDS = 600


@dataclasses.dataclass(frozen=True)
class Job:
    """One process of a job. Process `rank` drives device `rank` of the plan."""

    rank: int
    size: int
    local_rank: int
    master: str


def current() -> Job | None:
    """Returns the job that the environment describes; None for a single process."""
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        return None
    return Job(
        rank=_number("RANK"),
        size=_number("WORLD_SIZE"),
        local_rank=_number("LOCAL_RANK", _number("RANK")),
        master=os.environ.get("MASTER_ADDR", "127.0.0.1"),
    )


def launched_plan() -> str | None:
    """Returns the file of the plan that `medley launch` was given."""
    return os.environ.get("MEDLEY_PLAN")


def emulation() -> dict[str, Any]:
    """Returns the settings of the emulation that `medley launch --emulate` or `emulated()` has set
    up; nothing on real devices."""
    text = os.environ.get("MEDLEY_EMULATION")
    return dict(json.loads(text)) if text else {}


@contextlib.contextmanager
def emulated(**settings: Any) -> Iterator[None]:
    """Inside the block, trainers take times, links and memory from the plan's cluster.

    Settings: truth_seed, truth_spread, pace, delay_seed, ledger (medley/worker/emulated_cluster.h),
    and profile: a file that `medley profile` wrote, for the times of ops.
    """
    with environment({"MEDLEY_EMULATION": json.dumps({"truth_seed": 0, **settings})}):
        yield


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables inside the block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def store_address() -> dict[str, Any]:
    """Returns where the store is through which the processes have met, and our part of its keys."""
    return {
        "host": os.environ.get("MASTER_ADDR", "127.0.0.1"),
        "port": _number("MASTER_PORT"),
        "prefix": f"medley/{_number('TORCHELASTIC_RESTART_COUNT', 0)}/",
    }


def _number(name: str, default: int | None = None) -> int:
    text = os.environ.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        raise ValueError(f"environment: {name}: found {text!r}, expected a number >= 0")
    return int(text)


# --- interfaces -----------------------------------------------------------------------------------


def address_towards(host: str) -> str:
    """Returns the address of this machine from which packets go to `host`."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def addresses() -> dict[str, str]:
    """Returns the IPv4 address of every network interface that has one."""
    import fcntl
    import struct

    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                reply = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            found[name] = socket.inet_ntoa(reply[20:24])
    return found


def interface_towards(host: str) -> str | None:
    """Returns the interface that leads to `host`: the loopback if it is this machine."""
    try:
        address = address_towards(host)
        return next((name for name, own in addresses().items() if own == address), None)
    except OSError:
        return None


def interface() -> str:
    """Returns the interface that processes talk through, "" where nobody has chosen one."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "")


def use_interface(name: str) -> None:
    """Lets processes talk through an interface. Raises ValueError if there is none of this name."""
    _check_interface(name, "--interface")
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name


def _check_interface(names: str, place: str) -> None:
    own = addresses()
    for name in names.split(","):
        if name not in own:
            raise ValueError(f"{place}: found {name}, expected one of {', '.join(own)}")


def _choose_interface(master: str) -> None:
    # Gloo would take the address of the host's name, which often leads nowhere.
    if interface():
        _check_interface(interface(), "environment: GLOO_SOCKET_IFNAME")
    elif (towards := interface_towards(master)) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = towards


# --- talking to the other processes ---------------------------------------------------------------


@functools.cache
def _join(job: Job) -> None:
    if not dist.is_initialized():
        _choose_interface(job.master)
        where = f"{job.master}:{os.environ.get('MASTER_PORT', '')}"
        where += f" through {interface()}" if interface() else ""
        try:
            with connections.guarded():
                dist.init_process_group("gloo", timeout=_timeout())
        except (RuntimeError, ValueError) as error:  # c10d's own and Gloo's
            sentence = str(error).partition("\n")[0]
            raise OSError(
                f"rank {job.rank}: the {job.size} processes of the job did not meet at {where}: "
                f"{sentence}"
            ) from None
    _install_hook()


def _timeout() -> datetime.timedelta:
    return datetime.timedelta(seconds=TIMEOUT_SECONDS)


def join() -> Job | None:
    """Returns the job, its processes connected."""
    job = current()
    if job is not None:
        _join(job)
    return job


def make_groups(groups: dict[str, list[int]], backend: str = "gloo") -> dict[str, str]:
    """Makes one process group per list of ranks; returns the names under which c10d knows those of
    this process.

    Every process makes all of them, in the same order.
    """
    names: dict[str, str] = {}
    for name, ranks in groups.items():
        order: dict[str, Any] = {} if ranks == sorted(ranks) else {"sort_ranks": False}
        with connections.guarded():
            group = dist.new_group(
                ranks, timeout=_timeout(), backend=backend, group_desc=name, **order
            )
        if dist.get_rank() in ranks:
            names[name] = group.group_name
    return names


# The attribute of an error that another process of the job tells people of.
SAID_ELSEWHERE = "_medley_said_elsewhere"
# What may be raised on every process after rank 0 has raised it; any other error becomes the last.
_RAISED = (ValueError, TypeError, NotImplementedError, OSError, RuntimeError)


def from_first(make: Callable[[], bytes]) -> bytes:
    """Returns what `make` returns on rank 0, everywhere; an error there is raised everywhere, and
    said by rank 0 alone."""
    job = join()
    if job is None or job.size == 1:
        return make()
    parcel, raised = b"", None
    if job.rank == 0:
        try:
            parcel = b"\0" + make()
        except Exception as error:
            raised = error
            kind = next(
                (i for i, k in enumerate(_RAISED) if isinstance(error, k)), len(_RAISED) - 1
            )
            parcel = bytes([1 + kind]) + str(error).encode()
    size = torch.tensor([len(parcel)])
    dist.broadcast(size, src=0)
    data = torch.frombuffer(bytearray(parcel), dtype=torch.uint8) if parcel else None
    sent = tensor_from(0, data, [int(size)], torch.uint8).numpy().tobytes()
    if raised is not None:
        raise raised
    if sent[0]:
        theirs = _RAISED[sent[0] - 1](sent[1:].decode())
        setattr(theirs, SAID_ELSEWHERE, True)
        raise theirs
    return sent[1:]


def tensor_from(rank: int, tensor: Tensor | None, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Returns the tensor that `rank` has, everywhere. The others pass None."""
    whole = (
        torch.empty(shape, dtype=dtype) if tensor is None else tensor.detach().cpu().contiguous()
    )
    # As bytes: Gloo does not know every element type.
    flat = whole.reshape(-1).view(torch.uint8) if whole.numel() else whole.new_empty(0)
    if flat.numel():
        dist.broadcast(flat, src=rank)
    return whole


def largest(value: float) -> float:
    """Returns the largest of all processes' values."""
    if join() is None:
        return float(value)
    tensor = torch.tensor([float(value)], dtype=torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor)


def texts(text: str) -> list[str]:
    """Returns the texts of all processes, by rank. None may be empty."""
    own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([own.numel()]))
    padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
    padded[: own.numel()] = own
    found = [torch.empty_like(padded) for _ in sizes]
    dist.all_gather(found, padded)
    return [
        data[: int(size)].numpy().tobytes().decode()
        for data, size in zip(found, sizes, strict=True)
    ]


def barrier() -> None:
    """Waits for all processes of the job."""
    if join() is not None:
        dist.barrier()


# --- ends -----------------------------------------------------------------------------------------


class Member(Protocol):
    """What runs in this process and has to tell the others how it ends."""

    def fail(self, cause: str) -> str:
        """Tells them; returns the first cause of the run, which may be another's."""

    def finish(self) -> None:
        """Tells them that there is nothing more to do."""


_members: list[weakref.ref[Member]] = []
_DISCONNECT_SECONDS = 5.0


def watch_end(member: Member) -> None:
    """From now on an error that nobody catches, or the end of the script, is told the others."""
    _members.append(weakref.ref(member))


def _living() -> list[Member]:
    return [member for member in (reference() for reference in _members) if member is not None]


def _finish() -> None:
    for member in _living():
        member.finish()


def _disconnect() -> None:
    # Gloo's threads have to end before the interpreter does, or the process may be aborted. Where
    # others have failed this may wait for them, so not for long.
    if dist.is_initialized():
        end = threading.Thread(target=dist.destroy_process_group, daemon=True)
        end.start()
        end.join(_DISCONNECT_SECONDS)


def _install_hook() -> None:
    """An error of ours that nobody catches is printed as one sentence, without a traceback, and
    gives the exit code of the command line: 2 for the caller's mistakes, 3 for the world's."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sys.stdout.flush()
        interrupted = isinstance(error, KeyboardInterrupt)
        cause = "interrupted" if interrupted else f"{kind.__name__}: {error}"
        for member in _living():
            member.fail(cause)
        if interrupted:
            _leave("interrupted", 130)
        if isinstance(error, (ValueError, OSError)) and _is_ours(trace):
            said = getattr(error, SAID_ELSEWHERE, False)
            _leave("" if said else str(error), 2 if isinstance(error, ValueError) else 3)
        before(kind, error, trace)

    sys.excepthook = hook
    atexit.register(_disconnect)
    atexit.register(_finish)  # comes first


def _is_ours(trace: TracebackType | None) -> bool:
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    folder = os.path.dirname(__file__)
    return trace is not None and os.path.dirname(trace.tb_frame.f_code.co_filename) == folder


def _leave(sentence: str, code: int) -> None:
    if sentence:
        print(f"medley: {sentence}", file=sys.stderr, flush=True)
    os._exit(code)
