"""The cluster that `medley probe` writes from its measurements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import warm_start
from medley import cli
from medley.cluster import parse_cluster
from medley_extras import probe
from medley_extras.probe import Device, Link, cluster_text, kinds_of, pairs_of, pools_of


def device(host: str, rate: float = 1e12, model: str = "A") -> Device:
    return Device(host, model, 16 << 30, {"f32": rate, "bf16": 2 * rate}, 1e11, 5e-6)


# Two fast machines of two devices, and a slow one of one.
DEVICES = [device("a"), device("a", 1.1e12), device("b"), device("b"), device("c", 5e11)]


def test_devices_that_are_nearly_equal_are_of_one_kind() -> None:
    kinds, numbers = kinds_of(DEVICES)
    assert numbers == [0, 0, 0, 0, 1]
    assert kinds[0].sustained["f32"] == 1e12
    assert kinds_of([device("a"), device("a", model="B")])[1] == [0, 1]


def test_equal_machines_are_a_pool() -> None:
    pools = pools_of(DEVICES, kinds_of(DEVICES)[1])
    assert [(pool.name, pool.kind, pool.nodes) for pool in pools] == [
        ("pool0", 0, [[0, 1], [2, 3]]),
        ("pool1", 1, [[4]]),
    ]
    # Inside a node, between two of a pool, between the pools.
    assert pairs_of(pools) == [(0, 1), (0, 2), (0, 4)]


def test_the_cluster_has_what_was_measured() -> None:
    links = [Link(0, 1, 8e9, 5e-6), Link(0, 2, 1.25e8, 50e-6), Link(0, 4, 1.2e8, 52e-6)]
    cluster = parse_cluster(cluster_text(DEVICES, links))
    assert cluster.devices == [
        "pool0/0/0", "pool0/0/1", "pool0/1/0", "pool0/1/1", "pool1/0/0",
    ]  # fmt: skip
    assert cluster.kind(0).sustained("bf16") == pytest.approx(2e12)
    assert cluster.kind(4).sustained("f32") == pytest.approx(5e11)
    assert cluster.kind(4).launch_latency == pytest.approx(5e-6)
    assert cluster.kind(4).memory_bytes == 16 << 30


def test_unequal_links_are_networks_of_their_own() -> None:
    links = [Link(0, 1, 8e9, 5e-6), Link(0, 2, 1.25e9, 50e-6), Link(0, 4, 1e7, 52e-6)]
    text = cluster_text(DEVICES, links)
    parse_cluster(text)
    assert "connects: [pool0], bandwidth: 1.25 GB/s" in text
    assert "connects: [pool0, pool1], bandwidth: 10 MB/s" in text


def test_latency_is_that_between_devices_that_compute() -> None:
    links = [Link(0, 1, 8e9, 5e-6), Link(0, 2, 1.25e8, 50e-6, 2e-3), Link(0, 4, 1.2e8, 70e-6, 4e-3)]
    text = cluster_text(DEVICES, links)
    parse_cluster(text)
    assert "latency: 5 us}\n" in text  # not measured between busy ones
    assert "latency: 3000 us}\n    # between idle devices 60 us\n" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_a_window_takes_means() -> None:
    # Two of three calls need no time, as in a quota.
    seconds = iter([0.0, 0.0, *[0.0, 0.0, 0.03] * 100])

    def run() -> None:
        time.sleep(next(seconds))

    cpu = torch.device("cpu")
    assert probe.median_seconds(run, cpu, window=0.06) >= 0.0099
    assert probe.median_seconds(run, cpu) < 0.0099


def test_measures_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setattr(probe, "_ENOUGH", 0.005)
    path = tmp_path / "cluster.yaml"
    monkeypatch.setattr(sys, "argv", ["medley", "probe", "-o", str(path), "--json"])
    assert cli.main() == 0
    figures = json.loads(capsys.readouterr().out)
    cluster = parse_cluster(path.read_text())
    assert len(cluster.devices) == len(figures["devices"]) == max(1, torch.cuda.device_count())
    assert cluster.kind(0).sustained("f32") > 1e6
    assert cluster.kind(0).memory_bandwidth > 1e6
    assert not list(tmp_path.glob(".*"))


def test_two_processes_measure_the_link_between_them(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import sys\nfrom medley_extras import probe\nfrom medley.cli import main\n"
        "probe._ENOUGH = 0.005\nsys.exit(main())\n"
    )
    path = tmp_path / "cluster.yaml"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        warm_start.command([*command, "probe", "-o", str(path), "--json"]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["links"][0]["bandwidth"] > 1e6
    assert figures["links"][0]["latency"] > 0
    assert figures["links"][0]["busy_latency"] > 0
    assert len(parse_cluster(path.read_text()).devices) == 2
