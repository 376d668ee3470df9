"""Several losses over one state in processes: killed, and resumed under other plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
import exactness
from joint_models import CASES
from test_joint import STEPS, captured, compared, made, plan_of, train_eager

import warm_start

pytestmark = [pytest.mark.multi]

SCRIPT = Path(__file__).with_name("joint.py")


def launched(folder: Path, name: str, *shapes: str) -> subprocess.CompletedProcess[str]:
    """Trains a case to the end, one process for each of two devices."""
    with exactness.double_precision():
        plan = plan_of("rows", next(iter(captured(name).values())))
    (folder / "plan.json").write_text(plan.text)
    path = os.pathsep.join([*(entry for entry in sys.path if entry), str(SCRIPT.parent)])
    command = [sys.executable, "-m", "medley", "launch", str(folder / "plan.json")]
    return subprocess.run(
        warm_start.command([*command, str(SCRIPT), str(folder), name, str(STEPS), *shapes]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        timeout=300,
    )


# The plans of both objectives list the devices in different orders.
@pytest.mark.parametrize(
    ("name", "before", "after"),
    [
        ("dcgan", "tensor uneven", "uneven stages"),
        pytest.param("two heads", "stages zero", "uneven rows", marks=pytest.mark.nightly),
        pytest.param("wgan", "tensor rows", "uneven zero", marks=pytest.mark.nightly),
        pytest.param("distillation", "rows stages", "zero uneven", marks=pytest.mark.nightly),
        pytest.param("dino", "rows", "tensor", marks=pytest.mark.nightly),
        pytest.param("moco", "uneven", "rows", marks=pytest.mark.nightly),
    ],
)
def test_a_killed_run_resumes_under_other_plans(
    name: str, before: str, after: str, tmp_path: Path
) -> None:
    (tmp_path / "die").write_text("5")
    assert launched(tmp_path, name, *before.split()).returncode != 0
    (tmp_path / "die").unlink()
    done = launched(tmp_path, name, *after.split())
    assert done.returncode == 0, done.stderr
    losses = json.loads((tmp_path / "losses.json").read_text())
    assert 7 <= len(losses) < STEPS
    with exactness.double_precision():
        want_losses, want = train_eager(name)
        got = torch.load(tmp_path / "state.pt")
        model = made(CASES[name])[0]
        safetensors.torch.load_model(model, tmp_path / "model" / "model.safetensors")
    assert {n for n, _ in model.named_parameters()} <= got.keys()
    assert all(torch.equal(model.state_dict()[n], tensor) for n, tensor in got.items())
    got = compared(name, got)
    exactness.compare(
        exactness.Curve(losses, {}, got),
        exactness.Curve(want_losses[-len(losses) :], {}, {n: want[n] for n in got}),
    )
