"""A job whose first process has a model that differs from its graph ends with one sentence."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from test_processes import LAUNCH, TORCHRUN, run

pytestmark = [pytest.mark.multi, pytest.mark.slow]

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 1, device: CPU, devices_per_node: 2}
networks:
  - {name: bus, inside: node, bandwidth: 8 GB/s, latency: 5 us}
"""
SCRIPT = """
import sys, torch, medley
from torch import nn
folder, change = sys.argv[1:]
class Net(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.a = nn.Linear(width, 2)
    def forward(self, x):
        return self.a(x).pow(2).mean()
graph = medley.capture(Net(), torch.randn(8, 3))
plan = medley.plan(graph, folder + "/cluster.yaml", plan=folder + "/plan.json")
model = {"meta": Net().to("meta"), "type": Net().double(), "shape": Net(4)}[change]
trainer = medley.Trainer(model, graph, plan)
print("made")
"""


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("meta", "found a tensor without values (on the meta device), expected a model with "),
        ("type", "found torch.float64 of shape [2, 3], the graph expects torch.float32 of shape "),
        ("shape", "found torch.float32 of shape [2, 4], the graph expects torch.float32 of shape "),
    ],
)
@pytest.mark.parametrize(
    "launcher", ["launch", pytest.param("torchrun", marks=pytest.mark.nightly)]
)
def test_a_wrong_model_ends_the_job_in_one_sentence(
    tmp_path: Path, launcher: str, change: str, sentence: str
) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    mesh = {"axes": ["x"], "shape": [2], "devices": ["a/0/0", "a/0/1"]}
    pipeline = {
        "microbatches": [{"rows": 8, "lengths": [7, 1]}],
        "stages": [{"mesh": mesh}],
    }
    plan = {"format": "medley-plan", "version": 1, "global_batch": 8, "pipelines": [pipeline]}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    (tmp_path / "wrong.py").write_text(SCRIPT)
    script = [str(tmp_path / "wrong.py"), str(tmp_path), change]
    command = [*LAUNCH, str(tmp_path / "plan.json")] if launcher == "launch" else [*TORCHRUN]
    done = run([*command, *(["--nproc-per-node=2"] if launcher == "torchrun" else []), *script])
    said = [line for line in done.stderr.splitlines() if "medley: " in line]
    assert len(said) == 1, done.stderr
    assert f"medley: parameter 'a.weight': {sentence}" in said[0]
    assert "made" not in done.stdout
    if launcher == "launch":
        assert done.returncode == 2, done.stderr
        assert "Traceback" not in done.stderr
    else:
        # torchrun prints its own tracebacks, and ends processes that wait for the exit of the
        # first.
        assert "SIGABRT" not in done.stderr
        assert re.search(r"Root Cause .*\n\[0\]:(.*\n)*? +rank +: 0 ", done.stderr), done.stderr
