"""The job that this process belongs to, if torchrun, Slurm or `medley launch` started several.

The only place that reads the environment. Everything else asks `current()`.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import socket
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


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


def _choose_interface(master: str) -> None:
    # Gloo would take the address of the host's name, which often leads nowhere.
    if "GLOO_SOCKET_IFNAME" not in os.environ:
        name = interface_towards(master)
        if name is not None:
            os.environ["GLOO_SOCKET_IFNAME"] = name


# --- talking to the other processes ---------------------------------------------------------------


@functools.cache
def _join(job: Job) -> None:
    if not dist.is_initialized():
        _choose_interface(job.master)
        dist.init_process_group("gloo")


def join() -> Job | None:
    """Returns the job, its processes connected."""
    job = current()
    if job is not None:
        _join(job)
    return job


def make_groups(groups: dict[str, list[int]], backend: str = "gloo") -> dict[str, str]:
    """Makes one process group per set of ranks; returns the names under which c10d knows them.

    Every process makes all of them in the same order, also those that it is not in.
    """
    names: dict[str, str] = {}
    for name, ranks in groups.items():
        group = dist.new_group(ranks, backend=backend, group_desc=name)
        if dist.get_rank() in ranks:
            names[name] = group.group_name
    return names


def from_first(make: Callable[[], Any]) -> Any:
    """Returns what `make` returns on rank 0, everywhere; an error there is raised everywhere."""
    job = join()
    if job is None or job.size == 1:
        return make()
    parcel: list[Any] = [None]
    if job.rank == 0:
        try:
            parcel = [(make(), None)]
        except Exception as error:
            parcel = [(None, error)]
    dist.broadcast_object_list(parcel, src=0)
    value, error = parcel[0]
    if error is not None:
        raise error
    return value


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


def barrier() -> None:
    """Waits for all processes of the job."""
    if join() is not None:
        dist.barrier()
