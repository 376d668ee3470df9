"""Conversion of Sailor's measurements: the script makes the files of tests/data from its data."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "convert_sailor.py"
EXCERPT = ROOT / "tests" / "data" / "sailor"
LAYERS = ROOT / "tests" / "data" / "layers"
sys.path.insert(0, str(ROOT / "scripts"))

from convert_sailor import curve, growing, layer_table, read_times  # noqa: E402


def convert(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(EXCERPT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_makes_the_files_of_the_tests_again(tmp_path: Path) -> None:
    table, cluster = tmp_path / "table.json", tmp_path / "cluster.yaml"
    assert not convert(
        "table", "OPT-350", "--devices", "A100-40,V100-16,GH-96", "-o", str(table)
    ).returncode
    assert not convert("cluster", "a100=A100-40:4", "v100=V100-16:4", "-o", str(cluster)).returncode
    assert table.read_text() == (LAYERS / "opt350.json").read_text()
    assert cluster.read_text() == (LAYERS / "mixed.yaml").read_text()


def test_keeps_what_was_measured() -> None:
    table = layer_table(EXCERPT, "OPT-350", ["GH-96"])
    published = json.loads((EXCERPT / "profiles_layer/OPT-350/GH-96/profile.json").read_text())
    entry = next(e for e in table["times"] if e["tensor_parallel"] == 4 and e["rows"] == 8)
    for layer, name in enumerate(table["layers"]):
        expected = [round(1e9 * s) for s in published["8"]["4"][str(layer)]]
        assert entry["ns"][name] == expected
    assert table["layers"][:3] == ["embedding", "block", "block-2"]
    assert table["layers"][3:] == ["block-2"] * 22 + ["head"]


def test_refuses_a_table_of_another_model(tmp_path: Path) -> None:
    done = convert("table", "GPT-Neo-2.7", "--devices", "GH-96", "-o", str(tmp_path / "t.json"))
    assert done.returncode == 1
    assert done.stderr == "GPT-Neo-2.7 on GH-96: layers of another model: see --ops-like\n"


def test_says_what_is_missing(tmp_path: Path) -> None:
    done = convert("table", "GPT-5", "--devices", "GH-96", "-o", str(tmp_path / "t.json"))
    assert done.returncode == 1
    assert "expected it as published with Sailor" in done.stderr
    assert "Traceback" not in done.stderr
    done = convert("cluster", "a100", "-o", str(tmp_path / "c.yaml"))
    assert "found a100, expected name=KIND:NODES" in done.stderr


def test_layers_from_ops_of_the_same_model_are_its_layers() -> None:
    """Checks the layers of --ops-like for OPT-350 itself: its blocks, with monotone times of
    rows."""
    table = layer_table(EXCERPT, "OPT-350", ["GH-96"], ops_like="OPT-350")
    measured = growing(read_times(EXCERPT, "OPT-350", "GH-96")[4])
    for entry in table["times"]:
        assert entry["tensor_parallel"] == 4  # the only ops of the excerpt
        expected = [round(1e9 * s) for s in measured[entry["rows"]][2]]
        assert entry["ns"]["block"] == expected


def test_fewer_rows_take_no_longer() -> None:
    rows = {1: [[5.0, 1.0, 9.0]], 2: [[3.0, 2.0, 7.0]], 4: [[4.0, 4.0, 8.0]]}
    assert growing(rows) == {1: [[3.0, 1.0, 9.0]], 2: [[3.0, 2.0, 7.0]], 4: [[4.0, 4.0, 8.0]]}


def test_curves_follow_their_equation_and_never_fall() -> None:
    made = curve(2, [[-1.0, 4.0, 2.0], 5.5e9])  # 2, 5, then at most 5.5, then the parabola falls
    assert made["points"][:3] == ["[1 MiB, 2 GB/s]", "[2 MiB, 5 GB/s]", "[4 MiB, 5.5 GB/s]"]
    assert made["points"][-1] == "[1024 MiB, 5.5 GB/s]"
    assert made["most"] == pytest.approx(5.5e9)
