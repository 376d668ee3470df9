"""`medley probe`: measures devices and links, and writes them as a cluster.yaml.

One process measures the devices of its machine. Under torchrun every process measures its own
device in parallel with the others, as in a run, and pairs of processes the links between them.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import datetime
import functools
import json
import math
import os
import platform
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist

from medley.cli.verb import print_next
from medley.cluster import parse_cluster
from medley.files import write_atomically
from medley.profiling.link_times import Links, own_device, window_here
from medley.run import exchange, job

_DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}
_ENOUGH = 0.2  # seconds of measurement per value
_TIMEOUT = datetime.timedelta(seconds=60)
_EQUAL = 0.2  # relative difference of values of one device type
_BUSY = 0.01  # seconds that CPUs compute before a message, as in a step


@dataclasses.dataclass
class Device:
    """The measured values of one process's device."""

    host: str
    model: str  # "NVIDIA H200", "AMD EPYC 7B13"
    memory: int  # bytes
    sustained: dict[str, float]  # flop/s by dtype
    memory_bandwidth: float  # bytes/s
    launch_latency: float  # seconds

    def is_like(self, other: Device) -> bool:
        """Returns whether one device type describes both."""
        is_near = functools.partial(math.isclose, rel_tol=_EQUAL)
        rates = self.sustained["f32"], other.sustained["f32"]
        return self.model == other.model and is_near(self.memory, other.memory) and is_near(*rates)


@dataclasses.dataclass(frozen=True)
class Link:
    """A link between two devices, by rank."""

    first: int
    second: int
    bandwidth: float  # bytes/s
    latency: float  # seconds, between idle devices
    busy_latency: float = 0.0  # between devices that compute before each message; 0: not measured


# --- one device -----------------------------------------------------------------------------------


def measure_device(device: torch.device, sharing: int = 1) -> Device:
    """Measures a device. `sharing` processes use the memory of its machine."""
    cuda = device.type == "cuda"
    if cuda:
        facts = torch.cuda.get_device_properties(device)
        model, memory = facts.name, facts.total_memory
    else:
        model, memory = _processor(), _host_memory() // sharing
    window = 0.0 if cuda else window_here()
    rates = {name: _matmul_rate(device, dtype, window) for name, dtype in _DTYPES.items()}
    return Device(
        host=_host(),
        model=model,
        memory=int(memory),
        sustained={name: rate for name, rate in rates.items() if rate > 0},
        memory_bandwidth=_copy_rate(device, min(256 << 20, int(memory) // 16), window),
        launch_latency=_launch_latency(device, window),
    )


def median_seconds(run: Callable[[], object], device: torch.device, window: float = 0.0) -> float:
    """Returns the median time in seconds of the calls of `run` that fit into the time per value.
    `window`: takes the means of the calls of so many seconds, on a CPU under a quota."""
    for _ in range(2):  # libraries and threads start
        run()
    times: list[float] = []
    fewest = 3 if window else 5
    begin = time.perf_counter()
    while len(times) < fewest or (time.perf_counter() - begin < _ENOUGH and len(times) < 1000):
        start, calls, passed = time.perf_counter(), 0, -1.0
        while passed < window:
            run()
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            calls += 1
            passed = time.perf_counter() - start
        times.append(passed / calls)
    return statistics.median(times)


def _matmul_rate(device: torch.device, dtype: torch.dtype, window: float) -> float:
    """Returns flop/s of the largest square matmul that takes little time, or 0 without a kernel for
    the dtype."""
    rate = 0.0
    for size in (256, 512, 1024, 2048, 4096, 8192):
        try:
            left = torch.rand(size, size, device=device).to(dtype)
            product = functools.partial(torch.mm, left, left)
            seconds = median_seconds(product, device, window)
        except RuntimeError:
            return rate
        rate = max(rate, 2 * size**3 / seconds)
        if 8 * seconds > _ENOUGH:  # the next one is too slow
            break
    return rate


def _copy_rate(device: torch.device, size: int, window: float) -> float:
    source = torch.zeros(size // 4, device=device)
    target = torch.empty_like(source)
    return 2 * size / median_seconds(lambda: target.copy_(source), device, window)


def _launch_latency(device: torch.device, window: float) -> float:
    one = torch.zeros(1, device=device)

    def launches() -> None:
        for _ in range(100):
            one.add_(1)

    return median_seconds(launches, device, window) / 100


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def _host() -> str:
    """Returns the name of this machine. Different machines may have the same host name."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()} {boot.read_text().strip() if boot.exists() else ''}"


def _host_memory() -> int:
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            total = min(total, int(Path(limit).read_text()))
    return total


# --- links ----------------------------------------------------------------------------------------


class _Pair:
    """Two processes that exchange bytes, while all others wait."""

    def __init__(self, device: torch.device) -> None:
        cuda = device.type == "cuda"
        self.device = device
        self.rank = dist.get_rank()
        self.group = dist.new_group(backend="nccl" if cuda else "gloo", timeout=_TIMEOUT)
        self.sync = dist.new_group(backend="gloo", timeout=_TIMEOUT) if cuda else self.group

    def measure(self, first: int, second: int) -> Link:
        """Returns the link, the same in all processes."""
        result = torch.zeros(2, dtype=torch.float64)
        if self.rank in (first, second):
            other = second if self.rank == first else first
            small = torch.zeros(2, device=self.device)
            latency = self._exchange(small, other, first, 20) / 2
            for size, repetitions in ((1 << 20, 1), (16 << 20, 3)):
                data = torch.zeros(size // 4, device=self.device)
                seconds = self._exchange(data, other, first, repetitions)
                if seconds >= 0.5:
                    break
            result[0] = size / max(1e-9, seconds / 2 - latency)
            result[1] = latency
        dist.broadcast(result, src=first, group=self.sync)
        return Link(first, second, float(result[0]), float(result[1]))

    def _exchange(self, data: torch.Tensor, other: int, first: int, repetitions: int) -> float:
        """Returns the median round-trip time in seconds."""
        times = []
        for _ in range(repetitions + 1):
            begin = time.perf_counter()
            if self.rank == first:
                dist.send(data, other, group=self.group)
                dist.recv(data, other, group=self.group)
            else:
                dist.recv(data, other, group=self.group)
                dist.send(data, other, group=self.group)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            times.append(time.perf_counter() - begin)
        return statistics.median(times[1:])


def with_busy_latencies(links: Sequence[Link], this: job.Job) -> list[Link]:
    """Returns the links of CPUs with latencies between devices that compute: a message also waits
    for the processor, and takes it."""
    wanted = [("all_gather", [each.first, each.second], [8, 8], _BUSY) for each in links]
    times = Links(this, wanted)
    found = [times.time(*each) for each in wanted]
    replace = dataclasses.replace
    return [replace(link, busy_latency=each) for link, each in zip(links, found, strict=True)]


# --- the cluster ----------------------------------------------------------------------------------


@dataclasses.dataclass
class Pool:
    """Equal nodes: the ranks of each."""

    name: str
    kind: int
    nodes: list[list[int]]


def kinds_of(devices: Sequence[Device]) -> tuple[list[Device], list[int]]:
    """Returns one device per type, with the medians of its devices, and the type of each device."""
    members: list[list[Device]] = []
    numbers = []
    for device in devices:
        number = next((i for i, own in enumerate(members) if own[0].is_like(device)), len(members))
        if number == len(members):
            members.append([])
        members[number].append(device)
        numbers.append(number)

    def middle(own: list[Device]) -> Device:
        return dataclasses.replace(
            own[0],
            memory=min(each.memory for each in own),
            sustained={
                name: statistics.median(each.sustained.get(name, 0.0) for each in own)
                for name in own[0].sustained
            },
            memory_bandwidth=statistics.median(each.memory_bandwidth for each in own),
            launch_latency=statistics.median(each.launch_latency for each in own),
        )

    return [middle(own) for own in members], numbers


def pools_of(devices: Sequence[Device], kinds: Sequence[int]) -> list[Pool]:
    """Returns nodes of equal type and number of devices as pools, in the order of the ranks. A
    machine with several types is one node per type."""
    nodes: dict[tuple[str, int], list[int]] = {}
    for rank, (device, kind) in enumerate(zip(devices, kinds, strict=True)):
        nodes.setdefault((device.host, kind), []).append(rank)
    pools: dict[tuple[int, int], Pool] = {}
    for (_, kind), ranks in nodes.items():
        key = (kind, len(ranks))
        pools.setdefault(key, Pool(f"pool{len(pools)}", kind, [])).nodes.append(ranks)
    return list(pools.values())


def pairs_of(pools: Sequence[Pool]) -> list[tuple[int, int]]:
    """Returns the pairs of ranks to measure: one within a node of each pool, one between two nodes
    of each pool, and one between each pair of pools."""
    pairs = []
    for number, pool in enumerate(pools):
        if len(pool.nodes[0]) > 1:
            pairs.append((pool.nodes[0][0], pool.nodes[0][1]))
        if len(pool.nodes) > 1:
            pairs.append((pool.nodes[0][0], pool.nodes[1][0]))
        pairs += [(pool.nodes[0][0], other.nodes[0][0]) for other in pools[number + 1 :]]
    return pairs


def _quantity(value: float, unit: str) -> str:
    for prefix, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= factor and not (unit == "flop/s" and prefix == "k"):
            return f"{value / factor:.4g} {prefix}{unit}"
    return f"{value:.4g} {unit}"


def _network(name: str, where: str, links: Sequence[Link]) -> str:
    bandwidth = statistics.median(link.bandwidth for link in links)
    idle = statistics.median(link.latency for link in links)
    latency = max(idle, statistics.median(link.busy_latency for link in links))
    comment = f"\n    # between idle devices {idle * 1e6:.4g} us" if latency > idle else ""
    return (
        f"  - {{name: {name}, {where}, bandwidth: {_quantity(bandwidth, 'B/s')}, "
        f"latency: {latency * 1e6:.4g} us}}{comment}"
    )


def _networks(pools: Sequence[Pool], links: Sequence[Link]) -> list[str]:
    node_of = {rank: (pool.name, number) for pool in pools
               for number, node in enumerate(pool.nodes) for rank in node}  # fmt: skip
    lines = []
    inside = [link for link in links if node_of[link.first] == node_of[link.second]]
    for name in [pool.name for pool in pools]:
        if own := [link for link in inside if node_of[link.first][0] == name]:
            lines.append(_network(f"inside-{name}", f"inside: node, pools: [{name}]", own))
    between = [link for link in links if node_of[link.first] != node_of[link.second]]
    if not between:
        return lines
    rates = [link.bandwidth for link in between]
    if max(rates) <= (1 + _EQUAL) * min(rates):
        names = ", ".join(pool.name for pool in pools)
        return [*lines, _network("lan", f"connects: [{names}]", between)]
    for link in between:
        ends = sorted({node_of[rank][0] for rank in (link.first, link.second)})
        lines.append(_network("-".join(["lan", *ends]), f"connects: [{', '.join(ends)}]", [link]))
    return lines


def cluster_text(devices: Sequence[Device], links: Sequence[Link]) -> str:
    """Returns the cluster.yaml of the measurement."""
    kinds, numbers = kinds_of(devices)
    pools = pools_of(devices, numbers)
    lines = ["# Measured by medley probe.", "format: medley-cluster", "version: 1", "nodes:"]
    for pool in pools:
        lines.append(
            f"  - {{name: {pool.name}, count: {len(pool.nodes)}, device: kind{pool.kind}, "
            f"devices_per_node: {len(pool.nodes[0])}}}"
        )
    networks = _networks(pools, links)
    if networks:
        lines += ["networks:", *networks]
    lines.append("devices:")
    for number, kind in enumerate(kinds):
        rates = ", ".join(
            f"{name}: {_quantity(rate, 'flop/s')}" for name, rate in kind.sustained.items()
        )
        lines += [
            f"  kind{number}:  # {kind.model}",
            f"    sustained: {{{rates}}}",
            f"    memory: {kind.memory / 2**30:.4g} GiB",
            f"    memory_bandwidth: {_quantity(kind.memory_bandwidth, 'B/s')}",
            f"    launch_latency: {kind.launch_latency * 1e6:.4g} us",
        ]
    return "\n".join(lines) + "\n"


def measure() -> tuple[list[Device], list[Link]]:
    """Returns the devices of the job, or of this machine, and the links between them."""
    this = exchange.join()
    if this is None:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        names = [f"cuda:{number}" for number in range(count)] or ["cpu"]
        return [measure_device(torch.device(name)) for name in names], []
    device = torch.device(own_device(this))
    own = measure_device(device, exchange.texts(_host()).count(_host()))
    devices = [Device(**each) for each in exchange.values(dataclasses.asdict(own))]
    pair = _Pair(device)
    pools = pools_of(devices, kinds_of(devices)[1])
    links = [pair.measure(*each) for each in pairs_of(pools)]
    return devices, links if device.type == "cuda" else with_busy_latencies(links, this)


def prepare(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the verb."""
    parser.add_argument("-o", "--output", default="cluster.yaml", help="write the cluster here")


def command(arguments: argparse.Namespace) -> int:
    """Measures, writes the cluster and prints the results. Returns the exit code."""
    from rich.console import Console

    output, as_json = Path(arguments.output), arguments.json
    this = job.current()
    first = this is None or this.rank == 0
    console = Console(stderr=True)
    shows = first and not as_json and console.is_terminal
    with console.status("measuring devices and links ...") if shows else contextlib.nullcontext():
        devices, links = measure()
    if not first:
        return 0
    text = cluster_text(devices, links)
    cluster = parse_cluster(text, str(output))
    write_atomically(output, text)
    pools = pools_of(devices, kinds_of(devices)[1])
    ranks = [rank for pool in pools for node in pool.nodes for rank in node]
    if as_json:
        figures = {
            "cluster": str(output),
            "devices": [dataclasses.asdict(device) for device in devices],
            "links": [dataclasses.asdict(link) for link in links],
            "names": dict(zip(map(str, ranks), cluster.devices, strict=True)),
        }
        print(json.dumps(figures, indent=2))
    else:
        print(text, end="")
        print(f"{output}: {len(devices)} devices, {len(links)} links measured")
        words = ["medley", "plan", "g.graph", str(output), "--global-batch", "64"]
        print_next([*words, "-o", "plan.json"])
    if ranks != sorted(ranks):
        order = ", ".join(map(str, ranks))
        console.print(f"start processes in the order of these ranks: {order}", highlight=False)
    return 0
