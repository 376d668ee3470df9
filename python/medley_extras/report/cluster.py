"""The cluster of a report as a picture: nodes, devices with their types, networks with their
bandwidth. Networks between nodes are bars, with a line to each node that has a port."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from html import escape

from medley.cluster import load_cluster
from medley_extras.report.draw import SIZES, said

BROAD, NARROW = 1100, 380  # pixels: on a desk, on a phone
MOST_NODES = 12  # above, one node of each pool is drawn
MOST_DEVICES = 16  # drawn in a node
DEVICE = (112, 40)
GAP = 10
LINE = 18  # between texts
BAR = 8
STEP = 26  # from bar to bar


@dataclasses.dataclass(frozen=True)
class Network:
    """Links of one name."""

    name: str
    bandwidth: float  # bytes per second of a port, in one direction
    latency: float  # seconds
    inside: bool  # in nodes, else between them
    ports: frozenset[str]  # nodes

    @property
    def text(self) -> str:
        """The name with bandwidth and latency."""
        rate = self.bandwidth / 1e9
        speed = f"{rate:.3g} GB/s per device" if self.inside else f"{8 * rate:.3g} Gbit/s per node"
        return f"{self.name}: {speed}, {self.latency * 1e6:.3g} us"


@dataclasses.dataclass(frozen=True)
class Machine:
    """A node, or one of several nodes of a pool."""

    name: str
    devices: list[tuple[str, str, float]]  # name, type, bytes
    count: int = 1


@dataclasses.dataclass(frozen=True)
class Picture:
    """The cluster as far as it is drawn."""

    machines: list[Machine]
    networks: list[Network]


def look(path: str) -> Picture:
    """Returns the nodes and networks of a cluster file."""
    cluster = load_cluster(path)
    nodes: dict[str, list[int]] = {}
    for number in range(len(cluster.devices)):
        nodes.setdefault(cluster.node(number), []).append(number)
    pools: dict[str, list[str]] = {}
    for node in nodes:
        pools.setdefault(node.rpartition("/")[0], []).append(node)
    shown = list(nodes) if len(nodes) <= MOST_NODES else [names[0] for names in pools.values()]
    machines = []
    for name in shown:
        devices = []
        for number in nodes[name]:
            kind = cluster.kind(number)
            devices.append((cluster.devices[number], kind.name, kind.memory_bytes))
        pool = pools[name.rpartition("/")[0]]
        machines.append(Machine(name, devices, 1 if len(shown) == len(nodes) else len(pool)))

    networks = []
    for network in cluster.networks:
        connects = network.connects or pools
        inside = network.inside_node
        ports = [n for pool in connects for n in pools[pool] if len(nodes[n]) > 1 or not inside]
        if ports:
            networks.append(
                Network(network.name, network.bandwidth, network.latency, inside, frozenset(ports))
            )
    return Picture(machines, networks)


def draw(picture: Picture, fills: Mapping[str, str]) -> str:
    """Returns the picture twice, for broad and for narrow windows. `fills`: colors of the devices
    that the plan uses."""
    return _draw(picture, fills, BROAD, "broad") + _draw(picture, fills, NARROW, "narrow")


def _draw(picture: Picture, fills: Mapping[str, str], width: int, name: str) -> str:
    between = [network for network in picture.networks if not network.inside]
    parts: list[str] = []
    y = GAP
    # The text of a network stands above its bar, the last bar's text lowest.
    bars: list[tuple[Network, int, int]] = []
    for number, network in enumerate(between):
        x = 4 + STEP * number
        parts.append(_text(x, y + 11, network.text))
        bars.append((network, x, y + LINE))
        y += LINE
    left = STEP * len(between) + (24 if between else 0)
    top = y + GAP
    y = top
    drawn = []
    last = dict.fromkeys(range(len(bars)), top)
    for machine in picture.machines:
        text, bottom = _machine(picture, machine, fills, (left, y, width))
        drawn.append(text)
        middle = y + 14
        for number, (network, x, _) in enumerate(bars):
            if machine.name in network.ports:
                at = middle + 6 * number
                drawn.append(f'<path class="link" d="M{x + BAR} {at}H{left}"/>')
                last[number] = at + 4
        y = bottom + GAP
    for number, (_, x, begin) in enumerate(bars):
        parts.append(
            f'<rect class="network" x="{x}" y="{begin}" width="{BAR}" '
            f'height="{last[number] - begin}" rx="3"/>'
        )
    return (
        f'<svg class="cluster {name}" role="img" aria-label="the cluster" width="{width}" '
        f'viewBox="0 0 {width} {y}">{"".join(parts + drawn)}</svg>'
    )


def _machine(
    picture: Picture, machine: Machine, fills: Mapping[str, str], place: tuple[int, int, int]
) -> tuple[str, int]:
    """Returns a node, and the y of its lower edge."""
    left, top, right = place
    inside = [n.text for n in picture.networks if n.inside and machine.name in n.ports]
    heading = machine.name if machine.count == 1 else f"{machine.name}, 1 of {machine.count} nodes"
    parts = [_text(left + GAP, top + 17, heading)]
    y = top + 24
    if inside:
        parts.append(_text(left + GAP, y + 10, "; ".join(inside), "muted"))
        y += LINE
    width, height = DEVICE
    columns = max(1, (right - left - GAP) // (width + GAP))
    shown = machine.devices[:MOST_DEVICES]
    for number, (device, kind, memory) in enumerate(shown):
        x = left + GAP + number % columns * (width + GAP)
        at = y + number // columns * (height + GAP)
        fill = fills.get(device)
        parts.append(
            f"<g><title>{escape(device)}: {escape(kind)}, {said(memory, SIZES)}</title>"
            f'<rect class="device{"" if fill else " unused"}" x="{x}" y="{at}" width="{width}" '
            f'height="{height}" rx="3"/>'
            + (
                f'<rect x="{x}" y="{at}" width="5" height="{height}" fill="{fill}"/>'
                if fill
                else ""
            )
            + _text(x + 11, at + 16, _short(f"{device.rpartition('/')[2]}: {kind}"))
            + _text(x + 11, at + 32, said(memory, SIZES), "muted")
            + "</g>"
        )
    lines = -(-len(shown) // columns)
    used = min(columns, len(shown)) * (width + GAP) + GAP
    y += lines * (height + GAP)
    if len(machine.devices) > len(shown):
        more = len(machine.devices) - len(shown)
        parts.append(_text(left + GAP, y + 8, f"and {more} more devices", "muted"))
        y += LINE
    texts = [heading, *inside]
    box = min(right - left - 1, max(used, 2 * GAP + 7 * max(map(len, texts))))
    frame = f'<rect class="node" x="{left}" y="{top}" width="{box}" height="{y - top}" rx="6"/>'
    return frame + "".join(parts), y


def _short(kind: str) -> str:
    """Returns a name that fits in the picture of a device."""
    return kind if len(kind) <= 14 else f"{kind[:13]}…"


def _text(x: int, y: int, text: str, look: str = "") -> str:
    kind = f' class="{look}"' if look else ""
    return f'<text{kind} x="{x}" y="{y}">{escape(text)}</text>'
