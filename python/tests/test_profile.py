"""Profiles: the measurements, their number, and their reuse by a later run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import medley
import warm_start
from medley import _core, _runtime, cli
from medley.cluster import Cluster, parse_cluster
from medley.graph import Graph
from medley.profiling.link_times import wanted_collectives, window_here
from medley.profiling.profiler import Profiler, Truth, executor_name, pieces_of, wanted_ops
from medley.run import job
from medley.trainer import Trainer
from medley_extras import models
from medley_extras.models import mlp
from medley_extras.profile import read_seconds

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 1}
  - {name: slow, count: 2, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 1 Gbit/s, latency: 50 us}
devices:
  half: {based_on: CPU, speed: 0.5}
"""
ONE = """
format: medley-cluster
version: 1
nodes:
  - {name: only, count: 1, device: CPU, devices_per_node: 1}
"""


@pytest.fixture(scope="module")
def graph() -> Graph:
    model, batch = mlp()
    return medley.capture(model, batch)


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    return parse_cluster(CLUSTER)


def measure(graph: Graph, cluster: Cluster, path: Path, truth: Truth | None, **options: Any) -> Any:
    """Profiles. Returns the outcome and the content of the file."""
    wanted = wanted_ops([graph], cluster, global_batch=32, grid=truth is not None)
    profiler = Profiler(wanted, cluster, path, truth, **options)
    outcome = profiler.run(None, lambda what, done, of: None)
    return outcome, json.loads(path.read_text())


def times(profile: Any) -> dict[tuple[str, str], int]:
    return {
        (kind, row["op"]): row["time_ns"] for kind, rows in profile["ops"].items() for row in rows
    }


def test_repeated_layers_are_measured_once(cluster: Cluster) -> None:
    def counts(layers: int) -> tuple[int, int]:
        model, batch = models.gpt(layers=layers)
        wanted = _core.WantedOps(cluster)
        wanted.add_graph(medley.capture(model, batch).core, 4)
        session = _core.MeasuringSession(wanted, "", "", "test")
        return session.seen, session.unique

    (seen_1, unique_1), (seen_2, unique_2) = counts(1), counts(2)
    assert unique_1 == unique_2
    assert seen_2 > 1.3 * seen_1 > 1.3 * unique_1


def test_times_are_those_of_the_emulation(graph: Graph, cluster: Cluster, tmp_path: Path) -> None:
    plain, rough = (
        measure(graph, cluster, tmp_path / f"{spread}.json", Truth(3, spread))[1]
        for spread in (0.0, 0.3)
    )
    assert rough["executor"] == "emulated seed 3 spread 0.3"
    expected, found = times(plain), times(rough)
    assert expected.keys() == found.keys()
    ratios = [found[key] / expected[key] for key in found]
    assert all(0.69 < ratio < 1.31 for ratio in ratios)
    assert max(ratios) - min(ratios) > 0.1
    assert {kind for kind, _ in found} == {"CPU", "half"}
    assert len(rough["collectives"]) > 20
    assert rough["overlaps"] == {"CPU": 1, "half": 1}


def test_a_budget_ends_it_and_resuming_goes_on(
    graph: Graph, cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "p.json"
    wanted = wanted_ops([graph], cluster, global_batch=32)
    first = Profiler(wanted, cluster, path, Truth()).run(1e-9, lambda what, done, of: None)
    assert first.left > 0
    before = times(json.loads(path.read_text()))
    second, profile = measure(graph, cluster, path, Truth(), resume=True)
    assert second.left == 0
    assert len(times(profile)) == second.wanted
    assert before.items() <= times(profile).items()
    third, again = measure(graph, cluster, path, Truth(), resume=True)
    assert (third.collectives, again) == (0, profile)


def test_ops_with_the_most_time_come_first(graph: Graph, cluster: Cluster, tmp_path: Path) -> None:
    wanted = wanted_ops([graph], cluster, global_batch=32)
    session = _core.MeasuringSession(wanted, "", "", "emulated")
    shares = [session.share]
    while session.share < 0.95:
        for kind in ("CPU", "half"):
            session.run_emulated(cluster, kind, 0, 0.0, 1e-9)  # one op
        shares.append(session.share)
    gains = [after - before for before, after in zip(shares, shares[1:], strict=False)]
    assert shares[0] == 0
    assert all(gain <= 1.5 * before for before, gain in zip(gains, gains[1:], strict=False))
    assert 2 * len(gains) < session.unique


def test_cpus_are_busy_before_small_messages_only(cluster: Cluster) -> None:
    found = wanted_collectives(cluster, None)
    sizes = [sum(lengths) for _, _, lengths, _ in found]
    assert sizes == sorted(sizes)
    assert all(
        (busy > 0) == (size <= 256 << 10) for size, (*_, busy) in zip(sizes, found, strict=True)
    )
    assert {name for name, *_, busy in found if busy} == {"all_gather"}
    assert {len(devices) for _, devices, _, busy in found if busy} == {2}
    assert any(len(devices) > 2 for _, devices, *_ in found)
    assert {busy for *_, busy in wanted_collectives(cluster, 0.0)} == {0.0}
    assert {busy for *_, busy in wanted_collectives(cluster, 0.5)} == {0.5}


@pytest.mark.parametrize(("share", "window"), [(1.0, 0.0), (0.4, 0.3)])
def test_a_process_with_a_part_of_a_cpu_measures_in_windows(
    share: float, window: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(0, 0.01)
    monkeypatch.setattr("time.monotonic", lambda: next(clock))
    used = iter([5.0, 5.0 + 0.3 * share])
    monkeypatch.setattr("time.thread_time", lambda: next(used))
    assert window_here() == window


def test_an_interrupt_loses_nothing(graph: Graph, cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    wanted = wanted_ops([graph], cluster, global_batch=32)

    def interrupt(what: str, done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Profiler(wanted, cluster, path, Truth()).run(None, interrupt)
    assert times(json.loads(path.read_text()))
    assert not list(tmp_path.glob(".*"))


def test_a_profile_of_other_devices_is_not_continued(
    graph: Graph, cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "p.json"
    measure(graph, cluster, path, Truth(1, 0.1))
    with pytest.raises(ValueError, match="emulated seed 1"):
        measure(graph, cluster, path, Truth(2, 0.1), resume=True)


def test_runs_the_ops_of_a_real_device(graph: Graph, tmp_path: Path) -> None:
    outcome, profile = measure(graph, parse_cluster(ONE), tmp_path / "p.json", None)
    assert outcome.left == 0
    assert outcome.failed == []
    assert profile["executor"] == executor_name(None)
    products = [row for row in profile["ops"]["CPU"] if row["class"] == "matmul"]
    assert products
    assert all(row["repetitions"] >= 5 and row["time_ns"] > 0 for row in products)


def test_each_failure_is_a_line(graph: Graph, tmp_path: Path) -> None:
    wanted = wanted_ops([graph], parse_cluster(ONE), global_batch=8, grid=False)
    profiler = Profiler(wanted, parse_cluster(ONE), tmp_path / "p.json")
    profiler._device = _runtime.RealDevice("cuda:99")
    outcome = profiler.run(None, lambda what, done, of: None)
    assert len(outcome.failed) == outcome.wanted > 0
    assert not any("\n" in sentence for sentence in outcome.failed)


def test_an_empty_file_is_no_profile(graph: Graph, cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.touch()
    with pytest.raises(ValueError, match=r"p\.json: found nothing, expected what"):
        medley.plan(graph, cluster, global_batch=8, profile=path)


def test_a_plan_is_explained_with_the_times_that_it_was_made_with(
    graph: Graph, cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "p.json"
    measure(graph, cluster, path, Truth(5, 0.3))
    chosen = medley.plan(graph, cluster, "data-parallel-even", global_batch=32, profile=path)
    simulated: Any = _core.simulate(
        _core.Program(graph.core, chosen.core, cluster), cluster, path.read_text()
    )
    said = f"{32 / (simulated['step'] * 1e-9):,.0f} samples/s"
    assert said in chosen.explain()
    assert said not in dataclasses.replace(chosen, profile=None).explain()


# Every op of the families runs alone, with operands made up for it: none is left out.
@pytest.mark.parametrize("name", ["moe", "vgg", "llama"])
def test_every_op_can_be_measured(name: str, tmp_path: Path) -> None:
    model, batch = getattr(models, name)()
    cluster = parse_cluster(ONE)
    wanted = _core.WantedOps(cluster)
    wanted.add_graph(medley.capture(model, batch).core, 4)
    wanted.add_grid([2])
    profiler = Profiler(wanted, cluster, tmp_path / "p.json")
    profiler._device = _Quick(profiler._device)  # type: ignore[assignment]
    outcome = profiler.run(None, lambda what, done, of: None)
    assert outcome.failed == []
    assert outcome.left == 0


class _Quick:
    def __init__(self, device: Any) -> None:
        self.device = device

    def run(self, *arguments: Any, **named: Any) -> int:
        return int(self.device.run(*arguments, **named, quick=True))


def test_drift_is_measured_against_the_profile(
    graph: Graph, cluster: Cluster, tmp_path: Path
) -> None:
    path = tmp_path / "p.json"
    measure(graph, cluster, path, Truth(5, 0.3))
    model, batch = mlp()
    rows = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    plan = medley.plan(graph, cluster, "data-parallel-proportional", global_batch=rows.shape[0] * 8)
    large = _repeat(batch, 8)

    def ratios(seed: int) -> list[float]:
        with job.emulated(truth_seed=seed, truth_spread=0.3):
            trainer = Trainer(model, graph, plan, local=True, profile=path)
            trainer.step(large)
        return [row.ratio for row in trainer.drift()]

    same, other = ratios(5), ratios(6)
    assert same and all(abs(ratio - 1) < 0.05 for ratio in same)
    assert max(abs(ratio - 1) for ratio in other) > 0.05


def _repeat(batch: Any, times: int) -> Any:
    def repeat(value: torch.Tensor) -> torch.Tensor:
        return value.repeat(times, *[1] * (value.dim() - 1))

    if isinstance(batch, dict):
        return {key: repeat(value) for key, value in batch.items()}
    return tuple(repeat(value) for value in batch)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("60s", 60), ("5m", 300), ("1h", 3600), ("10ms", 0.01)]
)
def test_reads_a_budget(text: str, seconds: float) -> None:
    assert read_seconds(text) == seconds


def test_refuses_what_is_no_budget() -> None:
    for text in ("", "x", "-3s", "nan"):
        with pytest.raises(ValueError, match="--budget: found"):
            read_seconds(text)


def test_the_grid_reaches_the_share_of_a_slow_device(cluster: Cluster) -> None:
    assert pieces_of(cluster) == [2, 4, 8]


# --- the command ----------------------------------------------------------------------------------


def run(capsys: Any, monkeypatch: Any, *arguments: str) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["medley", *arguments])
    code = cli.main()
    found = capsys.readouterr()
    return code, found.out, found.err


@pytest.fixture
def files(graph: Graph, tmp_path: Path) -> tuple[str, str, str]:
    (tmp_path / "g.graph").write_text(graph.text())
    (tmp_path / "c.yaml").write_text(CLUSTER)
    return str(tmp_path / "g.graph"), str(tmp_path / "c.yaml"), str(tmp_path / "p.json")


def test_the_command_measures_and_counts(
    files: tuple[str, str, str], capsys: Any, monkeypatch: Any
) -> None:
    graph, cluster, output = files
    arguments = ["profile", graph, cluster, "-o", output, "--emulate", "--global-batch", "8"]
    code, out, _ = run(capsys, monkeypatch, *arguments, "--json")
    assert code == 0
    figures = json.loads(out)
    assert figures["kinds"] == ["CPU", "half"]
    assert figures["unique"] <= figures["seen"]
    assert figures["left"] == 0
    code, out, _ = run(capsys, monkeypatch, *arguments, "--resume", "--no-grid")
    assert code == 0
    assert f"unique of {figures['seen']} ops, on CPU, half" in out


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        (["--emulate"], "expected --plan or --global-batch"),
        (["--global-batch", "8"], "expected --kind with the one that this machine has"),
        (["--global-batch", "8", "--kind", "H100"], "--kind: found 'H100', expected one of CPU"),
        (["--global-batch", "0", "--emulate"], "--global-batch: found 0, expected 1 or more"),
        (["--emulate", "--busy", "10ms"], "--busy: found --emulate or --no-collectives"),
        (["--busy", "10"], "expected --plan or --global-batch"),
        (["--emulate", "--truth-spread", "2"], "--truth-spread: found 2.0"),
        (["--emulate", "--truth-seed", "-1"], "--truth-seed: found -1, expected"),
        (
            ["--global-batch", "8", "--kind", "CPU", "--device", "nonesuch"],
            "--device: found 'nonesuch', which cannot be used: ",
        ),
        (
            ["--global-batch", "8", "--kind", "CPU", "--device", "cuda:99"],
            "--device: found 'cuda:99', which cannot be used: ",
        ),
    ],
)
def test_the_command_refuses_in_a_sentence(
    files: tuple[str, str, str],
    extra: list[str],
    sentence: str,
    capsys: Any,
    monkeypatch: Any,
) -> None:
    graph, cluster, output = files
    code, _, error = run(capsys, monkeypatch, "profile", graph, cluster, "-o", output, *extra)
    assert code == 2
    assert sentence in error
    assert "Traceback" not in error


def test_an_output_that_cannot_be_written_is_found_at_once(
    graph: Graph, cluster: Cluster, tmp_path: Path
) -> None:
    profiler = Profiler(wanted_ops([graph], cluster, global_batch=8), cluster, tmp_path, Truth())
    seen: list[str] = []
    with pytest.raises(OSError, match="cannot be written"):
        profiler.run(None, lambda what, done, of: seen.append(what))
    assert seen == []


def measure_together(
    files: tuple[str, str, str], tmp_path: Path, before: str = "", options: Sequence[str] = ()
) -> dict[str, Any]:
    """Runs `medley profile` as two processes. Returns the JSON that the first one prints. `before`:
    Python code that both run first."""
    graph, _, output = files
    (tmp_path / "two.yaml").write_text(ONE.replace("devices_per_node: 1", "devices_per_node: 2"))
    text = (tmp_path / "two.yaml").read_text()
    text += "networks:\n  - {name: bus, inside: node, bandwidth: 1 GB/s, latency: 5 us}\n"
    (tmp_path / "two.yaml").write_text(text)
    script = tmp_path / "run.py"
    script.write_text(f"import sys\n{before}\nfrom medley.cli import main\nsys.exit(main())\n")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(script)]
    command += ["profile", graph, str(tmp_path / "two.yaml"), "-o", output, "--global-batch", "8"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        warm_start.command([*command, "--no-grid", "--json", *options]),
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def test_processes_of_a_job_measure_together(files: tuple[str, str, str], tmp_path: Path) -> None:
    figures = measure_together(files, tmp_path)
    assert (figures["left"], figures["failed"]) == (0, [])
    profile = json.loads(Path(files[2]).read_text())
    assert len(profile["ops"]["CPU"]) == figures["wanted"]
    assert {row["algorithm"] for row in profile["collectives"]} == {"backend"}
    assert all(row["devices"] == ["only/0/0", "only/0/1"] for row in profile["collectives"])
    assert profile["overlaps"]["CPU"] >= 1


# Only messages of pairs: of ops nothing is known, and the plan is still made.
@pytest.mark.slow
def test_links_are_measured_between_devices_that_compute(
    files: tuple[str, str, str], tmp_path: Path
) -> None:
    figures = measure_together(files, tmp_path, options=["--no-ops", "--busy", "20ms"])
    assert (figures["wanted"], figures["collectives"]) == (0, 3)
    profile = json.loads(Path(files[2]).read_text())
    assert not any(profile["ops"].values())
    rows = profile["collectives"]
    assert [row["lengths"] for row in rows] == [[2048] * 2, [16384] * 2, [131072] * 2]
    assert {row["collective"] for row in rows} == {"all_gather"}
    cluster = tmp_path / "two.yaml"
    plan = medley.plan(Graph.load(files[0]), cluster, global_batch=8, profile=files[2])
    assert plan.devices


# Each process measures its share of the ops. The first one reports.
@pytest.mark.slow
def test_failure_of_another_process_is_reported(
    files: tuple[str, str, str], tmp_path: Path
) -> None:
    broken = "import os\nfrom medley import _runtime\nfrom medley.profiling import profiler\n"
    broken += "if os.environ['RANK'] == '1':\n"
    broken += "    profiler._open = lambda name: _runtime.RealDevice('cuda:99')\n"
    figures = measure_together(files, tmp_path, broken)
    profile = json.loads(Path(files[2]).read_text())
    measured = len(profile["ops"]["CPU"])
    assert 0 < measured < figures["wanted"]
    assert figures["left"] == 0
    assert len(figures["failed"]) == len(set(figures["failed"])) == figures["wanted"] - measured
