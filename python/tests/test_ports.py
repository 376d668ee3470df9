"""Usual training loops of PyTorch and their ports give the same values under five plans. A script
of tests/ports is such a loop. The script with `_medley` after its name is its port. Both run in
float64 and return the values that the loop prints."""

from __future__ import annotations

import collections
import contextlib
import importlib
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch

import medley
from medley import _core, _testing
from medley.cluster import parse_cluster

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "ports"
PORTED = sorted(path.stem.removesuffix("_medley") for path in FOLDER.glob("*_medley.py"))
QUICK = ["adversarial", "image_classifier", "language_model", "recommender", "siamese"]
STEPS = 4
MOST_LINES = 6  # replaced lines of an original
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 1, device: CPU, devices_per_node: 3}
  - {name: b, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
  - {name: lan, connects: [a, b], bandwidth: 10 Gbit/s, latency: 50 us}
devices:
  half: {based_on: CPU, speed: 0.5}
"""
DEVICES = ["a/0/0", "a/0/1", "a/0/2", "b/0/0"]
Plan = Callable[[medley.Graph, int], str]


def _found(strategy: str) -> Plan:
    def plan(graph: medley.Graph, rows: int) -> str:
        return _plan(graph, "cluster.yaml", strategy, rows).text

    return plan


def _drawn(seed: int, count: int) -> Plan:
    def plan(graph: medley.Graph, rows: int) -> str:
        return _testing.random_plan(graph.core.text(), DEVICES[:count], rows, seed)

    return plan


def _stages(graph: medley.Graph, rows: int) -> str:
    """Returns a pipeline of two stages, cut in the middle, of unequal micro-batches if rows do not
    meet."""
    names = [name for name in graph.core.stable_names() if "~" not in name]
    machines = parse_cluster(CLUSTER)
    for parts in ([3, rows - 3], [rows]):
        for name in names[len(names) // 4 :]:
            stages = [{"mesh": {"devices": [device]}} for device in DEVICES[:2]]
            pipeline = {
                "microbatches": [{"rows": part} for part in parts],
                "stages": [stages[0], stages[1] | {"first": name}],
            }
            head = {"format": "medley-plan", "version": 1, "global_batch": rows}
            text = json.dumps(head | {"pipelines": [pipeline]})
            with contextlib.suppress(ValueError):  # no stage may begin there
                _core.communications(graph.core, _core.Plan(text), machines)
                return text
    raise AssertionError("no cut")


_plan = medley.plan
PLANS: dict[str, Plan] = {
    "one-device": _drawn(0, 1),
    "rows-by-speed": _found("data-parallel-proportional"),
    "hap": _found("hap"),
    "random": _drawn(3, 4),
    "stages": _stages,
}
_wanted: dict[str, list[float]] = {}
_captured: dict[str, list[medley.Graph]] = {}


@pytest.fixture(autouse=True)
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of the scripts is importable, and the current one has a cluster."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))
    with exactness.double_precision():
        yield


def _results(name: str) -> list[float]:
    torch.manual_seed(0)
    found: list[float] = importlib.import_module(name).train(STEPS)
    return found


def _once(port: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets a port reuse the captures of an earlier plan."""
    capture, known, made = medley.capture, _captured.setdefault(port, []), []

    def captured(*args: Any, **kwargs: Any) -> medley.Graph:
        if len(made) == len(known):
            known.append(capture(*args, **kwargs))
        made.append(known[len(made)])
        return made[-1]

    monkeypatch.setattr(medley, "capture", captured)


PORTS = [
    pytest.param(port, marks=[] if port in QUICK else [pytest.mark.slow], id=port)
    for port in PORTED
]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("port", PORTS)
def test_a_port_gives_the_numbers_of_its_original(
    port: str, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned(graph: medley.Graph, cluster: str, global_batch: int) -> medley.Plan:
        return _plan(graph, cluster, plan=medley.Plan(PLANS[plan](graph, global_batch)))

    if port not in _wanted:
        _wanted[port] = _results(port)
    _once(port, monkeypatch)
    monkeypatch.setattr(medley, "plan", planned)
    assert _results(f"{port}_medley") == pytest.approx(_wanted[port], rel=1e-10, abs=1e-12)


def replaced(port: str) -> int:
    """Returns how many lines of the original its port lacks, imports and moved lines apart."""
    lines = [
        collections.Counter(
            line.strip() for line in (FOLDER / f"{name}.py").read_text().splitlines()[1:]
        )
        for name in (port, f"{port}_medley")
    ]
    gone = (lines[0] - lines[1]).items()
    return sum(count for line, count in gone if line and not line.startswith(("from ", "import ")))


@pytest.mark.parametrize("port", PORTED)
def test_a_port_replaces_few_lines(port: str) -> None:
    assert replaced(port) <= MOST_LINES


def test_the_page_has_the_lines_of_every_port() -> None:
    page = (ROOT / "docs" / "howto" / "from_pytorch.md").read_text()
    rows = dict(re.findall(r"^\| \[(\w+)\]\(\S+\) \|.*\| (\d+) \|$", page, re.M))
    assert rows == {port: str(replaced(port)) for port in PORTED}
