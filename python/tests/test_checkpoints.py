"""A checkpoint has every bit of a run, under any plan that writes it and any plan that reads it."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as described
from zoo import ZOO
from zoo_names import NAMES

import medley
from medley import _core, _testing, checkpoint, cli
from medley.cursor import Cursor
from medley.data.sampler import BatchSampler
from medley_extras.convert import dcp as restricted
from medley_extras.models import mlp

ROWS = exactness.ROWS
SEEDS = int(os.environ.get("MEDLEY_PLAN_SEEDS", "1"))
# Cross-sample dependence, or buffers changed in forward: only one mesh.
_ONE_PIPELINE = ("resnet", "vgg-bn", "hf-mixtral-balanced")

State = dict[tuple[str, str], bytes]


def _draw(name: str, graph: Any, seed: int) -> str:
    """Returns a random plan: several pipelines, one chain of stages, or one mesh of two axes."""
    kinds: list[Callable[..., str]] = [_testing.random_plan]
    if name not in _ONE_PIPELINE:
        kinds += [_testing.random_pipeline, _testing.random_pipelines]
    devices = [f"a/{i}/0" for i in range(2 + seed % 4)]
    return kinds[seed % len(kinds)](graph.core.text(), devices, ROWS, seed)


def _trainer(model: Any, graph: Any, plan: str, **options: Any) -> medley.Trainer:
    return medley.Trainer(
        model,
        graph,
        medley.Plan(plan),
        options.pop("optimizer", None) or medley.AdamW(lr=1e-3, max_norm=1.0),
        local=True,
        cluster=exactness.cluster(6),
        keep_gradients=False,
        **options,
    )


def _read(folder: Path) -> State:
    """Returns the bytes of every value of the newest checkpoint."""
    path = _core.find_checkpoints(str(folder))[0][0]
    manifest = _core.Manifest.open(path)
    return {(kind, name): manifest.read(path, kind, name) for kind, name, _, _ in manifest.values}


# In parallel with training, the values changed by a step would be stored twice.
def test_a_save_that_has_no_room_for_copies_is_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO["mlp"], ROWS)
        trainer = _trainer(model, graph, _draw("mlp", graph, 0))
        trainer.step(batch)
    memory = trainer.memory()
    assert sum(each["saving"] for each in memory.values()) > 0
    assert all(each["saving"] <= each["persistent"] for each in memory.values())
    assert checkpoint.available_memory() > 1 << 20
    monkeypatch.setattr(checkpoint, "available_memory", lambda: 1000.0)
    trainer.save(tmp_path, wait=False)
    assert "is written while training waits" in capsys.readouterr().err
    assert not trainer.session.whole.saver._save.writers
    trainer.finish()
    assert _core.find_checkpoints(str(tmp_path))[0][2]


def _state(trainer: medley.Trainer, folder: Path) -> State:
    trainer.save(folder)
    return _read(folder)


@pytest.mark.parametrize("name", NAMES)
def test_any_plan_reads_what_any_other_wrote(name: str, tmp_path: Path) -> None:
    with exactness.double_precision():
        model, batch, graph = exactness.captured(ZOO[name], ROWS)
        for seed in range(SEEDS):
            here = tmp_path / str(seed)
            first = _draw(name, graph, 3 * seed + len(name))
            second = _draw(name, graph, 3 * seed + len(name) + 101)
            before = _trainer(model, graph, first)
            for _ in range(2):
                before.step(batch)
            want = _state(before, here / "first")
            assert any(kind == "state" for kind, _ in want)
            other = _trainer(model, graph, second, seed=9)
            assert other.load(here / "first").step == 2
            assert other.steps == 2
            assert not other.engine.run.disagreements()
            found = _state(other, here / "second")
            # Buffers that no op of a stage reads are in some plans only.
            for key in found.keys() ^ want.keys():
                assert key[0] == "buffer"
            for key in found.keys() & want.keys():
                assert found[key] == want[key], key
            # And back under the first plan: it equals an uninterrupted run.
            again = _trainer(model, graph, first, seed=9)
            again.load(here / "second")
            losses = [again.step(batch).loss for _ in range(2)]
            assert losses == [before.step(batch).loss for _ in range(2)]
            assert _state(again, here / "again") == _state(before, here / "before")


def _mlp(plan_seed: int = 0, **options: Any) -> tuple[medley.Trainer, Any]:
    model, batch, graph = exactness.captured(mlp, ROWS)
    return _trainer(
        model, graph, exactness.random_plan(graph, plan_seed, ROWS, 3), **options
    ), batch


@pytest.fixture
def double() -> Any:
    with exactness.double_precision():
        yield


# An op that would change a tensor during its writing copies it first.
def test_a_save_that_is_under_way_does_not_see_the_next_step(double: Any, tmp_path: Path) -> None:
    trainer, batch = _mlp()
    trainer.step(batch)
    want = _state(trainer, tmp_path / "a")
    trainer.save(tmp_path / "b", wait=False, data=Cursor(1, 2, 3))
    trainer.step(batch)
    trainer.save(tmp_path / "c")
    assert _read(tmp_path / "b") == want
    assert _read(tmp_path / "c") != want
    assert trainer.load(tmp_path / "b").data == Cursor(1, 2, 3)


# The copies of a save reuse the memory of those of the one before.
def test_saves_in_parallel_with_training(double: Any, tmp_path: Path) -> None:
    trainer, batch = _mlp()
    room = []
    for step in range(4):
        want = _state(trainer, tmp_path / f"alone {step}")
        trainer.save(tmp_path / str(step), wait=False, spread=3600.0)  # until it is waited for
        room.append(trainer.session.whole.saver._save.writers[0].bytes)
        trainer.step(batch)
        trainer.session.whole.saver.wait()
        assert _read(tmp_path / str(step)) == want
    assert room[1] < room[0]
    trainer.finish()


def test_a_save_that_is_spread_is_waited_for_by_the_next_only(double: Any, tmp_path: Path) -> None:
    trainer, batch = _mlp()
    want = _state(trainer, tmp_path / "a")
    trainer.save(tmp_path / "b", wait=False, spread=3600.0)
    for _ in range(3):
        trainer.step(batch)
    assert not any(whole for _, _, whole in _core.find_checkpoints(str(tmp_path / "b")))
    trainer.save(tmp_path / "c")
    assert _read(tmp_path / "b") == want
    with pytest.raises(ValueError, match=r"spread: found -1, expected seconds"):
        trainer.save(tmp_path / "d", spread=-1)


def test_the_newest_stay(double: Any, tmp_path: Path) -> None:
    trainer, batch = _mlp()
    for _ in range(5):
        trainer.step(batch)
        trainer.save(tmp_path, keep=2, keep_every=2)
    found = [step for _, step, _ in _core.find_checkpoints(str(tmp_path))]
    assert found == [5, 4, 2]


def _damage(path: Path, where: int) -> None:
    data = bytearray(path.read_bytes())
    data[where] ^= 1
    path.write_bytes(data)


def test_a_damaged_one_is_named_and_the_one_before_is_taken(
    double: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer, batch = _mlp()
    for _ in range(3):
        trainer.step(batch)
        trainer.save(tmp_path)
    file = next((tmp_path / "step-00000003").glob("*.safetensors"))
    _damage(file, -1)
    (tmp_path / "step-00000002" / "COMMIT").unlink()
    with pytest.raises(ValueError, match=re.escape(str(file)) + ".*found crc32c .*, expected "):
        trainer.load(tmp_path, exact=True)
    assert trainer.steps == 3
    assert trainer.load(tmp_path).step == 1
    said = capfd.readouterr().err
    assert "step-00000002: not complete (no COMMIT); taking " in said
    assert f"{file}: tensor" in said


def test_another_model_or_optimizer_is_refused(double: Any, tmp_path: Path) -> None:
    trainer, batch = _mlp()
    trainer.step(batch)
    trainer.save(tmp_path)
    other, _ = _mlp(optimizer=medley.SGD(lr=0.1, momentum=0.9))
    with pytest.raises(ValueError, match="found the optimizer adamw, expected sgd"):
        other.load(tmp_path)
    other.load(tmp_path, parameters_only=True)
    assert other.steps == 0
    assert {k: v.tolist() for k, v in other.parameters().items()} == {
        k: v.tolist() for k, v in trainer.parameters().items()
    }
    model, _, graph = exactness.captured(ZOO["vit"], ROWS)
    stranger = _trainer(model, graph, exactness.random_plan(graph, 0, ROWS, 2))
    with pytest.raises(
        ValueError, match=r'step-00000001: parameter ".*": found none, expected f64'
    ):
        stranger.load(tmp_path)
    assert stranger.resume(tmp_path / "nothing") is None
    with pytest.raises(ValueError, match="found no checkpoint, expected one"):
        stranger.load(tmp_path / "nothing")


def test_a_folder_that_cannot_be_written_ends_nothing(
    double: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    trainer, batch = _mlp()
    (tmp_path / "file").write_text("")
    trainer.save(tmp_path / "file" / "run", wait=False)
    trainer.step(batch)
    assert "step 0 is not saved: " in capfd.readouterr().err
    with pytest.raises(OSError, match="cannot be written"):
        trainer.save(tmp_path / "file" / "run")


def test_another_process_that_saves_there_is_refused(double: Any, tmp_path: Path) -> None:
    trainer, _ = _mlp()
    code = (
        "import sys; from medley import checkpoint; checkpoint._lock(sys.argv[1]); "
        "print('locked', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        with pytest.raises(ValueError, match=f"found process {holder.pid} of .* saving to it"):
            trainer.save(tmp_path)
        assert holder.stdin is not None
        holder.stdin.close()
    trainer.save(tmp_path)


# A killed process is gone when its last thread is.
def test_one_that_is_ending_is_waited_for(tmp_path: Path) -> None:
    code = (
        "import sys, time; from medley import checkpoint; checkpoint._lock(sys.argv[1]); "
        "print('locked', flush=True); time.sleep(0.5)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "locked\n"
        with pytest.raises(ValueError, match="saving to it"):
            checkpoint._lock(str(tmp_path))
        checkpoint._lock(str(tmp_path), patience=60)


def test_the_sampler_goes_on_where_it_was(double: Any) -> None:
    trainer, _ = _mlp()
    data = list(range(5 * ROWS + 1))
    whole = BatchSampler(trainer.plan, data, shuffle=True, seed=3)
    order = []
    for epoch in range(2):
        whole.set_epoch(epoch)
        order += list(whole)
    for steps in range(10):
        resumed = BatchSampler(trainer.plan, data, shuffle=True, seed=3)
        resumed.set_cursor(whole.cursor(steps))
        rest = list(resumed)
        assert rest == order[steps : (steps // 5 + 1) * 5]
    with pytest.raises(ValueError, match="expected seed 4"):
        BatchSampler(trainer.plan, data, shuffle=True, seed=4).set_cursor(whole.cursor(1))


def test_hostile_manifests_are_refused_in_a_sentence(double: Any, tmp_path: Path) -> None:
    trainer, batch = _mlp()
    trainer.step(batch)
    trainer.save(tmp_path)
    folder = tmp_path / "step-00000001"
    good = json.loads((folder / "manifest.json").read_text())

    def refusal(change: Callable[[dict[str, Any]], object]) -> str:
        entries = json.loads(json.dumps(good))
        change(entries)
        text = json.dumps(entries)
        (folder / "manifest.json").write_text(text)
        (folder / "COMMIT").write_text(medley.checkpoint.text_hash(text) + "\n")
        with contextlib.suppress(OSError), pytest.raises(ValueError, match=".") as caught:
            trainer.load(tmp_path)
        return str(caught.value)

    def file(name: str) -> Callable[[dict[str, Any]], object]:
        return lambda entries: entries["files"][0].update(name=name)

    assert "expected a name of a file in this folder" in refusal(file("../../etc/passwd"))
    assert "expected a name of a file in this folder" in refusal(file("/dev/zero"))
    assert "found no such file" in refusal(file("other.safetensors"))
    value = good["values"][0]
    big = [0, *[x for _ in value["factors"] for x in (0, 2**40)]]
    assert "expected a box inside of factor" in refusal(
        lambda entries: entries["values"][0].update(boxes=[big])
    )
    assert "elements in its boxes, expected" in refusal(
        lambda entries: entries["values"][0].update(boxes=[])
    )
    assert "expected at most" in refusal(
        lambda entries: entries["values"][0].update(shape=[2**40, 2**40], factors=[2**40, 2**40])
    )
    assert "the only version" in refusal(lambda entries: entries.update(version=2))


def test_weights_become_those_of_hugging_face(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, batch = ZOO["hf-gpt2"](batch=ROWS)
    graph = medley.capture(model, batch)
    trainer = _trainer(model, graph, exactness.random_plan(graph, 1, ROWS, 3))
    trainer.step(batch)
    trainer.save(tmp_path)
    trainer.save_model(tmp_path / "whole")
    for shard in ("1GB", "20KB"):
        out = tmp_path / shard
        assert (
            cli.run(["convert", str(tmp_path), "--to", "hf", "-o", str(out), "--max-shard", shard])
            == 0
        )
        assert (out / "model.safetensors.index.json").exists() == (shard == "20KB")
        (out / "config.json").write_bytes((tmp_path / "whole" / "config.json").read_bytes())
        loaded = transformers.AutoModelForCausalLM.from_pretrained(out)
        found = dict(loaded.named_parameters())
        for name, value in trainer.parameters().items():
            assert found[name].equal(value), name
        other = _trainer(model, graph, exactness.random_plan(graph, 2, ROWS, 2))
        other.load_model(out)
        assert {name: value.tolist() for name, value in other.parameters().items()} == {
            name: value.tolist() for name, value in trainer.parameters().items()
        }
    index = tmp_path / "20KB" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../1GB/model.safetensors"}}))
    with pytest.raises(ValueError, match="expected a weight_map of names to files in this folder"):
        other.load_model(tmp_path / "20KB")


def test_weights_of_a_wrapped_model_have_the_names_of_the_one_inside(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model, batch = ZOO["hf-gpt2"](batch=ROWS)
    wrapped = torch.compile(torch.nn.DataParallel(model))
    graph = medley.capture(wrapped, batch)
    trainer, other = (
        _trainer(wrapped, graph, exactness.random_plan(graph, seed, ROWS, 2)) for seed in (1, 2)
    )
    trainer.step(batch)
    trainer.save_model(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    found = dict(loaded.named_parameters())
    other.load_model(tmp_path)
    for name, value in other.parameters().items():
        assert value.equal(trainer.parameters()[name]), name
        assert value.equal(found[name.removeprefix("_orig_mod.module.")]), name


def test_torch_distributed_checkpoint_and_back(double: Any, tmp_path: Path) -> None:
    trainer, batch = _mlp()
    trainer.step(batch)
    trainer.save(tmp_path)
    out, back = tmp_path / "dcp", tmp_path / "hf"
    assert cli.run(["convert", str(tmp_path), "--to", "dcp", "-o", str(out)]) == 0
    state = {"model": {n: torch.empty_like(v) for n, v in trainer.parameters().items()}}
    dcp.load(state, checkpoint_id=out, no_dist=True)
    for name, value in trainer.parameters().items():
        assert state["model"][name].equal(value)
    assert cli.run(["convert", str(out), "--to", "hf", "-o", str(back)]) == 0
    other, _ = _mlp(1)
    other.load_model(back)
    for name, value in other.parameters().items():
        assert trainer.parameters()[name].equal(value)


class _Hostile:
    def __reduce__(self) -> Any:
        return os.system, ("touch hostile",)


class _Attribute:
    """An attribute pickled as Python 3.11.2, that of Debian 12, pickles members of enumerations."""

    def __init__(self, of: Any, name: str) -> None:
        self._place = of, name

    def __reduce__(self) -> Any:
        return getattr, self._place


def test_attributes_are_members_of_memory_formats_only() -> None:
    formats = described._MEM_FORMAT_ENCODING
    for member in formats:
        data = pickle.dumps(_Attribute(formats, member.name))
        assert restricted._Reader(io.BytesIO(data)).load() is member
    for of, name in ((formats, "__init__"), (described.Metadata, "__init__")):
        data = pickle.dumps(_Attribute(of, name))
        with pytest.raises(pickle.UnpicklingError, match=r"builtins\.getattr"):
            restricted._Reader(io.BytesIO(data)).load()


def test_a_pickle_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, double: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    for data in (pickle.dumps(_Hostile()), b"junk", b"", pickle.dumps([1])):
        (tmp_path / "in" / ".metadata").write_bytes(data)
        with pytest.raises(ValueError, match=r"^in/\.metadata: "):
            cli.run(["convert", "in", "--to", "hf", "-o", "out"])
    assert not (tmp_path / "hostile").exists()
    trainer, _ = _mlp()
    trainer.save(tmp_path / "ours")
    assert cli.run(["convert", "ours", "--to", "dcp", "-o", "good"]) == 0
    good = (tmp_path / "good" / ".metadata").read_bytes()
    with (tmp_path / "good" / ".metadata").open("rb") as file:
        metadata = pickle.load(file)
    for place in metadata.storage_data.values():
        place.relative_path = "../ours/step-00000000/COMMIT"
    (tmp_path / "good" / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(ValueError, match="tensors in files of this folder"):
        cli.run(["convert", "good", "--to", "hf", "-o", "out"])
    (tmp_path / "good" / ".metadata").write_bytes(good)
    for file_ in (tmp_path / "good").glob("*.distcp"):
        file_.write_bytes(file_.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"^good: found \d+ bytes in its files, expected at least"):
        cli.run(["convert", "good", "--to", "hf", "-o", "out"])
