"""`medley train`: folders of text and images, the same result on one device as on several."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")
PIL = pytest.importorskip("PIL.Image")

from medley import cli  # noqa: E402
from medley.trainer import Trainer  # noqa: E402
from medley_extras.models import gpt  # noqa: E402
from medley_extras.train.image_folder import read_image_folder  # noqa: E402
from medley_extras.train.text_folder import read_text_folder  # noqa: E402

Command = Callable[..., tuple[int, str, str]]
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 1}
  - {name: slow, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 10 Gbit/s, latency: 20 us}
devices:
  half: {based_on: CPU, speed: 0.5}
"""
MODELS = """
import torch
from medley_extras.models import gpt, mlp, vit
from medley_extras.models.hf import bert


def small():
    return gpt(vocabulary=128, positions=16, width=32, layers=1)


def two_classes():
    return vit(image=8, classes=2, width=32, hidden=64, layers=1)


def one_class():
    return vit(image=8, classes=1, width=32, hidden=64, layers=1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Texts, images of two classes, models and a cluster of two unequal devices."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "models_of_test", raising=False)
    (tmp_path / "models_of_test.py").write_text(MODELS)
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    random.seed(1)
    words = ["a", "model", "of", "unequal", "devices", "learns", "as", "one", "device"]
    for name in ("a", "b"):
        text = " ".join(random.choice(words) for _ in range(300))
        (tmp_path / "text").mkdir(exist_ok=True)
        (tmp_path / "text" / f"{name}.txt").write_text(text)
    for label, color in (("blue", (30, 40, 200)), ("red", (200, 40, 30))):
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(12):
            noisy = tuple(c + random.randint(-20, 20) for c in color)
            ending = "jpg" if i % 2 else "png"
            PIL.new("RGB", (9 + i, 12), noisy).save(tmp_path / "images" / label / f"{i}.{ending}")
    return tmp_path


@pytest.fixture
def medley(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    """Returns a function that runs a command line and returns exit code, output and errors."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["medley", *arguments])
        code = cli.main()
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


TEXT = ("train", "models_of_test:small", "--data", "text", "--global-batch", "8", "--lr", "1e-2")
IMAGES = ("train", "models_of_test:two_classes", "--data", "images", "--global-batch", "8")


def metrics(output: Path) -> list[dict[str, Any]]:
    """Returns the lines of metrics.jsonl."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def losses(output: Path) -> list[float]:
    """Returns the losses of the steps."""
    return [line["loss"] for line in metrics(output) if "loss" in line]


# A cluster of two devices gives a message that one of them is unused.
def test_says_what_the_plan_uses_and_leaves_out(medley: Command, folder: Path) -> None:
    stage = {"mesh": {"devices": ["fast/0/0"]}}
    pipeline = {"microbatches": [{"rows": 8}], "stages": [stage]}
    plan = {"format": "medley-plan", "version": 1, "global_batch": 8, "pipelines": [pipeline]}
    (folder / "one.json").write_text(json.dumps(plan))
    given = ("--cluster", "cluster.yaml", "--plan", "one.json", "--steps", "1")
    code, out, err = medley(*TEXT, *given, "-o", "said")
    assert code == 0, err
    assert out.startswith("written by hand: 8 rows a step on 1 device, in 1 micro-batch.\n")
    assert "\nNot used: slow/0/0.\n" in out
    code, out, err = medley(*TEXT, *given, "-o", "json", "--json")
    assert code == 0, err
    assert set(json.loads(out)) >= {"step", "loss"}  # only JSON


@pytest.mark.parametrize("command", [TEXT, IMAGES], ids=["text", "images"])
def test_learns_on_unequal_devices_as_on_one(
    medley: Command, folder: Path, command: tuple[str, ...]
) -> None:
    more = ("--steps", "15", "--log-every", "1", "--evaluate-every", "15", "--held-out", "0.2")
    code, out, err = medley(*command, *more, "-o", "one")
    assert code == 0, err
    assert "saved one/model.safetensors after 15 steps" in out
    both = ("--cluster", "cluster.yaml", "--strategy", "data-parallel-proportional")
    code, out, err = medley(*command, *more, *both, "-o", "two", "--json")
    assert code == 0, err
    state = json.loads(out)
    one, two = losses(folder / "one"), losses(folder / "two")
    assert len(one) == 15
    assert one[-1] < 0.7 * one[0], one
    assert two == pytest.approx(one, rel=1e-3)
    assert set(metrics(folder / "two")[0]["devices"]) == {"fast/0/0", "slow/0/0"}
    held_out = metrics(folder / "one")[-1]["held_out_loss"]
    assert held_out < one[0]
    assert state["held_out_loss"] == pytest.approx(held_out, rel=1e-3)
    assert (state["step"], state["finished"]) == (15, True)


def test_checkpoints_have_the_held_out_loss(medley: Command, folder: Path) -> None:
    code, out, err = medley(*TEXT, "--epochs", "1", "--held-out", "0.2", "--json")
    assert code == 0, err
    state = json.loads(out)
    text = read_text_folder(folder / "text", 16, shifted=True)
    kept = -(-len(text) // 5)
    assert state["step"] == (len(text) - kept) // 8  # an epoch: the rows that fill global batches
    model, _ = gpt(vocabulary=128, positions=16, width=32, layers=1)
    safetensors.torch.load_model(model, folder / "out" / "model.safetensors")
    inputs, labels = text.rows(list(range(len(text) - kept, len(text))))
    with torch.no_grad():
        assert float(model(inputs, labels)) == pytest.approx(state["held_out_loss"], rel=1e-4)


def test_options_reach_the_run(medley: Command, folder: Path) -> None:
    more = ("--steps", "4", "--warmup", "2", "--cosine", "--autocast", "bf16", "--log-every", "1")
    code, _, err = medley(*TEXT, *more, "--optimizer", "sgd", "--max-norm", "1", "--length", "8")
    assert code == 0, err
    rates = [line["learning_rate"] for line in metrics(folder / "out") if "loss" in line]
    assert rates == pytest.approx([0.005, 0.01, 0.01, 0.005])
    half = losses(folder / "out")
    assert medley(*TEXT, *more[:4], "--log-every", "1", "--length", "8", "-o", "whole")[0] == 0
    whole = losses(folder / "whole")
    assert half[0] != whole[0]
    assert half[0] == pytest.approx(whole[0], rel=0.05)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_what_there_is_and_resume_goes_on(
    medley: Command, folder: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    step = Trainer.step

    def interrupted(self: Trainer, batch: Any) -> Any:
        if self.steps == 2:
            os.kill(os.getpid(), number)
        return step(self, batch)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", interrupted)
        code, _, err = medley(*TEXT, "--steps", "50")
    assert code == 130
    saved, following = err.splitlines()
    assert saved == "interrupted: saved out/model.safetensors after 3 steps"
    assert following == "Next: the same command with --resume"
    state = json.loads((folder / "out" / "train.json").read_text())
    assert (state["step"], state["finished"]) == (3, False)
    assert safetensors.torch.load_file(folder / "out" / "model.safetensors")
    code, _, err = medley(*TEXT, "--steps", "4")
    assert code == 2
    assert err == "out: found a checkpoint of step 3, expected --resume or an empty folder\n"
    code, _, err = medley(*TEXT, "--steps", "4", "--resume")
    assert (code, err) == (0, "medley: going on from out/step-00000003\n")


# Also at the end of an epoch, and under another plan. Steps after the checkpoint are repeated, and
# occur once in the metrics.
def test_resume_equals_an_uninterrupted_run(medley: Command, folder: Path) -> None:
    more = ("--log-every", "1", "--evaluate-every", "4", "--held-out", "0.7")
    assert medley(*TEXT, *more, "--steps", "12", "-o", "whole")[0] == 0
    per_epoch = max(line["batch"] for line in metrics(folder / "whole") if "loss" in line) + 1
    assert per_epoch < 12
    assert medley(*TEXT, *more, "--steps", "7", "--save-every", "2", "--keep", "2")[0] == 0
    saved = sorted(path.name for path in (folder / "out").glob("step-*"))
    assert saved == ["step-00000006", "step-00000007"]
    shutil.rmtree(folder / "out" / "step-00000007")
    shutil.copytree(folder / "whole" / "step-00000012", folder / "later" / "step-00000012")
    assert medley(*TEXT, *more, "--steps", "12", "--resume")[0] == 0
    assert losses(folder / "out") == losses(folder / "whole")
    for name in ("loss", "held_out_loss"):
        for run in ("out", "whole"):
            steps = [line["step"] for line in metrics(folder / run) if name in line]
            assert steps == sorted(set(steps)), (run, name)
    both = ("--cluster", "cluster.yaml", "--strategy", "data-parallel-proportional")
    code, _, err = medley(*TEXT, *more, *both, "--steps", "13", "--resume", "-o", "later")
    assert code == 0, err
    code, out, err = medley("check", "later")
    assert code == 0, err
    assert "2 checkpoints, the last after 13 steps, " in out
    code, _, err = medley(*TEXT, "--steps", "14", "--resume", "-o", "later", "--seed", "1")
    assert code == 2
    assert err == "later/step-00000013: found seed 0, expected 1\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([*TEXT], "expected either --steps or --epochs"),
        ([*TEXT, "--steps", "0"], "--steps: found 0, expected a number >= 1"),
        ([*TEXT, "--steps", "3", "--epochs", "1"], "expected either --steps or --epochs"),
        ([*TEXT, "--steps", "2", "--lr", "-1"], "lr: found -1.0, expected a number >= 0"),
        ([*TEXT, "--steps", "2", "--lr", "nan"], "lr: found nan, expected a number >= 0"),
        ([*TEXT, "--steps", "2", "--held-out", "1"], "--held-out: found 1.0, expected a share"),
        ([*TEXT, "--steps", "2", "--length", "100000"], "expected at least 100001: one sequence"),
        ([*TEXT, "--steps", "2", "--tokenizer", "no.json"], "no.json: cannot be read"),
        ([*TEXT, "--steps", "2", "--tokenizer", "cluster.yaml"], "expected a tokenizer.json"),
        ([*TEXT, "--steps", "2", "--plan", "no.json"], "--cluster: expected a cluster.yaml"),
        (
            ["train", "models_of_test:small", "--data", "text", "--global-batch", "1", "--steps"]
            + ["2", "--cluster", "cluster.yaml"],
            "--global-batch: found 1, expected at least one row for each of 2 devices",
        ),
        (
            ["train", "models_of_test:small", "--data", "text", "--global-batch", "900"]
            + ["--steps", "2"],
            "expected at least a global batch of 900",
        ),
        (["train", "no.such:model", "--data", "text", "--steps", "2"], "No module named 'no'"),
        (["train", "models_of_test:mlp", "--data", "text", "--steps", "2"], "expected token ids"),
        (["train", "models_of_test:bert", "--data", "text", "--steps", "2"], "expected a causal"),
        (["train", "models_of_test:small", "--data", "nowhere", "--steps", "2"], "a folder"),
        (["train", "models_of_test:small", "--data", "images", "--steps", "2"], "found no *.txt"),
        (["train", "models_of_test:vit", "--data", "text", "--steps", "2"], "found 0 subfolders"),
        (
            ["train", "models_of_test:one_class", "--data", "images", "--steps", "2"],
            "24 images of 2 classes: the model does not take them",
        ),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_bad_input_is_one_sentence(medley: Command, arguments: list[str], sentence: str) -> None:
    code, out, err = medley(*arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.strip().splitlines()) == 1


# The data come first: an output of an earlier run is no fault of a wrong folder.
def test_a_wrong_folder_of_data_is_said_before_the_output(medley: Command, folder: Path) -> None:
    (folder / "out").touch()
    code, _, err = medley("train", "models_of_test:small", "--data", "nowhere", "--steps", "2")
    assert code == 2
    assert err == "--data: nowhere: expected a folder\n"


# A failure at the end of training is reported at the start.
def test_an_output_that_cannot_be_written_is_said_before_training(
    medley: Command, folder: Path
) -> None:
    (folder / "out").touch()
    code, out, err = medley(*TEXT, "--steps", "1000000")
    assert (code, out) == (3, "")
    assert err == "out: cannot be written: Not a directory\n"


def test_a_full_disk_is_one_sentence(medley: Command, folder: Path) -> None:
    (folder / "out").mkdir()
    (folder / "out" / "model.safetensors").symlink_to("/dev/full")
    code, _, err = medley(*TEXT, "--steps", "2")
    assert code == 3
    assert err == "out/model.safetensors: cannot be written: No space left on device\n"


def test_tokens_that_the_model_lacks_are_one_sentence(medley: Command, folder: Path) -> None:
    (folder / "text" / "c.txt").write_bytes(b"\xff" * 40)
    code, _, err = medley(*TEXT, "--steps", "2")
    assert code == 2
    assert "tokens up to 255: the model does not take them: index out of range" in err


def test_an_unreadable_image_is_one_sentence(medley: Command, folder: Path) -> None:
    (folder / "images" / "red" / "3.jpg").write_bytes(b"no image")
    code, _, err = medley(*IMAGES, "--epochs", "2", "--held-out", "0")
    assert code == 2
    assert "images/red/3.jpg: cannot be read: cannot identify image" in err
    assert len(err.strip().splitlines()) == 1
    assert not (folder / "out" / "model.safetensors").exists()


def test_a_loss_that_is_not_finite_is_one_sentence(medley: Command) -> None:
    code, _, err = medley(*TEXT, "--steps", "30", "--optimizer", "sgd", "--lr", "1e30")
    assert code == 2
    assert "expected a finite one" in err


# --- folders --------------------------------------------------------------------------------------


def test_text_is_cut_into_sequences_of_all_files(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").write_bytes(b"xyz")
    (tmp_path / "a.txt").write_bytes(b"abcd")
    (tmp_path / "sub" / "c.txt").write_bytes(b"m")
    text = read_text_folder(tmp_path, 3, shifted=True)
    assert bytes(text.tokens.tolist()) == b"abcd\0xyz\0m\0"
    assert len(text) == 3
    inputs, labels = text.rows([0, 2])
    assert inputs.tolist() == [list(b"abc"), list(b"yz\0")]
    assert labels.tolist() == [list(b"bcd"), list(b"z\0m")]
    same, own = read_text_folder(tmp_path, 3, shifted=False).rows([1])
    assert same.tolist() == own.tolist() == [list(b"d\0x")]


def test_a_tokenizer_gives_the_tokens(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    words = {"one": 0, "device": 1, "<eos>": 2}
    model = tokenizers.models.WordLevel(words, unk_token="one")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "a.txt").write_text("one device one")
    text = read_text_folder(tmp_path, 2, False, tmp_path / "tokenizer.json")
    assert text.tokens.tolist() == [0, 1, 0, 2]


def test_images_are_scaled_and_their_middle_taken(tmp_path: Path) -> None:
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
    picture = PIL.new("RGB", (30, 10), (255, 0, 0))
    picture.paste((0, 255, 0), (10, 0, 20, 10))  # green in the middle
    picture.save(tmp_path / "left" / "wide.PNG")
    picture.convert("L").save(tmp_path / "right" / "gray.png")
    images = read_image_folder(tmp_path, (3, 10, 10))
    pixels, labels = images.rows([0, 1])
    assert images.classes == ("left", "right")
    assert labels.tolist() == [0, 1]
    expected = torch.tensor([-1.0, 1.0, -1.0]).reshape(3, 1, 1).expand(3, 10, 10)
    assert torch.equal(pixels[0], expected)
    assert (pixels[1, 0] == pixels[1, 2]).all()
    half = read_image_folder(tmp_path, (3, 5, 5)).rows([0])[0][0]
    assert torch.equal(half[:, :, 2], expected[:, :5, 2])


# An elastic run makes its last step again when it loses a process then.
def test_images_are_read_when_the_script_has_ended(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        PIL.new("L", (8, 8)).save(tmp_path / name / "gray.png")
    script = f"""
import atexit, pathlib
from medley_extras.train.image_folder import read_image_folder
images = read_image_folder(pathlib.Path({str(tmp_path)!r}), (1, 8, 8))
atexit.register(lambda: print(images.rows([0, 1])[0].shape))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "torch.Size([2, 1, 8, 8])\n", done.stderr


def test_augmentation_follows_from_the_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        ramp = PIL.new("L", (64, 8))
        ramp.putdata([x * 4 for _ in range(8) for x in range(64)])
        ramp.save(tmp_path / name / "ramp.png")
    images = read_image_folder(tmp_path, (1, 8, 8), augment=True, seed=5)
    first = images.rows([0, 1], epoch=0)[0]
    assert torch.equal(first, images.rows([0, 1], epoch=0)[0])
    assert not torch.equal(first, images.rows([0, 1], epoch=1)[0])
    assert not torch.equal(first[0], first[1])


def test_every_seed_that_the_options_allow_augments(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(10):
            PIL.new("L", (9, 8)).save(tmp_path / name / f"{i}.png")
    for seed in (2**40 - 1, 1 - 2**40):
        images = read_image_folder(tmp_path, (1, 8, 8), augment=True, seed=seed)
        assert images.rows([19], epoch=3)[0].shape == (1, 1, 8, 8)
