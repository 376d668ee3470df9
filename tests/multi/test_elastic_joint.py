"""Runs of several objectives that lose a process and go on: the curve is that of PyTorch's loop."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import medley

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[2] / "python" / "tests"))
import exactness
from joint_models import CASES, ROWS
from outcomes import recoveries
from test_elastic import CLUSTER, DEVICES
from test_joint import captured, compared, train_eager
from test_pipelines import cuts
from test_processes import LAUNCH, run

pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

SCRIPT = str(Path(__file__).with_name("joint_survivor.py"))
STEPS = 8
EVEN = "data-parallel-even"
NO_COPIES = ("--second-homes-every", "0")


def plan_of(shape: str, graph: medley.Graph, strategy: str = EVEN) -> str:
    """Returns a plan for four devices by its name; of all but "zero" and "stages" any two devices
    of different nodes have everything. The next plans are of a strategy."""

    def stages(*numbers: list[int]) -> list[dict[str, Any]]:
        firsts = ["", *cuts(graph, len(numbers))] if len(numbers) > 1 else [""]
        return [
            {"mesh": {"devices": [DEVICES[i] for i in each]}} | ({"first": first} if first else {})
            for each, first in zip(numbers, firsts, strict=True)
        ]

    pipelines: list[dict[str, Any]] = [
        {"microbatches": [{"rows": ROWS}], "stages": stages([0, 1, 2, 3])}
    ]
    if shape == "uneven":
        pipelines[0]["stages"] = stages([2, 0, 3, 1])
        pipelines[0]["microbatches"][0]["lengths"] = [1, 2, 0, 3]
    elif shape == "zero":
        pipelines[0]["stages"][0]["updates"] = {"*": "S(0, even)"}
    elif shape == "stages":
        pipelines[0]["stages"] = stages([1], [0, 2], [3])
    elif shape == "tensor":
        mesh = {"axes": ["node", "device"], "shape": [2, 2], "devices": DEVICES[:4]}
        states = {"*weight": "R x S(0, even)"}
        pipelines[0]["stages"] = [{"mesh": mesh, "states": states}]
    elif shape == "pipelines":
        pipelines = [
            {"microbatches": [{"rows": 2}, {"rows": 2}], "stages": stages([3], [1])},
            {"microbatches": [{"rows": 2}], "stages": stages([0], [2])},
        ]
    entries = {"format": "medley-plan", "version": 1, "global_batch": ROWS, "pipelines": pipelines}
    return medley.Plan.from_dict(entries | ({"strategy": strategy} if strategy else {})).text


def prepare(folder: Path, name: str, shapes: str, strategies: tuple[str, ...] = (EVEN,)) -> Path:
    """Writes what the processes read."""
    folder.mkdir(exist_ok=True)
    (folder / "cluster.yaml").write_text(CLUSTER)
    with exactness.double_precision():
        for i, (each, graph) in enumerate(captured(name).items()):
            shape = shapes.split()[i % len(shapes.split())]
            (folder / f"{each}.graph").write_text(graph.text())
            text = plan_of(shape, graph, strategies[i % len(strategies)])
            (folder / f"{each}.json").write_text(text)
    return folder


def elastic(
    folder: Path, name: str, *options: str, steps: int = STEPS, **fault: Any
) -> subprocess.CompletedProcess[str]:
    """Runs the script under `medley launch --elastic`."""
    log = ["--elastic", "--elastic-log", str(folder / "elastic.jsonl"), *options]
    plan = folder / f"{next(iter(CASES[name].losses))}.json"
    script = [SCRIPT, str(folder), name, str(steps), json.dumps({"step": -1, **fault})]
    return run([*LAUNCH, *log, str(plan), *script])


def check(folder: Path, name: str, steps: int = STEPS) -> dict[str, Any]:
    """Asserts that losses, parameters and buffers are those of PyTorch's loop; returns what was
    seen."""
    found = dict(torch.load(folder / "seen.pt"))
    with exactness.double_precision():
        losses, _ = train_eager(name)
        want = state_after(name, steps)
    got = compared(name, found["state"])
    exactness.compare(
        exactness.Curve(found["losses"], {}, got),
        exactness.Curve(losses[found["first"] : steps], {}, {n: want[n] for n in got}),
    )
    order = CASES[name].order
    made = [order[step % len(order)] for step in range(steps)]
    assert found["steps"] == {each: made.count(each) for each in CASES[name].losses}
    return found


def state_after(name: str, steps: int) -> dict[str, torch.Tensor]:
    """Returns parameters and buffers after so many steps of one device."""
    import test_joint

    trainer = test_joint.trainer_of(name, ["one"])
    test_joint.run(name, trainer, range(steps))
    return trainer.parameters() | trainer.buffers()


FORWARD = {"call": "forward", "exchange": ""}
# Where in a step who is killed, and which part of the state is on its way then.
WHERE: dict[str, dict[str, Any]] = {
    "between": {},
    "before it is brought": {"in": "bring"},
    "behind what is brought": {"in": "bring", "behind": True},
    "before others drop it": {"in": "take"},
    "behind that": {"in": "take", "behind": True},
    "forward": FORWARD,
    "backward": {"call": "backward", "exchange": ""},
    "norm": {"call": "update", "exchange": "norm/sum"},
    "update": {"call": "update", "exchange": ""},
    "save": {"saving": "written", "save": 1},
}
# Steps 2 and 4 are of the discriminator, 3 and 5 of the generator.
CHOSEN = [
    ("linear gan", "pipelines tensor", 4, 1, "forward"),
    ("dcgan", "tensor uneven", 3, 0, "norm"),
]
EVERYWHERE = [
    (name, shapes, step, who, where)
    for name, shapes, step in (
        ("linear gan", "pipelines tensor", 2),
        ("dcgan", "uneven tensor", 3),
        ("wgan", "tensor pipelines", 5),
        ("two heads", "tensor uneven", 4),
        ("distillation", "tensor pipelines", 3),
        ("dino", "tensor", 3),
    )
    for who in (0, 3)
    for where in WHERE
]


@pytest.mark.parametrize(
    ("name", "shapes", "step", "who", "where"),
    [*CHOSEN, *(pytest.param(*each, marks=NIGHTLY) for each in EVERYWHERE)],
)
def test_a_process_may_be_killed_in_a_step_of_any_objective(
    tmp_path: Path, name: str, shapes: str, step: int, who: int, where: str
) -> None:
    folder = prepare(tmp_path / "run", name, shapes)
    done = elastic(folder, name, device=DEVICES[who], step=step, **WHERE[where])
    assert done.returncode == 0, done.stderr
    if where != "norm":  # not every device has one
        (line,) = recoveries(folder)
        assert line["lost"] == [DEVICES[who]]
        assert (line["source"], line["back"]) == ("memory", 0)
    check(folder, name)
