"""The job of this process, if torchrun, Slurm or `medley launch` started several. Only this module
reads the environment of a job. All others call `current()` and the functions after it."""

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
    """One process of a job. Process `rank` drives device `rank` of the plan.

    Example:
        this = current()
        if this is not None:
            print(this.rank, this.size)
    """

    rank: int
    size: int
    local_rank: int
    master: str
    elastic: bool = False  # the others continue if processes are lost


def current() -> Job | None:
    """Returns the job that the environment describes, or None for a single process."""
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
    """Returns whether the environment describes a job."""
    return "RANK" in os.environ


def master() -> str:
    """Returns the host of the first process."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1")


def keep_port(port: int) -> None:
    """Publishes the port of the first process to the processes that this one starts."""
    os.environ["MASTER_PORT"] = str(port)


def agent_has_store() -> bool:
    """Returns whether torchrun's agent serves the store, rather than the first process."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def error_file() -> str:
    """Returns the file from which torchrun reads the cause of an end, or ""."""
    return os.environ.get("TORCHELASTIC_ERROR_FILE", "")


def says_how_c10d_logs() -> bool:
    """Returns whether the user has set the log level of PyTorch's C++ code."""
    return "TORCH_CPP_LOG_LEVEL" in os.environ


def device_name() -> str:
    """Returns the device for which `medley launch` has started this process."""
    return os.environ.get("MEDLEY_DEVICE", "")


def joins_later() -> bool:
    """Returns whether this process replaces a lost one of an elastic run."""
    return "MEDLEY_JOINS" in os.environ


def joined_generation() -> int:
    """Returns the generation that this process joins. Requires: joins_later()."""
    return int(os.environ["MEDLEY_JOINS"])


def offered_devices() -> list[str]:
    """Returns the devices of a node that has joined a run. This process predicts their gain."""
    return [str(name) for name in json.loads(os.environ.get("MEDLEY_OFFERS", "[]"))]


def launched_plan() -> str | None:
    """Returns the file of the plan given to `medley launch`, or None."""
    return os.environ.get("MEDLEY_PLAN")


def backend() -> str:
    """Returns the user's choice of backend: "nccl", "gloo", or "" for either."""
    name = os.environ.get("MEDLEY_BACKEND", "")
    if name not in ("", "gloo", "nccl"):
        raise ValueError(f"environment: MEDLEY_BACKEND: found {name!r}, expected gloo or nccl")
    return name


def replicate_every() -> int | None:
    """Returns the number of steps between state replicas; 0: chosen by cost; None: no replicas."""
    text = os.environ.get("MEDLEY_REPLICATE_EVERY", "")
    return None if text == "never" else int(text or 0)


def copies_are_asked_for() -> bool:
    """Returns whether the user has set the number of steps between state replicas."""
    return (replicate_every() or 0) > 0


def metrics_address() -> tuple[str, int] | None:
    """Returns the host and port at which the first process serves metrics, if the user wants it."""
    host, _, port = os.environ.get("MEDLEY_METRICS", "").rpartition(":")
    return (host, int(port)) if host else None


def tune_steps(tune: int | str | None) -> int | None:
    """Returns the number of steps that trying other plans may cost, None for "auto", 0 for "off".
    `tune`: None for the value of `medley launch --tune`. Raises ValueError for another text."""
    text = str(tune if tune is not None else os.environ.get("MEDLEY_TUNE", "auto"))
    if text == "auto":
        return None
    if text != "off" and not text.isdecimal():
        raise ValueError(f"--tune: found {text!r}, expected auto, off or a number of steps")
    return 0 if text == "off" else int(text)


def settle_seconds() -> float:
    """Returns the minimum seconds between two changes that are made only for their gain."""
    return float(os.environ.get("MEDLEY_SETTLE", "600"))


def emulation() -> dict[str, Any]:
    """Returns the settings of `medley launch --emulate` or `emulated()`, or an empty dict on real
    devices."""
    text = os.environ.get("MEDLEY_EMULATION")
    return dict(json.loads(text)) if text else {}


@contextlib.contextmanager
def emulated(**settings: Any) -> Iterator[None]:
    """Lets trainers inside the block take times, links and memory from the plan's cluster.
    Settings: truth_seed, truth_spread, pace, delay_seed, ledger (medley/worker/emulated_cluster.h),
    and profile: a file of `medley profile` with op times."""
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


def heartbeat_timeout_seconds() -> float:
    """Returns the seconds without a heartbeat after which the others end."""
    text = os.environ.get("MEDLEY_HEARTBEAT_TIMEOUT", "5")
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    return check_heartbeat_timeout(seconds, "environment: MEDLEY_HEARTBEAT_TIMEOUT", text)


def check_heartbeat_timeout(seconds: float, place: str, text: str = "") -> float:
    """Returns the seconds. Raises ValueError if the watchdogs cannot keep them."""
    if not 0.2 <= seconds <= 86400:
        raise ValueError(f"{place}: found {text or seconds}, expected 0.2 to 86400 seconds")
    return seconds


def pulse_seconds() -> float:
    """Returns the seconds between heartbeats, independent of the script."""
    return min(0.5, heartbeat_timeout_seconds() / 4)


def store_address() -> dict[str, Any]:
    """Returns the address of the store of the job, and our prefix of its keys."""
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
    """Returns the chosen interface of the processes, or ""."""
    return os.environ.get("GLOO_SOCKET_IFNAME", "")


def use_interface(name: str) -> None:
    """Sets the interface of the processes. Raises ValueError if it does not exist."""
    _check_interface(name, "--interface")
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["NCCL_SOCKET_IFNAME"] = name


def _check_interface(names: str, place: str) -> None:
    own = addresses()
    for name in names.split(","):
        if name not in own:
            raise ValueError(f"{place}: found {name}, expected one of {', '.join(own)}")


def choose_interface(master: str) -> None:
    """Sets the interface that leads to the master, unless one is chosen."""
    # Gloo would take the address of the host name, which often leads nowhere.
    if interface():
        _check_interface(interface(), "environment: GLOO_SOCKET_IFNAME")
    elif (towards := interface_towards(master)) is not None:
        os.environ["GLOO_SOCKET_IFNAME"] = towards
