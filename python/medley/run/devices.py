"""The devices of a plan: threads or processes, CPU or GPU, real or emulated."""

from __future__ import annotations

import functools
import itertools
import os
import platform
from typing import Any

import torch

from medley import _core, _runtime
from medley.cluster import Cluster
from medley.plan import Plan, read_profile
from medley.run import accelerators, connections, elastic, exchange, job, ledger

_generations = itertools.count()  # one per run, identical in all processes
_ledgers: list[int] = []  # the open clock of the last run that this process has made for all


def options(
    plan: Plan,
    program: _core.Program,
    cluster: Cluster,
    this: job.Job | None,
    takes_time: bool = True,
) -> dict[str, Any]:
    """Returns the options of `_runtime.Run` for the devices of this process. `takes_time`: on
    emulated devices. Raises ValueError if the number of processes differs from the number of
    devices in the plan."""
    names = plan.devices
    numbers = program.devices
    kinds = {cluster.kind(number).name for number in numbers}
    emulation = job.emulation()
    if "profile" in emulation:
        emulation["profile"] = read_profile(emulation["profile"])
    if emulation:
        kinds = {"CPU"}
    if this is None:
        clock = emulation | {"ledger": ""} if emulation and takes_time else {}
        return {"torch_devices": _own_devices(kinds, len(names)), "emulation": clock}
    if this.size != len(names):
        raise ValueError(
            f"world size: found {this.size} processes, expected {len(names)}: one for each device "
            f"of the plan ({', '.join(names)})"
        )
    by_rank = ["CPU"] * this.size if emulation else [cluster.kind(n).name for n in numbers]
    found = accelerators_of_all(this.local_rank)[: this.size]
    asked = job.backend()
    chosen = accelerators.choose(names, by_rank, found, shared=asked == "gloo")
    common = {
        "own": [this.rank],
        "torch_devices": [chosen[this.rank]],
        "timeout_ms": 1000 * exchange.TIMEOUT_SECONDS,
        "interface": job.interface(),
        "versions": f"torch {torch.__version__}, {platform.machine()}",
    }
    if this.elastic:
        return common | _elastic_options(program)
    backend = accelerators.backend(chosen, found, asked)
    generation = next(_generations)
    if not takes_time:
        emulation = {}
    elif emulation and generation:
        emulation["ledger"] = _next_ledger(cluster)
    return common | {
        "make_groups": functools.partial(_make_groups, program, names, generation, backend),
        "through_host": backend == "gloo",
        "membership": {
            **job.store_address(),
            "generation": generation,
            "interface": job.interface(),
            "heartbeat_timeout_ms": round(1000 * job.heartbeat_timeout_seconds()),
        },
        "emulation": emulation,
    }


def require_memory(
    run: Any, program: _core.Program, cluster: Cluster, this: job.Job | None, places: list[str]
) -> None:
    """Raises MemoryError or RuntimeError if a device of this process, at these `places`, has no
    memory for the state of another run. An emulated device needs memory for a step."""
    uses, held = run.memory(), []
    for own, rank in enumerate(range(len(uses)) if this is None else [this.rank]):
        use, place = uses[rank], places[own % len(places)]
        if job.emulation() and use["peak"] > cluster.kind(program.devices[rank]).memory_bytes:
            raise MemoryError(
                f"{run.device_names[rank]}: out of memory: needs {use['peak']:,} bytes"
            )
        held.append(torch.empty(use["persistent"], dtype=torch.uint8, device=place))


def _next_ledger(cluster: Cluster) -> str:
    """Returns the clock of a later run of all processes, which a device joins only once."""

    def make() -> bytes:
        before = [_ledgers.pop()] if _ledgers else []
        _ledgers.append(ledger.opened(cluster))
        for file in before:
            os.close(file)
        return f"/proc/{os.getpid()}/fd/{_ledgers[0]}".encode()

    return exchange.from_first(make, "begins another run").decode()


def accelerators_of_all(local_rank: int) -> list[accelerators.Found]:
    """Returns the accelerators of each process."""
    every = exchange.values(accelerators.find(local_rank))
    return [accelerators.Found(*each) for each in every]


def _elastic_options(program: _core.Program) -> dict[str, Any]:
    """Returns the options of a device in a generation: Gloo groups of its members, whose
    connections can be cut at any time, and steps that can be undone."""
    if job.backend() == "nccl":
        raise ValueError("environment: MEDLEY_BACKEND: found nccl, expected gloo in an elastic run")
    member = elastic.member()
    assert member.group is not None
    group, generation = member.group, member.generation

    def make_groups() -> tuple[dict[tuple[int, ...], str], dict[str, str], list[int]]:
        ranks = exchange.outer_ranks(range(len(program.devices)))
        rank = dict(zip(program.devices, ranks, strict=True))
        wanted = {_runtime.group_name(each, generation): each for each in program.groups}
        made = group.make_groups(
            {name: [rank[device] for device in each] for name, each in wanted.items()}
        )
        return {tuple(wanted[name]): made[name] for name in made}, {}, group.copies()

    return {
        "make_groups": make_groups,
        "through_host": True,
        "membership": elastic.membership(member),
        "keep_undo": True,
    }


def _peers(names: list[str]) -> dict[str, str]:
    """Returns the address of each device as Gloo writes it, from all processes."""
    return {
        address: name
        for name, addresses in zip(names, exchange.values(connections.addresses()), strict=True)
        for address in addresses
    }


def _own_devices(kinds: set[str], number: int) -> list[str]:
    """Returns the torch devices of one process with `number` devices: its GPUs in turn, or the
    CPU."""
    found = accelerators.find()
    if not found.gpus or kinds == {"CPU"}:
        return ["cpu"]
    if found.problems:
        raise ValueError(f"devices: {'; '.join(found.problems)}; install another wheel")
    return [f"cuda:{each % len(found.gpus)}" for each in range(number)]


def _make_groups(
    program: _core.Program, names: list[str], generation: int, backend: str
) -> tuple[dict[tuple[int, ...], str], dict[str, str], list[int]]:
    """Makes a process group for every set of devices that communicates. Returns the names of this
    process's groups, the addresses of devices, and an empty list of connections."""
    rank = {device: rank for rank, device in enumerate(program.devices)}
    wanted = {_runtime.group_name(group, generation): group for group in program.groups}
    ranks = {name: [rank[device] for device in group] for name, group in wanted.items()}
    made = exchange.make_groups(ranks, backend)
    return {tuple(wanted[name]): group for name, group in made.items()}, _peers(names), []
