"""The structure to build for a cluster, as values: interfaces, rates, CPU quotas. Pure functions.

    device 0 --eth0|dev0-- node0 --up0|dn0-- pool0 --trunk0|trunk1-- pool1 --dev2|eth0-- device 2
    device 1 --eth0|dev1--/                          (a node of one device needs no bridge)

Every `a|b` is a veth pair between bridges. The output of each end is shaped there. A link of the
cluster has one direction and is one end. The ports of a node in several networks share theirs.
Names of links come from the core ("lan:fast/0:out").
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from medley.cluster import Cluster

# `tc` counts bytes on the wire: 1448 of 1514 are payload (Ethernet, IP, TCP with time stamps).
# Links are faster by this factor, so that programs get the rates of cluster.yaml.
HEADERS = 1514 / 1448
# Faster links than these the kernel of a small machine does not keep up with: they are not shaped.
FASTEST_SHAPED = 0.5e9  # bytes/s
# Latency of veth pairs in seconds; shorter ones are not shaped.
SHORTEST_SHAPED = 200e-6  # seconds

PERIOD_US = 20_000
SMALLEST_QUOTA_US = 4_000  # shorter ones are not exact
LONGEST_PERIOD_US = 100_000


@dataclasses.dataclass(frozen=True)
class Flow:
    """Traffic from one device to another over a port, with a fair share of the port."""

    source: str  # addresses
    target: str
    delay: float = 0.0  # seconds


@dataclasses.dataclass(frozen=True)
class Port:
    """An end of a veth pair with shaped output."""

    link: str
    namespace: str  # "" for that of the bridges
    interface: str
    bytes_per_second: float
    flows: tuple[Flow, ...]


@dataclasses.dataclass(frozen=True)
class Pair:
    """A veth pair; each end is (namespace, interface, its bridge)."""

    one: tuple[str, str, str]
    other: tuple[str, str, str]


@dataclasses.dataclass(frozen=True)
class Layout:
    """The structure to build. `notes` lists the parts of the cluster that are left out."""

    addresses: tuple[str, ...]  # by device; its namespace is d<device>, its interface eth0
    bridges: tuple[str, ...]
    pairs: tuple[Pair, ...]
    ports: tuple[Port, ...]
    notes: tuple[str, ...]


def lay_out(cluster: Cluster) -> Layout:
    """Returns the layout. Raises ValueError naming an unsupported part."""
    count = len(cluster.devices)
    if count > 250:
        raise ValueError(f"testbed: found {count} devices, expected at most 250")
    addresses = tuple(f"10.77.0.{device + 1}" for device in range(count))
    shape = _Shape(cluster)
    flows: dict[str, list[Flow]] = {}
    latencies: set[float] = set()
    for source in range(count):
        for target in range(count):
            if source == target:
                continue
            links, latency = cluster.path(source, target)
            for link in links:
                # The way into the receiver is where the delay is.
                delay = latency if link.endswith(":in") and latency >= SHORTEST_SHAPED else 0.0
                flows.setdefault(link, []).append(Flow(addresses[source], addresses[target], delay))
            latencies.add(latency)
    ports, notes = [], []
    for link, rate in cluster.links:
        if link not in flows:
            continue
        namespace, interface = shape.place(link)
        if rate > FASTEST_SHAPED:
            notes.append(f"{link}: {rate / 1e9:g} GB/s: not limited, as fast as this machine")
            continue
        ports.append(Port(link, namespace, interface, rate, tuple(flows[link])))
    short = sorted(1e6 * latency for latency in latencies if 0 < latency < SHORTEST_SHAPED)
    if short:
        listed = ", ".join(f"{latency:g} us" for latency in short)
        notes.append(f"latencies of {listed}: not added, veth pairs have some themselves")
    return Layout(addresses, shape.bridges, shape.pairs, tuple(ports), tuple(notes))


class _Shape:
    """The tree of bridges, and where in it each link of the cluster is."""

    def __init__(self, cluster: Cluster) -> None:
        self._devices = {name: number for number, name in enumerate(cluster.devices)}
        nodes: dict[str, list[int]] = {}
        for device in range(len(cluster.devices)):
            nodes.setdefault(cluster.node(device), []).append(device)
        pools = list(dict.fromkeys(name.rsplit("/", 1)[0] for name in nodes))
        used = _networks_in_use(cluster)
        split = _has_trunk(cluster, used, pools)
        self._uplinks: dict[str, tuple[tuple[str, str], tuple[str, str]]] = {}  # [node]: out, in
        bridges = [f"pool{i}" for i in range(len(pools) if split else 1)]
        pairs = []
        if split:
            pairs.append(Pair(("", "trunk0", "pool0"), ("", "trunk1", "pool1")))
        for number, (node, devices) in enumerate(nodes.items()):
            above = bridges[pools.index(node.rsplit("/", 1)[0]) if split else 0]
            if len(devices) > 1:
                bridges.append(f"node{number}")
                pairs.append(Pair(("", f"up{number}", f"node{number}"), ("", f"dn{number}", above)))
                self._uplinks[node] = ("", f"up{number}"), ("", f"dn{number}")
                above = f"node{number}"
            else:
                self._uplinks[node] = self._device_ends(devices[0])
            for device in devices:
                pairs.append(Pair((f"d{device}", "eth0", ""), ("", f"dev{device}", above)))
        self.bridges, self.pairs = tuple(bridges), tuple(pairs)

    def _device_ends(self, device: int) -> tuple[tuple[str, str], tuple[str, str]]:
        return (f"d{device}", "eth0"), ("", f"dev{device}")

    def place(self, link: str) -> tuple[str, str]:
        """Returns namespace and interface of a link's output."""
        _, owner, direction = link.rsplit(":", 2)
        if owner == "trunk":
            return "", "trunk0" if direction == "up" else "trunk1"
        if owner in self._devices:
            ends = self._device_ends(self._devices[owner])
        else:
            ends = self._uplinks[owner]
        return ends[0] if direction == "out" else ends[1]


def _networks_in_use(cluster: Cluster) -> list[str]:
    """Returns the networks over which nodes talk."""
    count = len(cluster.devices)
    used: set[str] = set()
    for source in range(count):
        for target in range(count):
            if cluster.node(source) != cluster.node(target):
                used |= {link.rsplit(":", 2)[0] for link in cluster.path(source, target)[0]}
    return sorted(used)


def _has_trunk(cluster: Cluster, used: list[str], pools: list[str]) -> bool:
    trunk = any(
        link.rsplit(":", 1)[0] in {f"{name}:trunk" for name in used} for link, _ in cluster.links
    )
    if trunk and len(pools) != 2:
        raise ValueError(
            f"testbed: networks: found a trunk between {len(pools)} pools, expected two"
        )
    return trunk


# --- CPU quotas -----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Quota:
    """A device may compute `quota_us` of every `period_us`, on one core."""

    quota_us: int
    period_us: int
    core: int


def speeds(cluster: Cluster) -> list[float]:
    """Returns the speed of every device relative to the fastest."""
    rates = []
    for device in range(len(cluster.devices)):
        rate = cluster.kind(device).sustained("f32")
        assert rate is not None  # the reader of cluster.yaml demands it
        rates.append(rate)
    return [rate / max(rates) for rate in rates]


def quotas(relative: Sequence[float], cores: Sequence[int], share: float) -> list[Quota]:
    """Divides `share` of the cores in proportion to the speeds, with at most one core per device.
    Raises ValueError if the slowest would get less than the kernel's accuracy."""
    if not 0 < share <= 1:
        raise ValueError(f"testbed: share: found {share}, expected more than 0 and at most 1")
    unit = min(share * len(cores) / sum(relative), share / max(relative))
    slowest = unit * min(relative)
    period = max(PERIOD_US, math.ceil(SMALLEST_QUOTA_US / slowest - 1e-6))
    if period > LONGEST_PERIOD_US:
        needed = SMALLEST_QUOTA_US / LONGEST_PERIOD_US
        raise ValueError(
            f"testbed: the slowest device would get {slowest:.3f} of a core, expected at least "
            f"{needed:g}: fewer or less unequal devices, or more cores"
        )
    load = dict.fromkeys(cores, 0.0)
    pinned = [0] * len(relative)
    for device in sorted(range(len(relative)), key=lambda d: -relative[d]):
        core = min(cores, key=lambda c: load[c])
        load[core] += unit * relative[device]
        pinned[device] = core
    return [
        Quota(round(unit * speed * period), period, core)
        for speed, core in zip(relative, pinned, strict=True)
    ]
