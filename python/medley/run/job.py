"""The job that this process belongs to, if torchrun, Slurm or `medley launch` started several.

The only place that reads the environment. Everything else asks `current()`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import functools
import itertools
import json
import math
import os
import socket
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]

from medley import _runtime
from medley.run import connections, ends, meeting

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
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if rank >= size:
        raise ValueError(
            f"environment: RANK: found {rank}, expected less than WORLD_SIZE, which is {size}"
        )
    return Job(
        rank=rank,
        size=size,
        local_rank=_number("LOCAL_RANK", rank),
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


def dead_after_seconds() -> float:
    """Returns how long a process may give no sign of life before the others end."""
    text = os.environ.get("MEDLEY_DEAD_AFTER", "5")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    return check_dead_after(seconds, "environment: MEDLEY_DEAD_AFTER", text)


def check_dead_after(seconds: float, place: str, text: str = "") -> float:
    """Returns the seconds. Raises ValueError where the watchdogs could not keep to them."""
    if not 2 <= seconds <= 86400:
        raise ValueError(f"{place}: found {text or seconds}, expected 2 to 86400 seconds")
    return seconds


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


_connected: list[Any] = []  # the store of the job, and what else lives as long


@functools.cache
def _join(job: Job) -> None:
    if "TORCH_CPP_LOG_LEVEL" not in os.environ:
        _runtime.print_errors_of_c10d_only()
    if not dist.is_initialized():
        _choose_interface(job.master)
        with connections.guarded():
            _meet(job)
    with connections.guarded():
        store = _runtime.c10d_store(**store_address(), serve=False)
    ends.connect(store, f"rank {job.rank}", *filter(None, [os.environ.get("MEDLEY_DEVICE")]))
    _connected.append(store)
    if job.rank == 0:
        _connected.append(
            _runtime.Pulse(**store_address(), key=_PULSE, period_ms=round(1000 * _PULSE_SECONDS))
        )


def _meet(job: Job) -> None:
    serves = job.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address = store_address()
    place = meeting.Meeting(
        **address, interface=interface(), rank=job.rank, size=job.size, seconds=TIMEOUT_SECONDS
    )
    store = meeting.meet(place, serves)
    if address["port"] == 0:
        os.environ["MASTER_PORT"] = str(store.port)  # that the system has chosen
    keys = PrefixStore(f"{address['prefix']}torch", store)
    try:
        dist.init_process_group(
            "gloo", store=keys, rank=job.rank, world_size=job.size, timeout=_timeout()
        )
    except (RuntimeError, ValueError) as error:  # c10d's own and Gloo's
        sentence = str(error).partition("\n")[0]
        raise OSError(
            f"rank {job.rank}: the {job.size} processes of the job met at {place.where}, but could "
            f"not connect to each other: {sentence}"
        ) from None


def _timeout() -> datetime.timedelta:
    return datetime.timedelta(seconds=TIMEOUT_SECONDS)


def join() -> Job | None:
    """Returns the job, its processes connected."""
    if "RANK" in os.environ:
        _install_ends()
    job = current()
    if job is not None:
        _join(job)
    return job


@functools.cache
def _install_ends() -> None:
    ends.install()


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


# The first process says that it lives, while others wait for it.
_PULSE = "pulse/0"
_PULSE_SECONDS = 0.5
_made = itertools.count()  # what the first process has made for all
_WAIT_IN_SILENCE_SECONDS = 10.0
# What may be raised on every process after rank 0 has raised it; any other error becomes the last.
_RAISED = (ValueError, TypeError, NotImplementedError, OSError, RuntimeError)


def from_first(make: Callable[[], bytes], doing: str) -> bytes:
    """Returns what `make` returns on rank 0, everywhere; an error there is raised everywhere, and
    said by rank 0 alone. The others wait as long as rank 0 lives; `doing` tells people why."""
    job = join()
    if job is None or job.size == 1:
        return make()
    store, key = _connected[0], f"made/{next(_made)}"
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
        store.set(key, str(len(parcel)))
    else:
        _wait_for_first(job, store, key, doing)
    data = torch.frombuffer(bytearray(parcel), dtype=torch.uint8) if parcel else None
    sent = tensor_from(0, data, [int(store.get(key))], torch.uint8).numpy().tobytes()
    if raised is not None:
        raise raised
    if sent[0]:
        theirs = _RAISED[sent[0] - 1](sent[1:].decode())
        setattr(theirs, ends.SAID_ELSEWHERE, True)
        raise theirs
    return sent[1:]


def _wait_for_first(job: Job, store: Any, key: str, doing: str) -> None:
    """Waits until rank 0 has set the key, as long as it lives and nobody has failed."""
    patience = meeting.Patience(say_after=_WAIT_IN_SILENCE_SECONDS)
    pulse, next_look, changed = None, 0.0, 0
    looks = 0
    while store.get(key) is None:
        if patience.waited >= next_look:
            next_look = patience.waited + _PULSE_SECONDS
            looks += 1
            if (failure := ends.first_failure(store)) is not None:
                raise ends.OthersError(failure["cause"])
            if (now := store.get(_PULSE)) != pulse:
                pulse, changed = now, looks
            if (looks - changed) * _PULSE_SECONDS > dead_after_seconds():
                raise ends.OthersError(
                    f"rank 0: no sign of life for {dead_after_seconds():g} s, says rank "
                    f"{job.rank}: its process was killed or its link is dead"
                )
        if patience.should_say() and job.rank == 1:
            meeting.say(f"waiting for rank 0, which {doing}")
        patience.pause()


@contextlib.contextmanager
def _exchange() -> Iterator[None]:
    """Around what processes send each other: an error of Gloo's says the first failure of the job,
    if that is known, or which rank hears no more."""
    try:
        yield
    except RuntimeError as error:
        failure = None
        with contextlib.suppress(OSError):
            failure = ends.first_failure(_connected[0]) if _connected else None
        own = f"rank {dist.get_rank()}: {_runtime.peer_error(str(error))}"
        raise ends.OthersError(own if failure is None else failure["cause"]) from None


def tensor_from(rank: int, tensor: Tensor | None, shape: list[int], dtype: torch.dtype) -> Tensor:
    """Returns the tensor that `rank` has, everywhere. The others pass None."""
    whole = (
        torch.empty(shape, dtype=dtype) if tensor is None else tensor.detach().cpu().contiguous()
    )
    # As bytes: Gloo does not know every element type.
    flat = whole.reshape(-1).view(torch.uint8) if whole.numel() else whole.new_empty(0)
    if flat.numel():
        with _exchange():
            dist.broadcast(flat, src=rank)
    return whole


def largest(value: float) -> float:
    """Returns the largest of all processes' values."""
    if join() is None:
        return float(value)
    tensor = torch.tensor([float(value)], dtype=torch.float64)
    with _exchange():
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return float(tensor)


def texts(text: str) -> list[str]:
    """Returns the texts of all processes, by rank. None may be empty."""
    own = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    with _exchange():
        dist.all_gather(sizes, torch.tensor([own.numel()]))
    padded = torch.zeros(max(int(size) for size in sizes), dtype=torch.uint8)
    padded[: own.numel()] = own
    found = [torch.empty_like(padded) for _ in sizes]
    with _exchange():
        dist.all_gather(found, padded)
    return [
        data[: int(size)].numpy().tobytes().decode()
        for data, size in zip(found, sizes, strict=True)
    ]


def barrier() -> None:
    """Waits for all processes of the job."""
    if join() is not None:
        with _exchange():
            dist.barrier()
