"""A job that tries several plans during its first steps trains like one that does not."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

import medley
from medley.run.replanning import Subject, stepper

sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
import racer
from exactness import double_precision
from test_processes import LAUNCH, run
from test_race import CLUSTER

pytestmark = [pytest.mark.multi, pytest.mark.slow]

SCRIPT = str(Path(racer.__file__))
STEPS = 120
VERDICTS = {"chosen", "slower", "cannot win", "over budget"}
# Message costs dominate: pipelines of many micro-batches lose.
MACHINES = CLUSTER.replace("BANDWIDTH", "1 Gbit/s").replace("LATENCY", "5 ms")


def train(folder: Path, tune: str, *options: str, lacks: str = "") -> tuple[list[float], str, str]:
    """Returns losses, the last strategy and the output of a job that begins with even rows."""
    folder.mkdir()
    with double_precision():
        graph = medley.capture(*racer.make())
    cluster = folder / "cluster.yaml"
    cluster.write_text(MACHINES)
    medley.plan(graph, cluster, "data-parallel-even", racer.ROWS).save(folder / "plan.json")
    script = [str(folder / "plan.json"), SCRIPT, str(folder), str(STEPS), *lacks.split()]
    done = run([*LAUNCH, "--tune", tune, *options, *script])
    assert done.returncode == 0, done.stderr
    losses, last = json.loads((folder / "raced.json").read_text())
    return losses, last, done.stderr


def uncorrected(folder: Path) -> float:
    """Returns the predicted seconds of a step under the first plan, by the cluster file."""
    with double_precision():
        graph = medley.capture(*racer.make())
    plan = medley.plan(graph, folder / "cluster.yaml", plan=folder / "plan.json")
    subject = Subject(graph.core, plan.cluster, medley.AdamW(lr=1e-3).core(graph.core))
    return stepper(subject, plan)(plan.cluster)


def test_batches_of_own_rows_keep_their_plan(tmp_path: Path) -> None:
    emulate = ["--emulate", str(tmp_path / "raced" / "cluster.yaml")]
    losses, last, output = train(tmp_path / "raced", "1000", *emulate, lacks="own")
    expected, _, _ = train(tmp_path / "plain", "off")
    assert losses == pytest.approx(expected, rel=1e-10)
    assert last == "data-parallel-even"
    assert "verdict" not in output


# With `lacks`, a device has no memory for the first other plan, or for a step under it. In an
# elastic run every plan of the race uses the first device, and maybe no other one.
@pytest.mark.parametrize(
    ("way", "lacks"),
    [
        ("emulated", ""),
        ("fixed", ""),
        ("elastic", ""),
        ("emulated", "slow/0/0"),
        ("emulated", "slow/0/0 step"),
        ("elastic", "fast/0/0"),
        ("elastic", "fast/0/0 step"),
    ],
)
def test_race_of_processes(
    way: str, lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    log = ["--elastic", "--elastic-log", str(tmp_path / "elastic.jsonl")]
    emulate = ["--emulate", str(tmp_path / "raced" / "cluster.yaml")]
    options = {"elastic": log, "emulated": emulate, "fixed": []}[way]
    losses, last, output = train(tmp_path / "raced", "1000", *options, lacks=lacks)
    expected, _, silent = train(tmp_path / "plain", "off")
    assert "verdict" not in silent
    for found, each in zip(losses, expected, strict=True):
        assert abs(found - each) <= 1e-10 * abs(each)
    rows = re.findall(
        r"^\s*(?:\[.*\] )?(\S+(?: \d)?) +([\d.]+) ms +(\S+) (?:ms )?.* (\d+)  (.+)$", output, re.M
    )
    plans = json.loads((tmp_path / "race.json").read_text())["plans"]
    if way != "emulated":
        assert plans[0]["predicted_seconds"] != pytest.approx(uncorrected(tmp_path / "raced"))
    assert [(each["name"], str(each["steps"]), each["verdict"]) for each in plans] == [
        (name, steps, verdict) for name, _, _, steps, verdict in rows
    ]
    (chosen,) = (name for name, _, _, _, verdict in rows if verdict == "chosen")
    assert chosen.partition(" ")[0] == last, output
    failed = [row[-1] for row in rows if row[-1] not in VERDICTS]
    error = "stage " if "step" in lacks else "CUDA out of memory"
    wanted = "cannot run" if way == "elastic" else f"does not fit: {lacks[:8]}: {error}"
    assert len(failed) == bool(lacks) and all(each.startswith(wanted) for each in failed), output
    if way == "emulated":
        assert last != "data-parallel-even"
