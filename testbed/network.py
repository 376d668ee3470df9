"""Builds a layout with `ip` and `tc`, inside a network namespace of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from testbed.layout import HEADERS, Flow, Layout, Port

# Enough for TCP's data in flight, so that no packet is dropped.
_QUEUE = 10_000  # packets


def build(layout: Layout, delays: bool) -> None:
    """Raises OSError with the words of `ip` or `tc`. `delays`: the kernel has netem."""
    for device in range(len(layout.addresses)):
        run("ip", "netns", "add", f"d{device}")
    lines = [f"link add {bridge} type bridge" for bridge in layout.bridges]
    for pair in layout.pairs:
        (one_space, one, _), (_, other, _) = pair.one, pair.other
        inside = f" netns {one_space}" if one_space else ""
        lines.append(f"link add {other} type veth peer name {one}{inside}")
    for pair in layout.pairs:
        for namespace, interface, bridge in (pair.one, pair.other):
            if not namespace:
                lines.append(f"link set {interface} master {bridge} up")
    lines += [f"link set {bridge} up" for bridge in layout.bridges]
    batch("ip", "", lines)
    for device, address in enumerate(layout.addresses):
        batch(
            "ip",
            f"d{device}",
            ["link set lo up", f"addr add {address}/24 dev eth0", "link set eth0 up"],
        )
    by_interface: dict[tuple[str, str], list[Port]] = {}
    for port in layout.ports:
        by_interface.setdefault((port.namespace, port.interface), []).append(port)
    by_namespace: dict[str, list[str]] = {}
    for (namespace, _), ports in by_interface.items():
        by_namespace.setdefault(namespace, []).extend(shaping(ports, delays))
    for namespace, commands in by_namespace.items():
        batch("tc", namespace, commands)


def shaping(ports: Sequence[Port], delays: bool) -> list[str]:
    """Returns the `tc` commands for the ports of one interface, one for each network of a node. A
    single flow has a token bucket. If there are several, each has a class with an equal part of its
    port's rate and may use the remainder of the port. Other traffic passes freely."""
    device = f"dev {ports[0].interface}"
    flows = [flow for port in ports for flow in port.flows]
    if len(flows) == 1 and not (delays and flows[0].delay):
        return [f"qdisc add {device} root tbf rate {_rate(ports[0])}bit burst 64k latency 50ms"]
    lines = [f"qdisc add {device} root handle 1: htb default 0"]
    number = len(ports)
    for parent, port in enumerate(ports, start=1):
        rate = _rate(port)
        each = max(8, rate // len(port.flows))
        lines.append(
            f"class add {device} parent 1: classid 1:{parent:x} htb rate {rate}bit quantum 60000"
        )
        for flow in port.flows:
            number += 1
            lines += [
                f"class add {device} parent 1:{parent:x} classid 1:{number:x} htb rate {each}bit "
                f"ceil {rate}bit quantum 15140",
                f"qdisc add {device} parent 1:{number:x} {_leaf(flow, delays)}",
                f"filter add {device} parent 1: protocol ip u32 match ip src {flow.source}/32 "
                f"match ip dst {flow.target}/32 flowid 1:{number:x}",
            ]
    return lines


def _rate(port: Port) -> int:
    return round(port.bytes_per_second * 8 * HEADERS)


def _leaf(flow: Flow, delays: bool) -> str:
    if delays and flow.delay:
        return f"netem delay {flow.delay * 1e6:.0f}us limit {_QUEUE}"
    return f"pfifo limit {_QUEUE}"


def run(*command: str) -> None:
    """Runs a command. Raises OSError with its output."""
    _check(command, subprocess.run(command, capture_output=True, text=True, timeout=30))


def batch(tool: str, namespace: str, lines: Sequence[str]) -> None:
    """Runs many commands of `ip` or `tc` together, in a namespace."""
    command = [tool, *(["-n", namespace] if namespace else []), "-batch", "-"]
    text = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)
    _check(command, done)


def _check(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if not line.startswith("Warning:")]
        raise OSError(f"testbed: {' '.join(command)}: {'; '.join(said)}")
