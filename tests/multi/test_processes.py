"""One process per device: under torchrun and under `medley launch`, well and badly."""

from __future__ import annotations

import functools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

import medley
from medley.capture import substitute
from medley.run import ends, job
from medley.run.supervisor import SAVE_SECONDS

sys.path.insert(0, str(Path(__file__).parent))
import train
from exactness import double_precision, loss_of

import warm_start

pytestmark = [pytest.mark.multi, pytest.mark.slow]

SCRIPT = str(Path(train.__file__))
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 1, device: CPU, devices_per_node: 1}
  - {name: b, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [a, b], bandwidth: 1 Gbit/s, latency: 50 us}
devices:
  half: {based_on: CPU, speed: 0.5}
"""
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
LAUNCH = [sys.executable, "-m", "medley", "launch"]


@functools.cache
def captured(name: str) -> medley.Graph:
    """Returns the graph of a model of train.py."""
    with double_precision():
        return medley.capture(*train.make(name))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns a folder with the graph of gpt, a cluster of two devices and a plan that gives them 7
    and 1 rows. The ranks are in the plan's order, which differs from the cluster's."""
    assert not captured("gpt").constants
    (tmp_path / "gpt.graph").write_text(captured("gpt").text())
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    plan = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": 8,
        "pipelines": [
            {
                "microbatches": [{"rows": 8, "lengths": [7, 1]}],
                "stages": [{"mesh": {"axes": ["x"], "shape": [2], "devices": ["b/0/0", "a/0/0"]}}],
            }
        ],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return tmp_path


def environment(**more: str) -> dict[str, str]:
    """Returns the environment of a command with the imports of this process."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **more}


def run(command: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end."""
    return subprocess.run(
        warm_start.command(command),
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def left_running(pids: set[int], seconds: float = 5.0) -> set[int]:
    """Returns the processes that still exist after `seconds`, without zombies: the pipe of an
    ending process closes before it is gone."""
    end = time.monotonic() + seconds
    while (left := {pid for pid in pids if ends.is_running(pid)}) and time.monotonic() < end:
        time.sleep(0.05)
    return left


def pids_in(text: str) -> set[int]:
    """Returns the processes that have printed a step."""
    return {int(pid) for pid in re.findall(r" pid (\d+)", text)}


def cut_into_stages(folder: Path, name: str) -> None:
    """Makes the plan one of two stages, and of four micro-batches."""
    graph = captured(name)
    forward = [each for each in graph.core.stable_names() if "~" not in each]
    plan = json.loads((folder / "plan.json").read_text())
    pipeline = plan["pipelines"][0]
    first, second = pipeline["stages"][0]["mesh"]["devices"]
    pipeline["microbatches"] = [{"rows": 2}] * 4
    pipeline["stages"] = [
        {"mesh": {"devices": [first]}},
        {"mesh": {"devices": [second]}, "first": forward[len(forward) // 2]},
    ]
    (folder / "plan.json").write_text(json.dumps(plan))


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        pytest.param("llama", False, marks=pytest.mark.nightly),
        pytest.param("bert", False, marks=pytest.mark.nightly),
        ("gpt", True),
    ],
)
def test_two_processes_train_like_one_device(folder: Path, name: str, stages: bool) -> None:
    if stages:
        cut_into_stages(folder, name)
    done = run([*TORCHRUN, "--nproc-per-node=2", SCRIPT, str(folder), name, "20"])
    assert done.returncode == 0, done.stderr
    seen = json.loads((folder / "seen.json").read_text())
    assert len(seen["loss"]) == 20
    model, batch = train.make(name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    for loss, norm in zip(seen["loss"], seen["norm"], strict=True):
        optimizer.zero_grad()
        with substitute(model), double_precision():
            expected_loss = loss_of(model(**batch))
            expected_loss.backward()
        expected = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        assert loss == pytest.approx(expected_loss.item(), rel=1e-10)
        assert norm == pytest.approx(expected.item(), rel=1e-10)
        optimizer.step()
    saved = safetensors.torch.load_file(folder / "model" / "model.safetensors")
    for key, value in model.named_parameters():
        difference = (saved[key] - value).detach().abs().max()
        # The gradient of a key bias is only rounding (exactness.py).
        floor = 1e-9 if key.endswith("key.bias") else 0.0
        assert difference <= max(1e-10 * value.detach().abs().max(), floor), key


def test_stages_that_read_rows_in_another_order_do_not_train(folder: Path) -> None:
    cut_into_stages(folder, "gpt")
    plan, script = str(folder / "plan.json"), [SCRIPT, str(folder), "gpt"]
    done = run([*LAUNCH, plan, *script], OTHER_ORDER="1")
    assert done.returncode == 2
    assert 'batch: row 0: found "input_ids" of process 0 and "labels" of process 1' in done.stderr
    assert "step 1 pid" not in done.stdout


def test_wrong_world_size_is_one_sentence(folder: Path) -> None:
    more = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = run([sys.executable, SCRIPT, str(folder), "gpt"], **more)
    assert done.returncode == 2
    lines = [line for line in done.stderr.splitlines() if line.startswith("medley: ")]
    assert lines == [
        "medley: world size: found 1 processes, expected 2: one for each device of the plan "
        "(b/0/0, a/0/0)"
    ]
    assert "Traceback" not in done.stderr


def test_devices_with_different_programs_do_not_start(folder: Path) -> None:
    plan, script = str(folder / "plan.json"), [SCRIPT, str(folder), "gpt"]
    done = run([*LAUNCH, plan, *script], OTHER_BETA="1")
    assert done.returncode == 2, done.stderr
    assert "different programs" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (folder / "model").exists()


# Only the first process writes and prints. The others exit like it.
def test_a_model_that_cannot_be_saved_is_one_sentence(folder: Path) -> None:
    (folder / "model").touch()
    done = run([*LAUNCH, str(folder / "plan.json"), SCRIPT, str(folder), "gpt", "2"])
    assert done.returncode == 3, done.stderr
    lines = [line for line in done.stderr.splitlines() if "medley: " in line]
    said = [line for line in lines if "waiting for" not in line]  # on a slow machine
    assert said == [f"[b/0/0] medley: {folder / 'model'}: cannot be written: File exists"]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("launcher", ["launch", "torchrun"])
def test_a_killed_device_ends_all(folder: Path, launcher: str) -> None:
    script = [SCRIPT, str(folder), "gpt", "100000"]
    command = (
        [*LAUNCH, str(folder / "plan.json"), *script]
        if launcher == "launch"
        else [*TORCHRUN, "--nproc-per-node=2", *script]
    )
    times: list[float] = []
    process = subprocess.Popen(
        warm_start.command(command),
        env=environment(DIE_AT="5"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: list[str] = []
    assert process.stdout is not None

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            times.append(time.monotonic())

    reader = threading.Thread(target=read)
    reader.start()
    assert process.stderr is not None
    errors = process.stderr.read()
    code = process.wait(timeout=60)
    end = time.monotonic()
    reader.join()
    assert code != 0
    assert end - times[-1] < 60  # an exchange waits for ten minutes
    assert not left_running(pids_in("".join(lines)))
    if launcher == "launch":
        assert code == 128 + signal.SIGKILL
        assert "medley launch: device a/0/0 was killed by SIGKILL; stopped the other 1" in errors
    assert not (folder / "model").exists()


def interrupt(
    command: list[str],
    begun: Callable[[str], bool],
    inherited: signal.Handlers = signal.SIG_DFL,
    **more: str,
) -> tuple[int, str]:
    """Runs a command and presses Ctrl-C once it has `begun`. Returns the exit code and all output.
    Its processes must end before the launcher kills them: callers check their last lines.
    `inherited`: initial handler of SIGINT. A shell gives SIG_IGN to background processes, such as
    these tests."""
    process = subprocess.Popen(
        command,
        env=environment(PYTHONUNBUFFERED="1", TORCH_ELASTIC_SHUTDOWN_TIMEOUT="120", **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, inherited),
    )
    assert process.stdout is not None
    text = ""
    while not begun(text):
        line = process.stdout.readline()
        assert line, text
        text += line
    process.send_signal(signal.SIGINT)
    start = time.monotonic()
    text += process.stdout.read()
    code = process.wait(timeout=60)
    assert time.monotonic() - start < SAVE_SECONDS  # after which the launcher ends them
    assert "SIGKILL" not in text  # torchrun reports kills
    return code, text


@pytest.mark.parametrize(
    ("launcher", "inherited"),
    [
        ("launch", signal.SIG_DFL),
        pytest.param("launch", signal.SIG_IGN, marks=pytest.mark.nightly),
        ("torchrun", signal.SIG_DFL),  # its processes inherit its own handlers
    ],
)
def test_ctrl_c_ends_all(folder: Path, launcher: str, inherited: signal.Handlers) -> None:
    script = [SCRIPT, str(folder), "gpt", "100000"]
    start = (
        [*LAUNCH, str(folder / "plan.json")]
        if launcher == "launch"
        else [*TORCHRUN, "--nproc-per-node=2"]
    )
    command = [*start, *script]
    code, text = interrupt(
        command if launcher == "launch" else warm_start.command(command),
        lambda text: len(pids_in(text)) == 2 and "step 3" in text,
        inherited,
        SLOWLY="1",
    )
    assert code == (130 if launcher == "launch" else 1)
    assert text.count("ended pid") == 2
    assert not left_running(pids_in(text))
    assert not (folder / "model").exists()
    if launcher == "launch":  # torchrun prints a traceback of its own
        assert "medley launch: interrupted; all devices stopped" in text
        assert "Traceback" not in text


@pytest.mark.parametrize(
    "launcher", ["launch", pytest.param("torchrun", marks=pytest.mark.nightly)]
)
def test_ctrl_c_while_medley_train_saves(folder: Path, launcher: str) -> None:
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("unequal devices, one model. " * 200)
    out = folder / "out"
    options = ["--data", str(folder / "text"), "--cluster", str(folder / "cluster.yaml")]
    options += ["--plan", str(folder / "plan.json"), "--steps", "1000000", "--log-every", "1"]
    options += ["--held-out", "0", "-o", str(out)]
    start = (
        [*LAUNCH, str(folder / "plan.json"), "train"]
        if launcher == "launch"
        else [*TORCHRUN, "--nproc-per-node=2", "-m", "medley", "train"]
    )
    command = warm_start.command([*start, "medley_extras.models:gpt", *options])
    code, text = interrupt(command, lambda text: "step 3/" in text)
    assert code == (130 if launcher == "launch" else 1)
    state = json.loads((out / "train.json").read_text())
    assert state["step"] >= 3
    assert not state["finished"]
    sentence = f"interrupted: saved {out / 'model.safetensors'} after {state['step']} steps"
    assert text.count(sentence) == 1
    assert safetensors.torch.load_file(out / "model.safetensors")
    assert (out / f"step-{state['step']:08}" / "COMMIT").exists()


# If the weights cannot be written, the last checkpoint keeps the last steps.
def test_a_checkpoint_outlives_weights_that_find_no_room(folder: Path) -> None:
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text("unequal devices, one model. " * 200)
    out = folder / "out"
    (out / "model.safetensors").mkdir(parents=True)
    options = ["--data", str(folder / "text"), "--cluster", str(folder / "cluster.yaml")]
    options += ["--steps", "3", "--held-out", "0", "-o", str(out)]
    done = run([*LAUNCH, str(folder / "plan.json"), "train", "medley_extras.models:gpt", *options])
    assert done.returncode == 3
    assert "model.safetensors: cannot be written: Is a directory" in done.stderr
    assert "Traceback" not in done.stderr
    assert (out / "step-00000003" / "COMMIT").exists()


def test_emulated_times_do_not_depend_on_the_host(folder: Path) -> None:
    seen = []
    for delay in ("0", "7"):
        options = ["--emulate", str(folder / "cluster.yaml"), "--delay-seed", delay]
        script = [SCRIPT, str(folder), "gpt", "4"]
        done = run([*LAUNCH, *options, str(folder / "plan.json"), *script])
        assert done.returncode == 0, done.stderr
        seen.append((folder / "seen.json").read_text())
    assert seen[0] == seen[1]
    assert all(seconds > 0 for seconds in json.loads(seen[0])["seconds"])


def test_threads_and_processes_have_the_same_emulated_times(folder: Path) -> None:
    options = ["--emulate", str(folder / "cluster.yaml")]
    script = [SCRIPT, str(folder), "gpt", "3"]
    done = run([*LAUNCH, *options, str(folder / "plan.json"), *script])
    assert done.returncode == 0, done.stderr
    seen = json.loads((folder / "seen.json").read_text())
    model, batch = train.make("gpt")
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    with job.emulated():
        trainer = medley.Trainer(model, graph, plan, optimizer=medley.AdamW(lr=1e-3), seed=3)
    assert [trainer.step(batch).step_seconds for _ in range(3)] == seen["seconds"]
