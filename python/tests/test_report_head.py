"""The head of a report, with the rank of a plan, the cause and the distance from the bound. The
picture of the cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from medley_extras.report import cluster, headline
from medley_extras.report.collect import Content, model_of
from medley_extras.report.trace import Trace

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: COUNT, device: CPU, devices_per_node: 2}
  - {name: slow, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
  - {name: lan, connects: [fast, slow], bandwidth: 25 Gbit/s, latency: 20 us, trunk: 10 Gbit/s}
devices:
  half: {based_on: CPU, speed: 0.5, memory: 8 GiB}
"""


def content(*rows: dict[str, Any], step: int = 1000, **more: Any) -> Content:
    """Returns the content of a plan of `ours` on two devices that compute 90 % of the step."""
    return Content(
        files={"graph": "<g>.graph", "cluster": "c.yaml"},
        plan={"strategy": "ours"},
        explained={},
        simulated={
            "step_nanoseconds": step,
            "devices": [{"computes_nanoseconds": 0.9 * step}] * 2,
            "links": [{"link": "lan:a:out", "bytes": 1024}, {"link": "lan:a:in", "bytes": 1024}],
            **more,
        },
        memory=[],
        predicted=Trace([], {}),
        compared={"lower_bound_ns": 800, "strategies": list(rows)} if rows else None,
    )


def strategy(name: str, step: int, utilisation: float = 0.9, traffic: int = 1024) -> dict[str, Any]:
    return {
        "strategy": name,
        "step_ns": step,
        "mean_utilisation": utilisation,
        "traffic_bytes": traffic,
    }


def test_a_plan_that_wins_by_busier_devices() -> None:
    even = strategy("data-parallel-even", 1500, utilisation=0.6)
    found = headline.reason(content(strategy("ours", 1000), even, strategy("harp", 1100)))
    assert found == (
        "It has the shortest step of 3 strategies: 1.10x faster than harp (1.1 us) and 1.50x "
        "faster than data-parallel-even (1.5 us). It wins because its devices are idle for less "
        "of the step: 10 % on average, with data-parallel-even 40 %. The step is 25 % above the "
        "lower bound of the search, 800 ns."
    )


def test_a_plan_that_wins_by_less_traffic() -> None:
    found = headline.reason(content(strategy("ours", 1000), strategy("harp", 1100, traffic=4096)))
    assert "It wins because it sends less: 1 KiB per step, with harp 4 KiB." in found


def test_a_plan_that_loses_names_the_winner() -> None:
    found = headline.reason(content(strategy("ours", 1000), strategy("harp", 500)))
    assert found.startswith(
        "harp is 2.00x faster than this plan, 500 ns per step: plan with `--strategy harp`."
    )
    assert "wins" not in found


def test_plans_of_the_same_step_are_named() -> None:
    rows = [strategy("ours", 1000), strategy("hap", 1000), strategy("megatron", 1200)]
    assert headline.reason(content(*rows)).startswith(
        "It has the shortest step of 3 strategies, with hap: 1.20x faster than megatron (1.2 us)."
    )
    assert headline.reason(content(*rows[:2])).startswith(
        "It has the shortest step of 2 strategies, with hap. The step is"
    )


def test_misfits_are_no_rivals() -> None:
    misfit = {"strategy": "megatron", "infeasible": "needs 1 GiB"}
    assert headline.reason(content(misfit)).startswith("No other strategy fits.")


def test_the_banner_is_there_until_all_ops_are_measured() -> None:
    partly = content(ops_by_source={"analytic": 1, "profile": 1234})
    assert "1,234 of 1,235 ops with measured times." in headline.banner(partly)
    assert "medley profile &lt;g&gt;.graph c.yaml" in headline.banner(partly)
    assert headline.banner(content(ops_by_source={"profile": 1235})) == ""


def test_the_model_is_that_of_the_graph() -> None:
    assert model_of('medley-graph 1\ngraph "GPT"\nsymbols b\n') == "GPT"
    assert headline.title("GPT", 1, 3_491_381) == (
        "Training plan: GPT on 1 device, 3.49 ms per step"
    )


def test_the_picture_has_all_nodes_and_the_figures_of_networks(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER.replace("COUNT", "1"))
    picture = cluster.look(str(path))
    assert [(m.name, len(m.devices), m.count) for m in picture.machines] == [
        ("fast/0", 2, 1),
        ("slow/0", 1, 1),
    ]
    assert [(n.text, sorted(n.ports)) for n in picture.networks] == [
        ("bus: 8 GB/s per device, 5 us", ["fast/0"]),
        ("lan: 25 Gbit/s per node, 20 us", ["fast/0", "slow/0"]),
    ]
    svg = cluster.draw(picture, {"fast/0/0": "#123456", "slow/0/0": "#abcdef"})
    assert svg.count("<svg") == 2
    assert svg.count('class="device unused"') == 2 and svg.count("#123456") == 2
    assert len(re.findall('class="link"', svg)) == 4


def test_of_many_nodes_the_picture_has_one_a_pool(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER.replace("COUNT", "40"))
    picture = cluster.look(str(path))
    assert [(machine.name, machine.count) for machine in picture.machines] == [
        ("fast/0", 40),
        ("slow/0", 1),
    ]
    svg = cluster.draw(picture, {})
    assert "fast/0, 1 of 40 nodes" in svg and len(svg) < 20_000


def test_a_pool_per_node_is_drawn_without_a_search_for_paths(tmp_path: Path) -> None:
    names = [f"n{i}" for i in range(128)]
    nodes = [
        f"  - {{name: {name}, count: 1, device: CPU, devices_per_node: 8}}\n" for name in names
    ]
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "format: medley-cluster\nversion: 1\nnodes:\n" + "".join(nodes) + "networks:\n"
        "  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}\n"
        f"  - {{name: lan, connects: [{', '.join(names)}], bandwidth: 25 Gbit/s, latency: 20 us}}\n"
    )
    picture = cluster.look(str(path))
    assert len(picture.machines) == 128
    assert [(n.text, len(n.ports)) for n in picture.networks] == [
        ("bus: 8 GB/s per device, 5 us", 128),
        ("lan: 25 Gbit/s per node, 20 us", 128),
    ]
