"""`scripts/setup.sh` installs a wheel with kernels for the GPUs listed by nvidia-smi."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "torch_wheel.py"
PYPI = "torch==2.13.0\n"
CU126 = "torch==2.13.0+cu126 --extra-index-url https://download.pytorch.org/whl/cu126\n"
CPU = "torch==2.13.0+cpu --extra-index-url https://download.pytorch.org/whl/cpu\n"


def chosen(
    folder: Path, cards: list[str] | None, machine: str = "x86_64", **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the script with an nvidia-smi that lists these GPUs: "name, capability, driver"."""
    fake = folder / "bin"
    fake.mkdir(exist_ok=True)
    if cards is not None:
        lines = "\n".join(cards)
        (fake / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{lines}\nEND\n")
        (fake / "nvidia-smi").chmod(0o755)
    return subprocess.run(
        [sys.executable, str(SCRIPT), "2.13.0", machine],
        env={**os.environ, "PATH": str(fake) if cards is None else f"{fake}:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("cards", "expected"),
    [
        (None, CPU),
        (["Tesla V100-SXM2-16GB, 7.0, 580.65.06"], CU126),
        (["Tesla P100-PCIE-16GB, 6.0, 535.104.05"], CU126),
        (["NVIDIA GeForce GTX 1080 Ti, 6.1, 550.54"], CU126),
        (["Tesla M40, 5.2, 550.54"], CU126),
        (["Tesla T4, 7.5, 580.65.06"], PYPI),
        (["NVIDIA GeForce RTX 4090, 8.9, 580.65.06"], PYPI),
        (["NVIDIA GeForce RTX 5090, 12.0, 580.65.06"], PYPI),
        (["NVIDIA of tomorrow, 13.0, 700.1"], PYPI),  # PTX
        # CUDA 13 needs a driver that this machine does not have.
        (["NVIDIA H100 80GB HBM3, 9.0, 550.54.14"], CU126),
        (["NVIDIA GeForce RTX 3090, 8.6, 580.1", "Tesla V100-PCIE-32GB, 7.0, 580.1"], CU126),
        (["NVIDIA GeForce RTX 3090, 8.6, 580.1", "NVIDIA GeForce RTX 5080, 12.0, 580.1"], PYPI),
    ],
)
def test_the_wheel_has_kernels_for_every_card(
    tmp_path: Path, cards: list[str] | None, expected: str
) -> None:
    done = chosen(tmp_path, cards)
    assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)


@pytest.mark.parametrize(
    ("cards", "sentence"),
    [
        (
            ["Tesla V100-SXM2-16GB, 7.0, 580.1", "NVIDIA GeForce RTX 5090, 12.0, 580.1"],
            "no one PyTorch wheel has kernels for both Tesla V100-SXM2-16GB (compute capability "
            "7.0) and NVIDIA GeForce RTX 5090 (compute capability 12.0)",
        ),
        (["Tesla K80, 3.7, 470.1"], "has kernels for Tesla K80 (compute capability 3.7)"),
        (["NVIDIA GeForce RTX 5090, 12.0, 570.1"], "the driver is 570: these cards need 580"),
        (["Tesla V100-SXM2-16GB, 7.0, 470.1"], "the driver is 470: these cards need 525"),
        (["Field compute_cap is not a valid field to query."], "expected name, compute_cap"),
        ([], "does not say the compute capability"),
    ],
)
def test_impossible_runs_are_refused(tmp_path: Path, cards: list[str], sentence: str) -> None:
    done = chosen(tmp_path, cards)
    assert (done.stdout, done.returncode) == ("", 3)
    assert done.stderr.startswith("setup: ") and sentence in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_environment_decides(tmp_path: Path) -> None:
    cards = ["Tesla V100-SXM2-16GB, 7.0, 580.1", "NVIDIA GeForce RTX 5090, 12.0, 580.1"]
    assert chosen(tmp_path, cards, TORCH_WHEEL="cu126").stdout == CU126
    assert chosen(tmp_path, cards, TORCH_WHEEL="cu130").stdout == PYPI
    wrong = chosen(tmp_path, cards, TORCH_WHEEL="cu12")
    assert wrong.stderr == "setup: TORCH_WHEEL: found cu12, expected one of cpu, cu130, cu126\n"


def test_other_machines_have_other_kernels(tmp_path: Path) -> None:
    """The ARM wheels have no kernels for Turing and Ampere's small GPUs of PCs."""
    assert chosen(tmp_path, ["NVIDIA GH200 480GB, 9.0, 580.1"], "aarch64").stdout == PYPI
    done = chosen(tmp_path, ["Tesla T4, 7.5, 580.1"], "aarch64")
    assert done.stderr == (
        "setup: no PyTorch wheel for aarch64 has kernels for Tesla T4 (compute capability 7.5)\n"
    )
