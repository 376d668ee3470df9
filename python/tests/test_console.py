"""The console output of all verbs: its width, rates, percents, and the next command."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from medley import cli
from medley_extras.demo import emulated, kill

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
MOST = 100
LONG = "transformer.decoder.residual_blocks_with_experts"  # of the names in the graph
POOLS = {
    "reserved-a100-in-berlin": "A100-40GB",
    "spot-v100-in-frankfurt": "V100-16GB",
    "old-p100-under-the-desk": "P100-16GB",
    "lent-t4-of-a-friend": "T4-16GB",
}
CONFIG = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
}


def cluster(nodes: int) -> str:
    rows = "".join(
        f"  - {{name: {name}, count: {nodes}, device: {device}, devices_per_node: 8}}\n"
        for name, device in POOLS.items()
    )
    return (
        f"format: medley-cluster\nversion: 1\nnodes:\n{rows}networks:\n"
        "  - {name: bus-inside-of-a-node, inside: node, bandwidth: 8 GB/s, latency: 5 us}\n"
        f"  - {{name: wide-area-network, connects: [{', '.join(POOLS)}], bandwidth: 10 Gbit/s, "
        "latency: 20 us}\n"
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with graphs, clusters, plans and measured layers; 64 devices of four types."""
    path = tmp_path_factory.mktemp("console")
    text = (DATA / "deep.graph").read_text()
    (path / "long.graph").write_text(text.replace("layers.", f"{LONG}."))
    (path / "wide.yaml").write_text(cluster(2))
    (path / "few.yaml").write_text(cluster(1).replace("devices_per_node: 8", "devices_per_node: 1"))
    for name in ("deep.graph", "plans/deep_pipelines.json", "layers/opt350.json"):
        shutil.copy(DATA / name, path)
    for name in ("plans/everything.json", "layers/mixed.yaml"):
        shutil.copy(DATA / name, path)
    shutil.copy(ROOT / "tests/golden/cli/pools.yaml", path)
    shutil.copy(ROOT / "tests/golden/cli/tiny.yaml", path)
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "books").mkdir()
    (path / "books/a.txt").write_text("To be, or not to be, that is the question. " * 400)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        for strategy, file in (("hap", "hap.json"), ("data-parallel-even", "even.json")):
            words = f"plan long.graph wide.yaml --global-batch 4096 --strategy {strategy} -o {file}"
            assert cli.run(words.split()) == 0
        words = "plan --layers opt350.json mixed.yaml --global-batch 256 -o layers.json"
        assert cli.run(words.split()) == 0
    return path


WIDE = "long.graph wide.yaml"
SEVERAL = "deep.graph pools.yaml deep_pipelines.json"
MEASURED = "--layers opt350.json mixed.yaml"
WITH_NEXT = [
    f"plan {WIDE} --global-batch 4096 --strategy hap -o new.json",
    f"plan {WIDE} --global-batch 4096 --strategy data-parallel-proportional",
    "plan deep.graph pools.yaml --global-batch 256 --strategy autohet -o several.json",
    f"plan {MEASURED} --global-batch 256 -o measured.json",
    "explain hap.json",
    "explain everything.json",
    "explain hap.json --graph long.graph --cluster wide.yaml",
    "explain deep_pipelines.json --graph deep.graph --cluster pools.yaml",
    "compare long.graph few.yaml --global-batch 64 --strategies data-parallel-even,hap,harp",
    f"compare {MEASURED} --global-batch 256",
    f"simulate {WIDE} hap.json",
    f"simulate {SEVERAL}",
    f"simulate {SEVERAL} --trace trace.json",
    f"simulate {MEASURED} layers.json",
    "check long.graph wide.yaml",
    f"check {WIDE} hap.json",
    "check hap.json wide.yaml",
    "list strategies",
    "capture medley_extras.models:gpt?width=32&layers=1 --batch 2x8 -o gpt.graph",
    "report even.json --graph long.graph --cluster wide.yaml -o report.html",
    "fits hf:config.json --cards 2x3090 4060Ti-16GB T4 --lengths 512 --mode full --no-cache",
    "doctor",
]
OTHERS = [
    "explain hap.json --graph long.graph --cluster wide.yaml --expanded",
    "explain deep_pipelines.json --graph deep.graph --cluster pools.yaml --expanded",
    "explain --layers long.graph",
    "explain layers.json --layers opt350.json --cluster mixed.yaml",
    f"simulate {SEVERAL} --schedules all",
    f"memory {WIDE} hap.json",
    f"memory {SEVERAL}",
    f"memory {MEASURED} layers.json",
    "list devices",
    "list ops",
    "train medley_extras.models:gpt?width=32&layers=1 --data books --length 8 --steps 2 -o out",
]
ERRORS = [
    "plan long.graph tiny.yaml --global-batch 4000 --strategy data-parallel-even --microbatches 1",
    "plan long.graph wide.yaml --global-batch 64 --strategy fastest",
    "simulate long.graph wide.yaml everything.json",
    "check long.graph wide.yaml deep_pipelines.json",
    "list everything",
    "capture medley_extras.models:nothing_of_that_name --batch 2x8 -o gpt.graph",
    "fits hf:config.json --cards 9999Ti",
    "launch hap.json a_script_that_is_not_there_in_this_folder.py --emulate nothing.yaml",
    "nothing",
]
HELP = [f"{verb} --help" for verb, _, _ in cli._core.cli_verbs()]
HELP += [f"{verb.name} --help" for verb in cli._all_verbs()] + ["--help"]


def output(words: str, folder: Path, patch: pytest.MonkeyPatch, capsys: object) -> tuple[int, str]:
    """Returns the exit code and the text of a command line, in a wide terminal."""
    patch.chdir(folder)
    patch.setenv("COLUMNS", "200")
    patch.setattr(sys, "argv", ["medley", *words.split()])
    capsys.readouterr()  # type: ignore[attr-defined]
    code = cli.main()
    out, err = capsys.readouterr()  # type: ignore[attr-defined]
    return code, out + err


def check_text(text: str) -> None:
    wide = [line for line in text.splitlines() if len(line) > MOST]
    assert not wide, "\n".join(wide)
    assert not re.search(r"\de[+-]?\d+ \w+/s|rows/s", text), text
    assert not re.search(r"\d%", text.replace(": 2%", "")), text  # the argument of --gap


@pytest.mark.parametrize("words", WITH_NEXT)
def test_verbs_end_with_the_next_command(
    words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = output(words, folder, monkeypatch, capsys)
    assert code == 0, text
    check_text(text)
    last = text[text.rindex("Next: ") :].splitlines()
    assert all(line.startswith(("Next: ", "  or: ", "      ")) for line in last), text


def test_the_help_has_every_verb_in_one_group(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--help"]) == 0
    groups = re.findall(r"^(\w+):\n((?:  .*\n)+)", capsys.readouterr().out, re.M)
    assert [name for name, _ in groups] == list(cli._GROUPS)
    shown = [row.split()[0] for _, rows in groups for row in rows.splitlines()]
    verbs = [name for name, _, _ in cli._core.cli_verbs()]
    assert sorted(shown) == sorted([*verbs, *(verb.name for verb in cli._all_verbs())])


def test_the_core_shows_its_verbs_as_the_package_does(capsys: pytest.CaptureFixture[str]) -> None:
    cli.run(["--help"])
    rows = capsys.readouterr().out.splitlines()
    assert cli._core.run_cli(["--help"], "") == 0
    _, _, groups = capsys.readouterr().out.partition("\nPlan:\n")
    shown = [line for line in groups.splitlines() if line.startswith("  ")]
    assert len(shown) == len(cli._core.cli_verbs()) and not set(shown) - set(rows)


@pytest.mark.parametrize("words", [*OTHERS, *HELP])
def test_verbs_keep_within_the_width(
    words: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = output(words, folder, monkeypatch, capsys)
    assert code == 0, text
    check_text(text)


@pytest.mark.parametrize("words", ERRORS)
def test_errors_keep_within_the_width(words: str, folder: Path) -> None:
    """An error is one line in a file, and lines of at most 100 columns at a terminal."""
    reader, terminal = pty.openpty()
    command = [sys.executable, "-m", "medley", *words.split()]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=terminal) as done:
        code = done.wait()
    os.close(terminal)
    text = os.read(reader, 1 << 16).decode().replace("\r\n", "\n")
    os.close(reader)
    assert code in (2, 3), text
    check_text(text)


def test_json_has_no_next_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in WITH_NEXT[:1] + WITH_NEXT[6:8] + WITH_NEXT[10:11] + ["list strategies"]:
        code, text = output(f"{words} --json", folder, monkeypatch, capsys)
        assert code == 0 and json.loads(text) and "Next: " not in text


def test_demo_keeps_within_the_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    waits = dict(zip(emulated.SPEEDS, (0.55, 0.551, 0.11, 0.123), strict=True))
    outcome = emulated.Outcome("proportional split", 0.1234, 2.5, waits)
    emulated._print([outcome, outcome], outcome, 123.4, Path("demo-trace.json"))
    survival = kill.Survival("fast/2/0", 8, 0.18, [3.0, 2.5, 2.0] * 8, [3.0, 2.5, 2.0] * 8)
    text = capsys.readouterr().out + survival.text()
    check_text(text)
    assert "Killed fast/2/0, 1 of 3 processes, after step 9. Training resumed after 0.18 s." in text
    assert " 55 %" in text


def test_report_has_one_style_of_percents(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = "report hap.json --graph long.graph --cluster wide.yaml --compare -o shown.html"
    code, text = output(words, folder, monkeypatch, capsys)
    assert code == 0, text
    body = (folder / "shown.html").read_text()
    body = body[body.index("<body") :]
    texts = re.findall(r">([^<>{}]+)<", re.sub(r"<script.*?</script>", "", body, flags=re.DOTALL))
    assert not [each for each in texts if re.search(r"\d%|rows/s", each)]
    assert "samples/s, predicted" in texts
