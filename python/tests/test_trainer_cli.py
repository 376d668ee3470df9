"""The command line of Python: its output, its refusals, and its exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from medley import _core, cli
from medley.files import write_atomically
from medley.graph import Graph
from medley.run.supervisor import exit_code
from medley_extras.demo import emulated, kill

Command = Callable[..., tuple[int, str, str]]
CONFIG = {
    "model_type": "gpt2",
    "vocab_size": 64,
    "n_positions": 16,
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
}


def run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str
) -> tuple[int, str, str]:
    """Runs a command line. Returns exit code, output and errors."""
    monkeypatch.setattr(sys, "argv", ["medley", *arguments])
    code = cli.main()
    found = capsys.readouterr()
    return code, found.out, found.err


@pytest.fixture
def medley(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Returns a function that runs a command line and returns exit code, output and errors."""
    return lambda *arguments: run(capsys, monkeypatch, *arguments)


def test_every_verb_has_help_with_an_example(medley: Command) -> None:
    code, out, _ = medley("--help")
    assert code == 0
    for verb in cli.VERBS:
        assert verb.name in out
        code, text, _ = medley(verb.name, "--help")
        assert code == 0
        assert verb.example in text
    assert medley("plan", "--help")[0] == 0


def test_captures_a_model_by_name(medley: Command, tmp_path: Path) -> None:
    path = str(tmp_path / "g.graph")
    code, out, _ = medley(
        "capture", "medley_extras.models:gpt", "--batch", "2x16", "-o", path, "--json"
    )
    assert code == 0
    assert json.loads(out)["parameters"] > 10
    assert 'batch "input_ids" : i64[b, 16]' in Path(path).read_text()
    assert medley("check", path)[0] == 0


def test_captures_a_model_with_arguments(medley: Command, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    path = str(tmp_path / "g.graph")
    name = "hf:mixtral?num_hidden_layers=1&num_local_experts=3&hidden_size=4096"
    code, _, _ = medley("capture", name, "--autocast", "-o", path)
    assert code == 0
    text = Path(path).read_text()
    assert "f32[3, 192, 4096]" in text
    assert "bf16[3, 192, 4096]" in text


def test_captures_a_config_of_transformers(medley: Command, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    path = str(tmp_path / "g.graph")
    code, _, _ = medley("capture", f"hf:{tmp_path}/config.json", "--batch", "2x8", "-o", path)
    assert code == 0
    assert 'batch "input_ids" : i64[b, 8]' in Path(path).read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["sing"], "medley: found the verb 'sing', expected one of plan, "),
        (
            ["capture", "medley_extras.models:gpt"],
            "the following arguments are required: -o/--output",
        ),
        (["capture", "gpt", "-o", "g"], "expected package.module:function or hf:config.json"),
        (["capture", "no.such:gpt", "-o", "g"], "model: no.such: No module named 'no'"),
        (["capture", "medley_extras.models:gtp", "-o", "g"], "found no function 'gtp'"),
        (["capture", "hf:nowhere.json", "-o", "g"], "nowhere.json: cannot be read: no such file"),
        (
            ["capture", "hf:gpt2?layers", "-o", "g"],
            "found 'layers' behind the ?, expected name=value",
        ),
        (
            ["capture", "medley_extras.models:gpt?depth=2", "-o", "g"],
            "unknown ['depth']; expected some of",
        ),
        (
            ["capture", "medley_extras.models:gpt?layers=two", "-o", "g"],
            "GPTConfig: layers: found 'two', expected a whole number >= 0",
        ),
        (
            ["capture", "medley_extras.models:gpt?layers=-1", "-o", "g"],
            "GPTConfig: layers: found -1, expected a whole number >= 0",
        ),
        (
            ["capture", "medley_extras.models:vgg?channels=3", "-o", "g"],
            "VGGConfig: channels: found 3, expected a tuple",
        ),
        (
            ["capture", "hf:gpt2?depth=2", "-o", "g"],
            "hf:gpt2: unknown ['depth']; expected batch, tokens, dropout or fields of GPT2Config",
        ),
        (
            ["capture", "hf:gpt2?n_layer=two", "-o", "g"],
            "hf:gpt2: Validation error for field 'n_layer'",
        ),
        (
            ["capture", "hf:gpt2?batch=0", "-o", "g"],
            "hf:gpt2: batch: found 0, expected a whole number > 0",
        ),
        (["capture", "hf:bad.json", "-o", "g"], "bad.json: expected the config.json of a model"),
        (["capture", "hf:list.json", "-o", "g"], "list.json: found no model_type, expected"),
        (["capture", "hf:binary.json", "-o", "g"], "binary.json: cannot be read: not a text"),
        (
            ["capture", "medley_extras.models:gpt", "--batch", "2", "-o", "g"],
            "--batch: found 2, expected ROWSxLENGTH such as 4x128",
        ),
        (["launch", "nowhere.json", "train.py"], "nowhere.json: cannot be read: No such file"),
        (["launch", "bad.json", "train.py"], "bad.json: "),
        (
            ["launch", "--max-restarts", "3", "plan.json", "train.py"],
            "--max-restarts: found 3 without --elastic, expected also that",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_sentence(
    medley: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "binary.json").write_bytes(b"\xff")
    given = sorted(tmp_path.iterdir())
    code, out, err = medley(*arguments)
    assert (code, out) == (2, "")
    assert sentence in err
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == given


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=r"/binary: cannot be read: not a text"):
        Graph.load(tmp_path / "binary")
    with pytest.raises(OSError, match=r"/no/g: cannot be written: No such file"):
        write_atomically(tmp_path / "no" / "g", "")


# A quoted value may be no text, or end within a character.
def test_a_sentence_quotes_any_bytes(medley: Command, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(b"{\xff}")
    code, _, err = medley("check", str(path))
    assert code == 2
    assert err.startswith(f"{path}: ")
    with pytest.raises(ValueError, match=r"^p\.json: .*expected JSON"):
        _core.Plan("{\u00e9}", "p.json")


def test_doctor_finds_what_it_needs_here(medley: Command) -> None:
    code, out, _ = medley("doctor", "--json")
    assert code == 0
    found = {finding["what"]: finding["state"] for finding in json.loads(out)}
    assert found["medley._runtime"] == found["store"] == "ok"


def test_doctor_names_a_wrong_interface(medley: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nonesuch0")
    code, out, _ = medley("doctor", "--json")
    assert code == 3
    (failure,) = [each for each in json.loads(out) if each["state"] == "failure"]
    assert failure["what"] == "GLOO_SOCKET_IFNAME"
    assert "unset GLOO_SOCKET_IFNAME" in failure["fix"]


def test_missing_package_is_one_sentence(medley: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich.console", None)  # importing it raises
    code, _, errors = medley("doctor")
    assert (code, errors) == (3, "medley: rich is missing: pip install rich\n")


# PyTorch takes as long as the rest of `medley launch` before its processes start. TorchDynamo takes
# as long again, and only capture needs it.
@pytest.mark.parametrize(
    ("module", "unneeded"),
    [("medley.run.launch", "torch"), ("medley_extras.train.run", "torch._dynamo")],
)
def test_slow_imports_are_lazy(module: str, unneeded: str) -> None:
    line = f"import sys, {module}; sys.exit({unneeded!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", line], check=False).returncode == 0


def test_interrupt_ends_a_verb_of_the_core_at_once() -> None:
    reading, full = os.pipe()
    os.set_blocking(full, False)
    with pytest.raises(BlockingIOError):
        while True:
            os.write(full, b"x" * 4096)
    os.set_blocking(full, True)  # without a reader, printing into it blocks forever
    process = subprocess.Popen(
        [sys.executable, "-m", "medley", "list", "devices"],
        stdout=full,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    program = str(Path(cli.__file__).parents[1] / "bin" / "medley").encode()
    command_line = Path(f"/proc/{process.pid}/cmdline")
    end = time.monotonic() + 60
    while not command_line.read_bytes().startswith(program) and time.monotonic() < end:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    os.close(reading)
    os.close(full)
    assert errors == b""
    assert process.returncode == -signal.SIGINT


def test_table_of_the_demo_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    waiting = dict(zip(emulated.SPEEDS, (0.55, 0.55, 0.11, 0.11), strict=True))
    names = ("even split", "proportional split", "one fast device")
    *outcomes, one = (emulated.Outcome(name, 0.02506, 3.2912, waiting) for name in names)
    emulated._print(outcomes, one, 28, Path("trace.json"))
    out = capsys.readouterr().out
    for name in names:
        assert any(line.startswith(f"{name} ") for line in out.splitlines())
    for text in ("tokens/s", "fast wait", "55 %, 55 %", "11 %, 11 %", "25.06 ms", "3.2912"):
        assert text in out
    assert "…" not in out


# Perfect balance of the speeds 2:2:1:1 would be 1.5 times as fast as the even split.
@pytest.mark.slow
def test_demo(medley: Command, tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    given = ("--steps", "2", "--trace", str(trace), "--json", "--no-kill")
    code, out, _ = medley("demo", *given)
    assert code == 0
    figures = json.loads(out)
    even, proportional, one = figures["runs"]
    assert proportional["speedup"] >= 1.35
    assert 0.10 <= figures["communication_share_of_even"] <= 0.25
    assert even["step_seconds"] / figures["perfect_balance_seconds"] == pytest.approx(1.5)
    for each in (even, proportional):
        assert each["loss"] == pytest.approx(one["loss"], rel=1e-5)
        assert each["waiting"].keys() == emulated.SPEEDS.keys()
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["ph"] for event in events} >= {"X", "M"}


@pytest.mark.slow
def test_demo_shows_a_kill_that_the_curve_does_not_notice() -> None:
    survived = kill.survive(emulated.Demo(1, lambda: None))
    assert survived.step == kill.KILLED - 1
    assert len(survived.losses) == kill.STEPS
    assert survived.difference < 1e-4
    lines = survived.text().splitlines()
    assert len(lines) == 3
    assert all(len(line) <= 80 for line in lines)


def test_exit_codes_are_those_of_a_shell() -> None:
    assert (exit_code(0), exit_code(2), exit_code(-9)) == (0, 2, 137)
