"""Runs of several objectives that lose a process and continue: the curve is that of PyTorch's
loop."""

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
import test_joint
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
NO_COPIES = ("--replicate-every", "0")


def plan_of(shape: str, graph: medley.Graph, strategy: str = EVEN) -> str:
    """Returns a plan for four devices by its name. In all except "zero" and "stages" any two
    devices of different nodes have the whole state. The next plans are of a strategy."""

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
    elif shape in ("tensor", "inside"):
        mesh = {"axes": ["node", "device"], "shape": [2, 2], "devices": DEVICES[:4]}
        inside = {"*weight": "R x S(0, even)"}
        what = "placements" if shape == "tensor" else "updates"
        pipelines[0]["stages"] = [{"mesh": mesh, what: inside}]
    elif shape == "pipelines":
        pipelines = [
            {"microbatches": [{"rows": 2}, {"rows": 2}], "stages": stages([3], [1])},
            {"microbatches": [{"rows": 2}], "stages": stages([0], [2])},
        ]
    entries = {"format": "medley-plan", "version": 1, "global_batch": ROWS, "pipelines": pipelines}
    return medley.Plan.from_dict(entries | ({"strategy": strategy} if strategy else {})).text


def prepare(folder: Path, name: str, shapes: str, strategies: tuple[str, ...] = (EVEN,)) -> Path:
    """Writes the files that the processes read."""
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
    """Asserts that losses, parameters and buffers equal those of PyTorch's loop. Returns the
    results."""
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
    """Returns parameters and buffers of one device after this many steps."""
    trainer = test_joint.trainer_of(name, ["one"])
    test_joint.run(name, trainer, range(steps))
    return trainer.parameters() | trainer.buffers()


FORWARD = {"call": "forward", "exchange": ""}
# Places of a kill in a step, and the part of the state that is being sent.
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
MORE = [
    ("dcgan", "uneven tensor", 3, 3, "behind that"),
    ("wgan", "tensor pipelines", 5, 0, "update"),
    ("two heads", "tensor uneven", 4, 2, "behind what is brought"),
    ("distillation", "tensor pipelines", 2, 3, "backward"),
    ("dino", "tensor", 3, 1, "update"),
    ("linear gan", "inside tensor", 3, 1, "update"),
    ("linear gan", "tensor inside", 3, 2, "norm"),
]


@pytest.mark.parametrize(
    ("name", "shapes", "step", "who", "where"),
    [*CHOSEN, *(pytest.param(*each, marks=NIGHTLY) for each in MORE)],
)
def test_a_process_may_be_killed_in_a_step_of_any_objective(
    tmp_path: Path, name: str, shapes: str, step: int, who: int, where: str
) -> None:
    folder = prepare(tmp_path / "run", name, shapes)
    done = elastic(folder, name, device=DEVICES[who], step=step, **WHERE[where])
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["lost"] == [DEVICES[who]]
    assert (line["source"], line["back"]) == ("memory", 0)
    check(folder, name)


# All four processes are killed in turn and restarted: the second one in the next step, or in the
# repeated one.
@NIGHTLY
@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("linear gan", "pipelines tensor"),
        ("dcgan", "tensor uneven"),
        ("two heads", "uneven tensor"),
        ("distillation", "inside pipelines"),
    ],
)
@pytest.mark.parametrize(
    "places",
    [
        ("between", "before it is brought", "forward", "save"),
        ("behind what is brought", "backward", "before others drop it", "update"),
        ("behind that", "norm", "update", "forward"),
    ],
)
def test_each_process_may_be_killed_and_started_again(
    tmp_path: Path, name: str, shapes: str, places: tuple[str, ...]
) -> None:
    folder = prepare(tmp_path / "run", name, shapes)
    kills = [
        {"device": DEVICES[i], "step": 1 + i, **WHERE[where]} for i, where in enumerate(places)
    ]
    save = {"save": 1} if "save" in places else {}
    done = elastic(folder, name, "--max-restarts", "4", kills=kills, **save)
    assert done.returncode == 0, done.stderr
    lines = recoveries(folder)
    assert lines and all(set(line["members"]) == set(DEVICES[:4]) for line in lines)
    assert all((line["source"], line["back"]) == ("memory", 0) for line in lines)
    check(folder, name)


# Over slow links the next plan of one objective has one device, so all plans have. State of only
# that device comes from the checkpoint of all objectives.
@NIGHTLY
@pytest.mark.parametrize("name", ["linear gan", "distillation"])
def test_process_without_device_resumes_from_a_checkpoint(tmp_path: Path, name: str) -> None:
    folder = prepare(tmp_path / "run", name, "tensor uneven", (EVEN, "harp"))
    slow = CLUSTER.replace("10 us", "10 ms")
    (folder / "cluster.yaml").write_text(slow)
    kills = [{"device": DEVICES[3], "step": 1}, {"device": DEVICES[0], "step": 5}]
    done = elastic(folder, name, kills=kills, save=2)
    assert done.returncode == 0, done.stderr
    first, second = recoveries(folder)
    plans = [json.loads(path.read_text()) for path in sorted(folder.glob("elastic-1.*.plan.json"))]
    used = [medley.Plan.from_dict(each).devices for each in plans]
    assert len(used) == 2 and used[0] == used[1] == DEVICES[:1]
    assert (first["source"], first["members"]) == ("memory", DEVICES[:3])
    assert (second["source"], second["step"], second["back"]) == ("checkpoint", 3, 1)
    check(folder, name)


# Saved after steps 1, 3 and so on, counted from 0.
@NIGHTLY
@pytest.mark.parametrize(
    ("name", "shapes", "fault"),
    [
        ("dcgan", "tensor stages", {"step": 5}),
        ("linear gan", "zero uneven", {"step": 5, **FORWARD}),
        ("two heads", "stages zero", {"step": 4, **WHERE["update"]}),
    ],
)
def test_unreplicated_state_comes_back_from_the_newest_checkpoint(
    tmp_path: Path, name: str, shapes: str, fault: dict[str, Any]
) -> None:
    folder = prepare(tmp_path / "run", name, shapes)
    done = elastic(folder, name, device=DEVICES[1], save=2, **fault)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert (line["source"], line["step"]) == ("checkpoint", 3)
    assert line["bytes"]["read"] > 0
    check(folder, name)


@NIGHTLY
def test_state_that_only_the_lost_device_had_is_named(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "run", "linear gan", "tensor stages")
    done = elastic(folder, "linear gan", device=DEVICES[1], step=3)
    assert done.returncode != 0
    assert "what only lost devices had cannot be restored: " in done.stderr


@NIGHTLY
def test_copies_of_several_objectives_are_refused(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "run", "linear gan", "tensor")
    done = elastic(folder, "linear gan", "--replicate-every", "2")
    assert done.returncode == 2
    assert "--replicate-every: found a run of several objectives" in done.stderr


@NIGHTLY
def test_plans_that_survive_with_copies_are_refused(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "run", "linear gan", "tensor")
    path = folder / "d.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tolerate_node_loss": 1}))
    done = elastic(folder, "linear gan")
    assert done.returncode != 0
    assert 'objective "d": plan: found "tolerate_node_loss": 1' in done.stderr


@NIGHTLY
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_process_may_be_killed_in_an_evaluation(
    tmp_path: Path, behind: bool, restarts: str
) -> None:
    folder = prepare(tmp_path / "run", "distillation", "tensor uneven")
    fault = {"device": DEVICES[2], "step": 3, "in": "add", "behind": behind}
    options = ("--max-restarts", restarts)
    done = elastic(folder, "distillation", *options, evaluates="student", **fault)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert (line["step"], line["back"]) == (3, 0)
    found = check(folder, "distillation")
    with exactness.double_precision():
        case = CASES["distillation"]
        trainer = test_joint.trainer_of("distillation", ["one"])
        batches = test_joint.made(case)[1]
        for step in range(STEPS):
            trainer.step(case.order[step % len(case.order)], batches[step])
            expected = trainer.evaluate("student", batches[-1])["loss"]
            assert found["evaluated"][step] == pytest.approx(expected, rel=1e-10)


# Killed while all read the files of another run, before and after the read.
@NIGHTLY
@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("restarts", ["0", "1"])
def test_a_process_may_be_killed_in_a_load(tmp_path: Path, behind: bool, restarts: str) -> None:
    folder = prepare(tmp_path / "run", "linear gan", "tensor uneven")
    done = elastic(folder, "linear gan", steps=3, save=3)
    assert done.returncode == 0, done.stderr
    prepare(folder, "linear gan", "uneven pipelines")
    fault = {"device": DEVICES[1], "step": -1, "in": "begin", "behind": behind}
    done = elastic(folder, "linear gan", "--max-restarts", restarts, resumes=True, **fault)
    assert done.returncode == 0, done.stderr
    assert len(recoveries(folder)) == 1
    assert check(folder, "linear gan")["first"] == 3


@NIGHTLY
@pytest.mark.parametrize("step", [3, 4])
def test_process_that_catches_up_reads_with_the_others(tmp_path: Path, step: int) -> None:
    folder = prepare(tmp_path / "run", "dcgan", "tensor uneven")
    fault = {"device": DEVICES[0], "step": step, **FORWARD}
    asked = {"save": 1, "reads": True, "catches_up": True}
    done = elastic(folder, "dcgan", "--max-restarts", "1", **fault, **asked)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["members"] == DEVICES[:4]
    found = dict(torch.load(folder / "seen.pt"))
    assert found["first"] == step - 1
    check(folder, "dcgan")


@NIGHTLY
def test_a_process_that_gets_notice_gives_what_it_has_and_leaves(tmp_path: Path) -> None:
    folder = prepare(tmp_path / "run", "linear gan", "zero stages")
    number = int(signal.SIGTERM)
    done = elastic(folder, "linear gan", device=DEVICES[1], step=3, signal=number)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert (line["left"], line["back"]) == ([DEVICES[1]], 0)
    check(folder, "linear gan")


@NIGHTLY
@pytest.mark.parametrize(
    "during",
    ["_report", "_catch_up", "make_runs", "_source", "fetch", "_share_history", "hand_over"],
)
def test_another_loss_in_a_recovery_begins_it_again(tmp_path: Path, during: str) -> None:
    folder = prepare(tmp_path / "run", "linear gan", "pipelines uneven")
    fault = {"device": DEVICES[3], "step": 3, **FORWARD}
    # Devices 0 and 1 have all of the pipelines' state.
    done = elastic(folder, "linear gan", second=DEVICES[2], during=during, **fault)
    assert done.returncode == 0, done.stderr
    assert set(recoveries(folder)[-1]["lost"]) == {DEVICES[2], DEVICES[3]}
    check(folder, "linear gan")
