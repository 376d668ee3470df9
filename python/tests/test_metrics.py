"""Metrics of a run over HTTP: a strict parser reads them, and they are those of the trainer."""

from __future__ import annotations

import gc
import json
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")
pytest.importorskip("prometheus_client", reason="needs requirements-all.txt")

import torch
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import medley
from medley.cluster import parse_cluster
from medley.run.launch import free_port
from medley_extras import models
from medley_extras.metrics.devices import exposed_share
from medley_extras.report.trace import Event

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 10 us}
"""
Samples = dict[tuple[str, ...], float]
STATES = ("busy", "exposed", "idle")
BYTES = "medley_communication_bytes"


def scrape(port: int) -> Samples:
    """Returns the values by name and labels, read by the strict parser of OpenMetrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
        text = answer.read().decode()
    assert text.endswith("# EOF\n")
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    return found


class Run:
    """A trainer of two devices that serves."""

    def __init__(self, **options: Any) -> None:
        torch.manual_seed(0)
        model, self.batch = models.mlp(batch=8)
        graph = medley.capture(model, self.batch)
        plan = medley.plan(
            graph, parse_cluster(CLUSTER), "data-parallel-proportional", global_batch=8
        )
        self.trainer = medley.Trainer(model, graph, plan, medley.SGD(lr=0.1), **options)


@pytest.fixture
def port() -> int:
    return free_port()


def test_values_are_those_of_the_trainer(port: int) -> None:
    run = Run(metrics_port=port)
    before = scrape(port)
    assert ("medley_step",) not in before and before["medley_samples_total",] == 0
    steps = [run.trainer.step(run.batch) for _ in range(3)]
    found, last = scrape(port), steps[-1]
    records = {
        "step": 3,
        "loss": last.loss,
        "gradient_norm": last.grad_norm,
        "learning_rate": 0.1,
        "step_seconds": last.step_seconds,
        "samples_per_second": 8 / last.step_seconds,
        "tokens_per_second": last.tokens_per_second,
        "samples_total": 24,
        "devices": 2,
        "devices_lost_total": 0,
        "recoveries_total": 0,
    }
    assert {name: found[f"medley_{name}",] for name in records} == pytest.approx(records, rel=1e-12)
    # Of each device: the parts of a step are the whole, and what does not wait computes.
    for device in ("a/0/0", "a/1/0"):
        parts = {s: found["medley_device_seconds_total", device, s] for s in STATES}
        assert sum(parts.values()) == pytest.approx(sum(each.step_seconds for each in steps))
        busy = sum((1 - each.devices[device]) * each.step_seconds for each in steps)
        assert parts["busy"] == pytest.approx(busy) and min(parts.values()) >= 0
        sent = sum(
            int(entry["args"]["bytes"])
            for entry in json.loads(run.trainer.trace_json())["traceEvents"]
            if entry.get("cat") == "all_reduce"
        )
        # Both devices have the same communications in the trace.
        assert found["medley_communication_bytes_total", device, "all_reduce"] == 3 * sent / 2
        memory = run.trainer.memory()[device]["peak"]
        assert found["medley_memory_peak_bytes", device] == memory
    for link, sent in run.trainer.traffic().items():
        assert found["medley_link_bytes_total", link] == 3 * sent


def test_a_port_in_use_is_an_error_with_the_fix() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        message = rf"cannot listen at 127.0.0.1:{port} \(got .* in use\). Choose another port, or 0"
        with pytest.raises(OSError, match=message):
            Run(metrics_port=port)
    with pytest.raises(ValueError, match=r"--metrics-port: not a port \(got 70000, expected 0 to"):
        Run(metrics_port=70000)


def test_a_later_trainer_takes_over_and_the_last_one_frees_the_port(port: int) -> None:
    first = Run(metrics_port=port)
    second = Run(metrics_port=port)
    first.trainer.step(first.batch)
    assert ("medley_step",) not in scrape(port)
    second.trainer.step(second.batch)
    del first
    gc.collect()
    assert scrape(port)["medley_step",] == 1
    del second
    gc.collect()
    with pytest.raises(urllib.error.URLError):
        scrape(port)
    assert Run(metrics_port=port).trainer.steps == 0


def test_other_paths_are_not_found(port: int) -> None:
    run = Run(metrics_port=port)
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=10)
    assert run.trainer.is_first


def test_nothing_is_measured_without_use() -> None:
    run = Run(tune="off")
    run.trainer.step(run.batch)
    events = json.loads(run.trainer.trace_json())["traceEvents"]
    assert not [event for event in events if event["ph"] == "X"]


def test_exposed_is_waiting_while_own_bytes_are_under_way() -> None:
    def event(computes: bool, category: str, start: int, end: int) -> Event:
        return Event("a", computes, category, category, start, end)

    sends = [event(False, "send", 2, 4), event(False, "all_reduce", 3, 6)]
    waits = [event(True, "waiting", 0, 5), event(True, "waiting", 8, 13)]
    assert exposed_share([*waits, *sends, event(True, "forward", 5, 8)]) == 3 / 10
    assert exposed_share(sends) == 0


def test_the_dashboard_asks_for_metrics_that_exist(port: int) -> None:
    run = Run(metrics_port=port)
    run.trainer.step(run.batch)
    served = {name for name, *_ in scrape(port)}
    dashboard = json.loads((ROOT / "examples" / "grafana.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert asked
    optional = {"medley_drift_ratio"}  # of a run with a profile
    for text in asked:
        assert set(re.findall(r"medley_\w+", text)) - optional <= served


@pytest.fixture
def launched(tmp_path: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Is `medley launch --metrics-port` of two processes."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    mesh = {"axes": ["x"], "shape": [2], "devices": ["a/0/0", "a/1/0"]}
    pipeline = {"microbatches": [{"rows": 8, "lengths": [5, 3]}], "stages": [{"mesh": mesh}]}
    plan = {"format": "medley-plan", "version": 1, "global_batch": 8, "pipelines": [pipeline]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "train.py").write_text(
        "import time, torch, medley\n"
        "from medley_extras import models\n"
        "torch.manual_seed(0)\n"
        "model, batch = models.mlp(batch=8)\n"
        "graph = medley.capture(model, batch)\n"
        "plan = medley.plan(graph, 'cluster.yaml')\n"
        "trainer = medley.Trainer(model, graph, plan, medley.SGD(lr=0.1))\n"
        "for _ in range(1000):\n"
        "    trainer.step(batch)\n"
        "    time.sleep(0.05)\n"
    )
    words = ["launch", "--metrics-port", str(port), "plan.json", "train.py"]
    with subprocess.Popen([sys.executable, "-m", "medley", *words], cwd=tmp_path) as process:
        yield process
        process.terminate()
        process.wait(30)


@pytest.mark.slow
def test_the_first_process_of_a_job_serves_for_all(
    launched: subprocess.Popen[bytes], port: int
) -> None:
    found: Samples = {}
    end = time.monotonic() + 120
    while ("medley_device_seconds_total", "a/1/0", "busy") not in found:
        assert launched.poll() is None and time.monotonic() < end
        time.sleep(0.2)
        try:
            found = scrape(port)
        except urllib.error.URLError:
            continue
    for device in ("a/0/0", "a/1/0"):
        assert found["medley_device_seconds_total", device, "busy"] > 0
        sent = [n for key, n in found.items() if key[:2] == (f"{BYTES}_total", device)]
        assert sum(sent) > 0
    assert found["medley_devices",] == 2
