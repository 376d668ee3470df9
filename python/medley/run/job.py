"""The job that this process belongs to, if torchrun, Slurm or `medley launch` started several.

The only place that reads the environment of a job. Everything else asks `current()` and what
follows it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Job:
    """One process of a job. Process `rank` drives device `rank` of the plan."""

    rank: int
    size: int
    local_rank: int
    master: str
    elastic: bool = False  # processes may be lost, and the others go on


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
        master=master(),
        elastic="MEDLEY_ELASTIC" in os.environ,
    )


def is_one_of_several() -> bool:
    """Whether the environment describes a job at all."""
    return "RANK" in os.environ


def master() -> str:
    """Returns the host of the first process."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1")


def keep_port(port: int) -> None:
    """Tells the processes that this one starts on which port the first process listens."""
    os.environ["MASTER_PORT"] = str(port)


def agent_has_store() -> bool:
    """Whether torchrun's agent serves the store, rather than the first process."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def error_file() -> str:
    """Returns the file in which torchrun looks for the cause of an end, or ""."""
    return os.environ.get("TORCHELASTIC_ERROR_FILE", "")


def says_how_c10d_logs() -> bool:
    """Whether the user has chosen what PyTorch's C++ code logs."""
    return "TORCH_CPP_LOG_LEVEL" in os.environ


def device_name() -> str:
    """Returns the device that `medley launch` has started this process for."""
    return os.environ.get("MEDLEY_DEVICE", "")


def joins_later() -> bool:
    """Whether this process takes the place of one that a run which goes on has lost."""
    return "MEDLEY_JOINS" in os.environ


def joined_epoch() -> int:
    """Returns the epoch of the run that this process joins. Requires: joins_later()."""
    return int(os.environ["MEDLEY_JOINS"])


def offered_devices() -> list[str]:
    """Returns the devices of a node that has come to a run, for this process to say what they are
    good for."""
    return [str(name) for name in json.loads(os.environ.get("MEDLEY_OFFERS", "[]"))]


def launched_plan() -> str | None:
    """Returns the file of the plan that `medley launch` was given."""
    return os.environ.get("MEDLEY_PLAN")


def backend() -> str:
    """Returns what the user wants the processes to talk over: "nccl", "gloo", or "" for either."""
    name = os.environ.get("MEDLEY_BACKEND", "")
    if name not in ("", "gloo", "nccl"):
        raise ValueError(f"environment: MEDLEY_BACKEND: found {name!r}, expected gloo or nccl")
    return name


def second_homes_every() -> int | None:
    """Returns after how many steps copies are made of what one failure would take; 0: so that they
    cost little; None: never."""
    text = os.environ.get("MEDLEY_SECOND_HOMES", "")
    return None if text == "never" else int(text or 0)


def copies_are_asked_for() -> bool:
    """Whether the user has said after how many steps copies are made."""
    return (second_homes_every() or 0) > 0


def settle_seconds() -> float:
    """Returns the seconds that pass between two changes that nothing but their gain asks for."""
    return float(os.environ.get("MEDLEY_SETTLE", "600"))


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
    if not 0.2 <= seconds <= 86400:
        raise ValueError(f"{place}: found {text or seconds}, expected 0.2 to 86400 seconds")
    return seconds


def pulse_seconds() -> float:
    """Returns how often a process says that it lives, whatever its script does."""
    return min(0.5, dead_after_seconds() / 4)


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


def choose_interface(master: str) -> None:
    """Chooses the interface that leads to the master, unless somebody has chosen one."""
    # Gloo would take the address of the host's name, which often leads nowhere.
    if interface():
        _check_interface(interface(), "environment: GLOO_SOCKET_IFNAME")
    elif (towards := interface_towards(master)) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = towards
