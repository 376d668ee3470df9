"""The second start of a run with `tune` begins under the measured plan, without a race."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch

import medley
from medley.cluster import parse_cluster
from medley.run import devices, job
from medley_extras import models
from medley_extras.race import Tuner
from medley_extras.recall import store
from medley_extras.recall.memory import Memory, key_of
from medley_extras.recall.store import Entry
from medley_extras.search.costs import Corrections

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: quick, devices_per_node: 1}
  - {name: slow, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 1 Gbit/s, latency: 10 us}
devices:
  quick: {based_on: CPU, speed: 0.0005}
  half: {based_on: CPU, speed: 0.00025}
"""
SEED = 3
KEY = {"graph": "g", "cluster": "c"}
ENTRY = Entry(
    plan="{}",
    name="hap",
    corrections=[{}, {}],
    measured=0.939,
    predicted=0.949,
    steps=12,
    untried=0,
    allowed=20.0,
    when=1796000000.0,
    host="box",
)


@functools.cache
def captured(rows: int, width: int) -> tuple[Any, Any, medley.Graph]:
    """Returns a model, its batch and its graph."""
    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch = models.mlp(batch=rows, width=width)
        return model, batch, medley.capture(model, batch)


def made(
    *,
    rows: int = 8,
    width: int = 16,
    cluster: str = CLUSTER,
    strategy: str = "data-parallel-even",
    optimizer: Any = None,
    **more: Any,
) -> tuple[medley.Trainer, Any]:
    """Returns a trainer of the threads of this process, and its batch."""
    model, batch, graph = captured(rows, width)
    plan = medley.plan(graph, parse_cluster(cluster), strategy, rows)
    rule = optimizer or medley.AdamW()
    return medley.Trainer(model, graph, plan, rule, local=True, **more), batch


def trained(steps: int = 30, **more: Any) -> tuple[medley.Trainer, list[medley.Metrics]]:
    """Returns a trainer on emulated devices after some steps, with their metrics."""
    with job.emulated(truth_seed=SEED, truth_spread=0.3):
        trainer, batch = made(**{"tune": 1000, **more})
        return trainer, [trainer.step(batch) for _ in range(steps)]


@functools.cache
def raced() -> tuple[medley.Trainer, list[medley.Metrics], str, str]:
    """Returns a trainer after its race, its metrics, and name and text of the entry."""
    trainer, seen = trained()
    return trainer, seen, file().name, file().read_text()


def remembered() -> Entry:
    """Returns the entry of raced(), which is then in the cache of this test."""
    *_, name, text = raced()
    cache().mkdir(parents=True, exist_ok=True)
    (cache() / name).write_text(text)
    return next(store.entries(cache()))[1]


def race_of(trainer: medley.Trainer) -> Any:
    """Returns the race of a trainer, or None without one."""
    (tuner,) = trainer.observers
    assert isinstance(tuner, Tuner)
    return tuner.race


def cache() -> Path:
    """Returns the folder of the entries of this test."""
    folder = store.folder("measured")
    assert folder is not None
    return folder


def file() -> Path:
    """Returns the only entry."""
    (found,) = cache().iterdir()
    return found


def test_second_start_begins_under_the_chosen_plan(capfd: pytest.CaptureFixture[str]) -> None:
    first, seen, *_ = raced()
    remembered()
    assert race_of(first).is_over
    assert first.plan.strategy != "data-parallel-even"
    capfd.readouterr()
    second, again = trained()
    assert race_of(second) is None
    assert second.plan.text == first.plan.text
    assert again[0].step_seconds == pytest.approx(seen[-1].step_seconds, rel=1e-6)
    plain, expected = trained(tune="off")
    for one, other in zip(again, expected, strict=True):
        assert abs(one.loss - other.loss) <= 1e-10 * abs(other.loss)
    (line,) = capfd.readouterr().err.splitlines()
    milliseconds = f"{1000 * race_of(first).runners[race_of(first).best].measured:.1f}"
    assert f"{first.plan.strategy}, measured {milliseconds} ms over" in line
    assert line.endswith("--no-memory races again")


def test_start_under_the_remembered_plan_does_not_change_it() -> None:
    second, _ = trained(strategy=remembered().name, steps=2)
    assert race_of(second) is None


def test_plan_and_compare_name_the_measured_plan(tmp_path: Path) -> None:
    entry = remembered()
    _, _, graph = captured(8, 16)
    (tmp_path / "g.graph").write_text(graph.text())
    (tmp_path / "a.yaml").write_text(CLUSTER)
    (tmp_path / "b.yaml").write_text(CLUSTER.replace("10 us", "20 us"))

    def told(verb: str, *more: str, forget: str = "") -> tuple[str, str]:
        path = str(Path(medley.__file__).parents[1])
        done = subprocess.run(
            [sys.executable, "-m", "medley", verb, "--global-batch", "8", "g.graph", *more],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path, "MEDLEY_NO_MEMORY": forget},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout, done.stderr

    line = f"medley: {entry.sentence}, 8 rows, emulated. `medley launch` begins with it"
    out, err = told("compare", "a.yaml")
    assert err.startswith(line)
    assert told("compare", "a.yaml", forget="1") == (out, "")
    for _ in range(2):  # plan.json exists at the second time
        assert told("plan", "a.yaml", "-o", "plan.json")[1].startswith(line)
    assert line not in told("plan", "b.yaml")[1]


@pytest.mark.parametrize("way", ["argument", "environment"])
def test_no_memory_neither_reads_nor_writes(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    remembered()
    before = file().read_text()
    more = {"remember": False} if way == "argument" else {}
    if way == "environment":
        monkeypatch.setenv("MEDLEY_NO_MEMORY", "1")
    again, _ = trained(**more)
    assert race_of(again).is_over
    assert file().read_text() == before
    file().unlink()
    trained(**more)
    assert not list(cache().iterdir())


def test_plans_that_were_over_budget_run_with_a_larger_one() -> None:
    entry = remembered()
    ((key, _),) = store.entries(cache())
    store.write(cache(), key, dataclasses.replace(entry, untried=1, allowed=1.0))
    assert race_of(trained(tune=1, steps=2)[0]) is None
    store.write(cache(), key, dataclasses.replace(entry, untried=1, allowed=501.0))
    assert race_of(trained(steps=2)[0]) is None  # 1000 are fewer than twice as many
    store.write(cache(), key, dataclasses.replace(entry, untried=1, allowed=500.0))
    larger, _ = trained()
    assert race_of(larger).runners[0].name == entry.name
    assert race_of(larger).is_over
    assert race_of(trained(steps=2)[0]) is None


def test_searches_that_ended_early_run_again_with_a_larger_budget() -> None:
    trainer, *_ = raced()
    memory, race = Memory(trainer, True), copy.copy(race_of(trainer))
    race.searches_cut = 1
    assert memory.wants_race(20.0)
    memory.keep(race, trainer.plan, Corrections({}, {}))
    assert memory.recall(trainer) is not None
    assert not memory.wants_race(30.0)
    assert memory.wants_race(40.0)


@pytest.mark.parametrize(
    ("plan", "cause"),
    [
        ("{}", "format"),
        (lambda plan: plan | {"global_batch": 7}, "rows"),
        (lambda plan: plan | {"graph_hash": "0" * 64}, "graph"),
    ],
)
def test_plan_that_cannot_run_is_ignored(
    plan: str | Callable[[Any], Any], cause: str, capfd: pytest.CaptureFixture[str]
) -> None:
    entry = remembered()
    ((key, _),) = store.entries(cache())
    text = plan if isinstance(plan, str) else json.dumps(plan(json.loads(entry.plan)))
    store.write(cache(), key, dataclasses.replace(entry, plan=text))
    capfd.readouterr()
    again, _ = trained()
    assert race_of(again).is_over
    (line,) = (each for each in capfd.readouterr().err.splitlines() if "ignored" in each)
    assert line.startswith("medley: measured plan ignored: <")
    assert cause in line
    assert next(store.entries(cache()))[1].plan == entry.plan


def test_plan_that_does_not_fit_is_ignored(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    remembered()

    def lacks(*arguments: Any) -> None:
        raise MemoryError("fast/0/0: out of memory")

    monkeypatch.setattr(devices, "require_memory", lacks)
    trainer, _ = trained(1)
    assert trainer.plan.strategy == "data-parallel-even"
    assert "measured plan ignored: change_plan: fast/0/0: out of mem" in capfd.readouterr().err


def test_unwritable_folder_only_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MEDLEY_CACHE", str(tmp_path / "file"))
    trainer, _ = trained()
    assert race_of(trainer).is_over
    assert "measured plan not kept: " in capfd.readouterr().err


def test_full_disk_only_warns(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store.write(tmp_path, KEY, ENTRY)
    (path,) = tmp_path.iterdir()
    path.unlink()
    path.symlink_to("/dev/full")
    store.write(tmp_path, KEY, ENTRY)
    assert "not kept: " in capfd.readouterr().err
    assert store.read(tmp_path, KEY) is None
    assert "found a device, expected a file" in capfd.readouterr().err


def test_key_has_everything_that_was_asked() -> None:
    def key(**more: Any) -> str:
        return json.dumps(key_of(made(**more)[0]), sort_keys=True)

    slower = CLUSTER.replace("1 Gbit/s", "2 Gbit/s")
    found = [
        key(),
        key(rows=16),
        key(width=32),
        key(cluster=slower),
        key(optimizer=medley.SGD()),
        key(optimizer=medley.SGD(momentum=0.9)),
    ]
    for seed in (1, 2):
        with job.emulated(truth_seed=seed):
            found.append(key())
    torch.set_float32_matmul_precision("high")
    try:
        found.append(key())
    finally:
        torch.set_float32_matmul_precision("highest")
    assert len(set(found)) == len(found)
    assert key(strategy="hap") == key() == key(optimizer=medley.AdamW(lr=1e-2))


def test_entry_is_read_as_written(tmp_path: Path) -> None:
    assert store.read(tmp_path, KEY) is None
    store.write(tmp_path, KEY, ENTRY)
    assert store.read(tmp_path, KEY) == ENTRY
    assert list(store.entries(tmp_path)) == [(KEY, ENTRY)]
    assert " on box: hap, measured 939.0 ms over 12 steps (predicted 949.0 ms)" in ENTRY.sentence


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[" * 100_000,
        lambda text: "[]",
        lambda text: "7",
        lambda text: text.replace('"version":1', '"version":0'),
        lambda text: text.replace("medley-measured", "medley-plan"),
        lambda text: text.replace('"steps":12', '"steps":13'),
        lambda text: text.replace('"sha256"', '"sha"'),
        lambda text: text.replace('"hap"', "NaN"),
        lambda text: "\0" * len(text),
    ],
)
def test_broken_entry_is_ignored_and_replaced(
    change: Callable[[str], str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store.write(tmp_path, KEY, ENTRY)
    (path,) = tmp_path.iterdir()
    path.write_text(change(path.read_text()))
    assert store.read(tmp_path, KEY) is None
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"medley: measured plan ignored: {path}: ")
    assert not list(store.entries(tmp_path))
    store.write(tmp_path, KEY, ENTRY)
    assert store.read(tmp_path, KEY) == ENTRY


def test_entry_of_another_key_is_ignored(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    store.write(tmp_path, KEY, ENTRY)
    (other,) = tmp_path.iterdir()
    store.write(tmp_path, {"graph": "h"}, ENTRY)
    (path,) = set(tmp_path.iterdir()) - {other}
    path.write_bytes(other.read_bytes())
    assert store.read(tmp_path, {"graph": "h"}) is None
    assert "key: found another one" in capfd.readouterr().err
    assert store.read(tmp_path, KEY) == ENTRY


def test_least_recently_used_entry_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "notes.json").write_text("not ours")
    monkeypatch.setattr(store, "ENTRIES", 3)
    keys = [{"graph": str(number)} for number in range(4)]
    for number, key in enumerate(keys[:3]):
        store.write(tmp_path, key, ENTRY)
        for path in tmp_path.glob("*"):
            if path.stat().st_mtime > 1e9:
                os.utime(path, (number, number))
    assert store.read(tmp_path, keys[0]) == ENTRY
    store.write(tmp_path, keys[3], ENTRY)
    assert [store.read(tmp_path, key) for key in keys] == [ENTRY, None, ENTRY, ENTRY]
    monkeypatch.setattr(store, "BYTES", 10)
    store.write(tmp_path, keys[1], ENTRY)
    assert [key for key, _ in store.entries(tmp_path)] == [keys[1]]
    assert (tmp_path / "notes.json").exists()


WRITER = """
import dataclasses, sys
from pathlib import Path
from medley_extras.recall import store
key, entry = next(store.entries(Path(sys.argv[1])))
for number in range(60):
    store.write(Path(sys.argv[1]), key, dataclasses.replace(entry, steps=int(sys.argv[2])))
"""


def test_two_writers_leave_a_whole_entry(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(medley.__file__).parents[1])}
    store.write(tmp_path, KEY, ENTRY)
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    writers = [subprocess.Popen([*command, steps], env=environment) for steps in ("1", "2")]
    seen = set()
    while any(each.poll() is None for each in writers):
        entry = store.read(tmp_path, KEY)
        assert entry is not None
        seen.add(entry.steps)
    assert [each.returncode for each in writers] == [0, 0]
    assert seen <= {1, 2, ENTRY.steps}
    last = store.read(tmp_path, KEY)
    assert last is not None
    assert last.steps in {1, 2}
    assert len(list(tmp_path.iterdir())) == 1
    assert capfd.readouterr().err == ""
