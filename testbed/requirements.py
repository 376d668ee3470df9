"""The requirements of the testbed, and those missing on this machine."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

from testbed import quota

UNSHARE = ["unshare", "-n", "-m", "-p", "-f", "--mount-proc", "--kill-child=KILL"]
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
_KINDS = {
    "tbf": "tc qdisc add dev port0 root tbf rate 100mbit burst 64k latency 50ms",
    "htb": "tc qdisc add dev port0 root handle 1: htb && "
    "tc class add dev port0 parent 1: classid 1:2 htb rate 1mbit",
    "u32 filters": "tc qdisc add dev port0 root handle 1: htb && "
    "tc filter add dev port0 parent 1: protocol ip u32 match ip src 10.0.0.1/32 flowid 1:2",
    "pfifo": "tc qdisc add dev port0 root pfifo limit 10",
    "netem": "tc qdisc add dev port0 root netem delay 1ms",
}


@functools.cache
def missing() -> tuple[str, ...]:
    """Returns a sentence for each missing requirement. Empty: the testbed works."""
    if os.geteuid() != 0:
        return ("root: namespaces, traffic shaping and control groups need it",)
    absent = [
        f"{tool}: install the Debian package {package} (scripts/setup.sh --testbed)"
        for tool, package in _TOOLS.items()
        if shutil.which(tool) is None
    ]
    if absent:
        return tuple(absent)
    if why := _cannot_limit():
        absent.append(why)
    found, why = _kernel()
    if why:
        absent.append(why)
    else:
        absent += [
            f"{kind}: this kernel lacks it"
            for kind in _KINDS
            if kind != "netem" and kind not in found
        ]
    return tuple(absent)


def has_delays() -> bool:
    """Returns whether links can have a latency: whether the kernel has netem."""
    return "netem" in _kernel()[0]


def _cannot_limit() -> str:
    controller = quota.find_controller()
    if controller is None:
        return "cpu controller: neither cgroup v1 nor v2 has one here"
    try:
        quota.remove_stale(controller)
        for group in quota.create(controller, 1):
            try:
                quota.limit(group, 8_000, 20_000)
            finally:
                quota.remove(group)
    except OSError as error:
        return f"cpu controller: {controller.root}: {error.strerror}"
    return ""


@functools.cache
def _kernel() -> tuple[frozenset[str], str]:
    """Returns the supported types of `tc`, and the reason why no namespace can be made, or ""."""
    script = [
        "mkdir -p /run/netns && mount -t tmpfs none /run/netns && ip netns add a || exit 1",
        "ip link add hub0 type bridge || exit 1",
        "ip link add port0 type veth peer name eth0 netns a || exit 1",
        *(
            f"({command}) >/dev/null 2>&1 && echo '{kind}'; tc qdisc del dev port0 root 2>/dev/null"
            for kind, command in _KINDS.items()
        ),
        "exit 0",
    ]
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", "\n".join(script)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        return frozenset(), f"namespaces, bridge or veth: {said}"
    return frozenset(done.stdout.splitlines()), ""
