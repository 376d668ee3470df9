"""Links that die during a run: every device ends within half a minute and names the link. Needs
root."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import medley
from medley_extras.models import gpt
from testbed.tests.clusters import FOUR, Testbed, first_of, run

pytestmark = pytest.mark.testbed

PROGRAM = Path(__file__).parent / "programs" / "cut_link.py"
DEVICES = ["fast/0/0", "fast/1/0", "slow/0/0", "slow/1/0"]
MOST_SECONDS = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has a cluster and a plan of two stages of two devices."""
    (tmp_path / "cluster.yaml").write_text(FOUR)
    graph = medley.capture(*gpt(batch=8))
    plan = {
        "format": "medley-plan",
        "version": 1,
        "global_batch": 8,
        "pipelines": [
            {
                "microbatches": [{"rows": 2, "lengths": [1, 1]}] * 4,
                "stages": [
                    {"mesh": {"devices": DEVICES[:2]}},
                    {"mesh": {"devices": DEVICES[2:]}, "first": first_of(graph, 1), "rows": [1, 1]},
                ],
            }
        ],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    return tmp_path


# Device 3 cannot reach one of another stage; the master, with the store; one of its own stage; or
# any device.
@pytest.mark.parametrize(
    ("address", "others"),
    [
        pytest.param("10.77.0.2", [1], id="other stage", marks=pytest.mark.slow),
        pytest.param("10.77.0.1", [0], id="master", marks=pytest.mark.slow),
        pytest.param("10.77.0.3", [2], id="own stage", marks=pytest.mark.slow),
        pytest.param("all", [0, 1, 2], id="all", marks=pytest.mark.slow),
    ],
)
def test_a_dead_link_ends_all_and_is_named(
    testbed: Testbed, folder: Path, address: str, others: list[int]
) -> None:
    # Every device ends by itself: the testbed would end the others with the first.
    line = f"{sys.executable} {PROGRAM} {folder} 3 {address}; echo ended $? $(date +%s.%N)"
    options = ["--plan", str(folder / "plan.json"), "--timeout", "200"]
    done = run(testbed(*options, str(folder / "cluster.yaml"), "--", "sh", "-c", line))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("five steps") == 4, done.stdout + done.stderr
    begin = float(re.findall(r"cut ([\d.]+)", done.stdout)[0])
    ends = re.findall(r"\[(.+?)\s*\] ended (\d+) ([\d.]+)", done.stdout)
    assert sorted(name for name, _, _ in ends) == DEVICES
    assert all(code != "0" for _, code, _ in ends)
    assert max(float(at) for _, _, at in ends) - begin < MOST_SECONDS
    # Their last lines on standard error. Both come through the testbed's output.
    waited = "waiting for rank"  # printed before all have come, and while the first captures
    lines = [line for line in done.stdout.splitlines() if waited not in line]
    said = [line for line in lines if "] medley: " in line]
    assert {line.partition("]")[0].strip("[ ") for line in said} == set(DEVICES), done.stdout
    parties = [DEVICES[3], *(DEVICES[other] for other in others)]
    for line in said:
        assert any(name in line.partition("medley: ")[2] for name in parties), said
        assert "eth0" in line, said
    assert "Traceback" not in done.stdout


# One torchrun on every node, without a chosen interface.
@pytest.mark.slow
def test_torchrun_on_every_node_trains_one_plan(testbed: Testbed, folder: Path) -> None:
    program = folder / "train.py"
    program.write_text(
        "import sys\n"
        "import torch, medley\n"
        "from medley_extras.models import gpt\n"
        "torch.manual_seed(0)\n"
        "model, batch = gpt(batch=8)\n"
        "graph = medley.capture(model, batch)\n"
        "plan = medley.plan(graph, sys.argv[1], plan=sys.argv[2])\n"
        "local = 'local' in sys.argv\n"
        "trainer = medley.Trainer(model, graph, plan, medley.SGD(lr=0.1), local=local)\n"
        "print('loss', [round(trainer.step(batch).loss, 4) for _ in range(3)])\n"
    )
    files = f"{folder / 'cluster.yaml'} {folder / 'plan.json'}"
    line = (
        f"env -u GLOO_SOCKET_IFNAME {sys.executable} -m torch.distributed.run --nnodes 4 "
        "--nproc-per-node 1 --node-rank $RANK --master-addr $MASTER_ADDR --master-port 29511 "
        f"{program} {files}"
    )
    options = ["--plan", str(folder / "plan.json"), str(folder / "cluster.yaml")]
    done = run(testbed(*options, "--", "sh", "-c", line))
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"loss (\[.*\])", done.stdout)
    alone = run([sys.executable, str(program), *files.split(), "local"])
    assert alone.returncode == 0, alone.stderr
    assert losses == re.findall(r"loss (\[.*\])", alone.stdout) * 4
