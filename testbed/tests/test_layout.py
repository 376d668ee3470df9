"""The structure built for a cluster. Needs neither root nor tools."""

from __future__ import annotations

import itertools

import pytest

from medley.cluster import parse_cluster
from testbed.comparators.rows import split
from testbed.layout import Flow, Port, lay_out, quotas, speeds
from testbed.network import shaping
from testbed.ranks import environments
from testbed.tests.clusters import FOUR

pytestmark = pytest.mark.testbed

HEAD = "format: medley-cluster\nversion: 1\n"
PAIRS = """
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 2}
  - {name: b, count: 1, device: CPU, devices_per_node: 2}
networks:
  - {name: bus, inside: node, bandwidth: 200 MB/s, latency: 0 us}
  - {name: lan, connects: [a, b], bandwidth: 50 MB/s, latency: 1 ms, trunk: 30 MB/s}
"""


def test_nodes_of_one_device_share_a_bridge_and_no_port() -> None:
    layout = lay_out(parse_cluster(FOUR))
    assert layout.bridges == ("pool0",)
    assert layout.addresses == ("10.77.0.1", "10.77.0.2", "10.77.0.3", "10.77.0.4")
    places = {port.link: (port.namespace, port.interface) for port in layout.ports}
    assert places["lan:fast/0:out"] == ("d0", "eth0")
    assert places["lan:slow/1:in"] == ("", "dev3")
    assert len(places) == 8
    assert all(port.bytes_per_second == 12.5e6 for port in layout.ports)
    # Three others send to it; each of them has a fair share.
    (port,) = (port for port in layout.ports if port.link == "lan:slow/1:in")
    assert port.flows == tuple(Flow(f"10.77.0.{i}", "10.77.0.4") for i in (1, 2, 3))
    assert layout.notes == ("latencies of 50 us: not added, veth pairs have some themselves",)


def test_devices_of_a_node_share_its_port_and_pools_their_trunk() -> None:
    layout = lay_out(parse_cluster(HEAD + PAIRS))
    assert layout.bridges == ("pool0", "pool1", "node0", "node1", "node2")
    by_link = {port.link: port for port in layout.ports}
    up = by_link["lan:a/0:out"]
    assert (up.namespace, up.interface, len(up.flows)) == ("", "up0", 2 * 4)
    trunk = by_link["lan:trunk:down"]
    assert (trunk.interface, trunk.bytes_per_second, len(trunk.flows)) == ("trunk1", 30e6, 2 * 4)
    # A device's output is limited only for its neighbour. Other traffic passes at the port's rate.
    bus = by_link["bus:a/0/1:out"]
    assert (bus.namespace, bus.interface) == ("d1", "eth0")
    assert bus.flows == (Flow("10.77.0.2", "10.77.0.1"),)
    # A latency is added once, at the input of the receiver.
    assert {flow.delay for flow in by_link["lan:b/0:in"].flows} == {1e-3}
    assert {flow.delay for flow in up.flows} == {0.0}


def test_unbuildable_contestant_is_named() -> None:
    three = PAIRS.replace("connects: [a, b]", "connects: [a, b, c]").replace(
        "networks:", "  - {name: c, count: 1, device: CPU, devices_per_node: 1}\nnetworks:"
    )
    with pytest.raises(ValueError, match="trunk between 3 pools, expected two"):
        lay_out(parse_cluster(HEAD + three))


# Two devices of pool a communicate over the lan, and with b over the low-bandwidth network: one
# interface, two ports.
def test_a_node_in_two_networks_has_a_port_for_each() -> None:
    two = """
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 1}
  - {name: b, count: 2, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 50 MB/s, latency: 1 us}
  - {name: thin, connects: [a, b], bandwidth: 5 MB/s, latency: 1 us}
"""
    layout = lay_out(parse_cluster(HEAD + two))
    ports = [port for port in layout.ports if (port.namespace, port.interface) == ("d0", "eth0")]
    assert [(port.link, port.bytes_per_second, len(port.flows)) for port in ports] == [
        ("lan:a/0:out", 50e6, 1),
        ("thin:a/0:out", 5e6, 2),
    ]
    lines = shaping(ports, delays=False)
    lan, thin = (round(rate * 8 * 1514 / 1448) for rate in (50e6, 5e6))
    assert sum(line.startswith("qdisc add dev eth0 root") for line in lines) == 1
    assert [line.split("parent ")[1] for line in lines if line.startswith("class")] == [
        f"1: classid 1:1 htb rate {lan}bit quantum 60000",
        f"1:1 classid 1:3 htb rate {lan}bit ceil {lan}bit quantum 15140",
        f"1: classid 1:2 htb rate {thin}bit quantum 60000",
        f"1:2 classid 1:4 htb rate {thin // 2}bit ceil {thin}bit quantum 15140",
        f"1:2 classid 1:5 htb rate {thin // 2}bit ceil {thin}bit quantum 15140",
    ]
    assert [line.rsplit("dst ")[1] for line in lines if line.startswith("filter")] == [
        "10.77.0.2/32 flowid 1:3",
        "10.77.0.3/32 flowid 1:4",
        "10.77.0.4/32 flowid 1:5",
    ]


def test_a_lone_flow_has_a_token_bucket_and_several_have_a_class_each() -> None:
    alone = Port("lan:a/0:out", "d0", "eth0", 12.5e6, (Flow("10.77.0.1", "10.77.0.2"),))
    rate = round(100e6 * 1514 / 1448)  # programs get the payload rate
    assert shaping([alone], delays=False) == [
        f"qdisc add dev eth0 root tbf rate {rate}bit burst 64k latency 50ms"
    ]
    flows = (Flow("10.77.0.2", "10.77.0.1", 1e-3), Flow("10.77.0.3", "10.77.0.1", 1e-3))
    shared = Port("lan:a/0:in", "", "dev0", 12.5e6, flows)
    lines = shaping([shared], delays=True)
    assert [line for line in lines if line.startswith("filter")] == [
        "filter add dev dev0 parent 1: protocol ip u32 "
        f"match ip src 10.77.0.{i}/32 match ip dst 10.77.0.1/32 flowid 1:{i}"
        for i in (2, 3)
    ]
    assert sum(f"rate {rate // 2}bit ceil {rate}bit" in line for line in lines) == 2
    assert sum("netem delay 1000us" in line for line in lines) == 2
    assert not any("netem" in line for line in shaping([shared], delays=False))


def test_quotas_are_in_proportion_to_the_speeds() -> None:
    relative = speeds(parse_cluster(FOUR))
    assert relative == [1.0, 1.0, 0.5, 0.5]
    made = quotas(relative, [0, 1], 0.6)
    assert [(q.quota_us, q.period_us) for q in made] == [(8000, 20000)] * 2 + [(4000, 20000)] * 2
    # One fast and one slow device on every core.
    assert sorted(q.core for q in made[:2]) == sorted(q.core for q in made[2:]) == [0, 1]


def test_small_quotas_have_longer_periods_and_too_small_ones_are_refused() -> None:
    made = quotas([1.0, 1.0] + [0.5] * 6, [0, 1], 0.6)
    assert {q.period_us for q in made} == {16_667 * 2}
    assert min(q.quota_us for q in made) == 4000
    with pytest.raises(ValueError, match=r"0\.024 of a core, expected at least 0\.04"):
        quotas([1.0] * 50, [0, 1], 0.6)
    with pytest.raises(ValueError, match="share: found 0"):
        quotas([1.0], [0], 0.0)


def test_quota_limits_each_to_its_share_of_one_core() -> None:
    (only,) = quotas([1.0], [0, 1, 2, 3], 0.6)
    assert only.quota_us == 12_000


# No other division has an earlier last finisher.
@pytest.mark.parametrize("weights", [[1.0, 1.0, 0.5], [1.0, 0.3, 0.7], [1.0, 1.0, 1.0]])
def test_rows_are_divided_so_that_the_slowest_finishes_earliest(weights: list[float]) -> None:
    for rows in range(1, 14):
        found = split(rows, weights)
        assert sum(found) == rows
        best = min(
            max(n / w for n, w in zip(lengths, weights, strict=True))
            for lengths in itertools.product(range(rows + 1), repeat=len(weights))
            if sum(lengths) == rows
        )
        assert max(n / w for n, w in zip(found, weights, strict=True)) == pytest.approx(best)


def test_ranks_within_nodes_are_those_of_torchrun() -> None:
    made = environments(["b/0/1", "a/0/0", "b/0/0"], "10.77.0.9")
    assert [m["RANK"] for m in made] == ["0", "1", "2"]
    assert [m["LOCAL_RANK"] for m in made] == ["0", "0", "1"]
    assert [m["LOCAL_WORLD_SIZE"] for m in made] == ["2", "1", "2"]
    assert [m["GROUP_RANK"] for m in made] == ["0", "1", "0"]
    assert {m["MASTER_ADDR"] for m in made} == {"10.77.0.9"}
    assert {m["MALLOC_MMAP_MAX_"] for m in made} == {"0"}
