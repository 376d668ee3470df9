"""Builds a layout with `ip` and `tc`, inside a network namespace of its own."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from testbed.layout import HEADERS, Flow, Layout, Port

# Enough for what TCP keeps under way, so that nothing is dropped.
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
    by_namespace: dict[str, list[str]] = {}
    for port in layout.ports:
        by_namespace.setdefault(port.namespace, []).extend(shaping(port, delays))
    for namespace, commands in by_namespace.items():
        batch("tc", namespace, commands)


def shaping(port: Port, delays: bool) -> list[str]:
    """Returns the `tc` commands for a port.

    One flow alone: a token bucket. Several: each has a class with an equal part of the rate, and
    may take what others leave; what is no flow of this port passes freely.
    """
    device = f"dev {port.interface}"
    rate = round(port.bytes_per_second * 8 * HEADERS)
    if len(port.flows) == 1 and not (delays and port.flows[0].delay):
        return [f"qdisc add {device} root tbf rate {rate}bit burst 64k latency 50ms"]
    each = max(8, rate // len(port.flows))
    lines = [
        f"qdisc add {device} root handle 1: htb default 0",
        f"class add {device} parent 1: classid 1:1 htb rate {rate}bit quantum 60000",
    ]
    for number, flow in enumerate(port.flows, start=2):
        lines += [
            f"class add {device} parent 1:1 classid 1:{number:x} htb rate {each}bit "
            f"ceil {rate}bit quantum 15140",
            f"qdisc add {device} parent 1:{number:x} {_leaf(flow, delays)}",
            f"filter add {device} parent 1: protocol ip u32 match ip src {flow.source}/32 "
            f"match ip dst {flow.target}/32 flowid 1:{number:x}",
        ]
    return lines


def _leaf(flow: Flow, delays: bool) -> str:
    if delays and flow.delay:
        return f"netem delay {flow.delay * 1e6:.0f}us limit {_QUEUE}"
    return f"pfifo limit {_QUEUE}"


def run(*command: str) -> None:
    """Runs a command; raises OSError with what it says."""
    _check(command, subprocess.run(command, capture_output=True, text=True, timeout=30))


def batch(tool: str, namespace: str, lines: Sequence[str]) -> None:
    """Runs many commands of `ip` or `tc` at once, in a namespace."""
    command = [tool, *(["-n", namespace] if namespace else []), "-batch", "-"]
    text = "\n".join(lines) + "\n"
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=30)
    _check(command, done)


def _check(command: Sequence[str], done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if not line.startswith("Warning:")]
        raise OSError(f"testbed: {' '.join(command)}: {'; '.join(said)}")
