"""Runs that lose a process and continue: the curve equals that of a run without a loss."""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import medley
from medley import _core
from medley.plan import Question, find_plan

sys.path.insert(0, str(Path(__file__).parent))
import cells
import exactness
import survivor
import test_hand_written_plans as one_axis
import test_two_axes as two_axes
from cells import MATRIX
from outcomes import assert_same, distance, recoveries, seen
from test_processes import LAUNCH, run

pytestmark = [pytest.mark.multi, pytest.mark.slow]
NIGHTLY = pytest.mark.nightly

SCRIPT = str(Path(__file__).with_name("survivor.py"))
STEPS = 5
DEVICES = [f"a/{i}/0" for i in range(6)]
# Every part of each is on two devices at least.
PLANS = {
    "rows": cells.of_one_axis(one_axis.Case("gpt", {}, [3, 2, 1, 1], [2, 1, 2, 1])),
    "tensors inside, rows between": MATRIX["two axes"],
    "several pipelines": MATRIX["several pipelines"],
}
INSIDE = {"placements": two_axes.inner(one_axis.MEGATRON_GPT)}
OF_SIX = {
    "rows of six": cells.of_one_axis(one_axis.Case("gpt", {}, [1] * 6, [1, 2, 1, 0, 1, 1])),
    "tensors inside of six": cells.of_two_axes(two_axes.Case("gpt", INSIDE, (3, 2), (3, 2, 1))),
    "several pipelines of six": cells.of_random_pipelines("gpt", 3, 6),
}
FORWARD = {"call": "forward", "exchange": ""}
NEVER = ("--replicate-every", "0")
CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 6, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 10 us}
"""


@pytest.fixture(scope="module")
def graph() -> medley.Graph:
    """Returns the graph that survivor.py trains."""
    return medley.Graph(_core.Graph.parse(captured(), "graph"))


@functools.cache
def captured() -> str:
    """Once for all modules."""
    with exactness.double_precision():
        return medley.capture(*survivor.make()).text()


@pytest.fixture(scope="module")
def undisturbed(graph: medley.Graph) -> dict[str, Any]:
    """Returns loss and parameters of one device."""
    return one_device(graph.text())


def alone(graph: medley.Graph, **fields: Any) -> medley.Trainer:
    """Returns a trainer on one device. Its optimizer has these fields."""
    cluster = medley.cluster.parse_cluster(CLUSTER)
    mesh = {"axes": ["x"], "shape": [1], "devices": DEVICES[:1]}
    pipeline = {"microbatches": [{"rows": survivor.ROWS}], "stages": [{"mesh": mesh}]}
    plan = {"format": "medley-plan", "version": 1, "global_batch": survivor.ROWS}
    written = medley.Plan.from_dict({**plan, "pipelines": [pipeline]})
    chosen = medley.plan(graph, cluster, plan=written)
    rule = survivor.optimizer(**fields)
    return medley.Trainer(survivor.make()[0], graph, chosen, rule, local=True)


@functools.cache
def one_device(text: str, steps: int = STEPS) -> dict[str, Any]:
    """Trains alone."""
    trainer = alone(medley.Graph(medley._core.Graph.parse(text, "graph")))
    _, example = survivor.make()
    losses = [trainer.step(survivor.batch_of(example, step)).loss for step in range(steps)]
    return {"losses": losses, "state": trainer.parameters()}


def prepare(folder: Path, graph: medley.Graph, plan: str, cluster: str = CLUSTER) -> Path:
    """Writes the files that the processes read."""
    folder.mkdir(exist_ok=True)
    (folder / "model.graph").write_text(graph.text())
    (folder / "cluster.yaml").write_text(cluster)
    (folder / "plan.json").write_text(plan)
    return folder


def launched(
    folder: Path, *options: str, steps: int = STEPS, **fault: Any
) -> subprocess.CompletedProcess[str]:
    """Runs the script under `medley launch`."""
    faults = [json.dumps(fault)] if fault else []
    command = [*LAUNCH, *options, str(folder / "plan.json"), SCRIPT, str(folder), str(steps)]
    return run([*command, *faults])


def elastic(
    folder: Path, *options: str, steps: int = STEPS, **fault: Any
) -> subprocess.CompletedProcess[str]:
    """Runs the script under `medley launch --elastic`."""
    log = ["--elastic", "--elastic-log", str(folder / "elastic.jsonl")]
    return launched(folder, *log, *options, steps=steps, **fault)


def calm(
    folder: Path, graph: medley.Graph, plan: str, cluster: str = CLUSTER, **options: Any
) -> dict[str, Any]:
    """Returns the results of a run without faults."""
    done = launched(prepare(folder, graph, plan, cluster), **options)
    assert done.returncode == 0, done.stderr
    return seen(folder)


def changing_plans(
    folder: Path, graph: medley.Graph, done: int, steps: int = STEPS, **options: Any
) -> dict[str, Any]:
    """Returns the results of runs without faults, the first of which ends after `done` steps. The
    second continues under the plan of the second generation."""
    first, second = folder / "first", folder / "second"
    cluster = (folder / "cluster.yaml").read_text()
    calm(first, graph, (folder / "plan.json").read_text(), cluster, steps=done, **options)
    second.mkdir()
    (first / "seen.pt").rename(second / "start.pt")
    plan = (folder / "elastic-1.plan.json").read_text()
    return calm(second, graph, plan, cluster, steps=steps, **options)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "several pipelines" else [NIGHTLY]) for n in PLANS],
)
def test_a_run_that_loses_a_process_goes_on_with_the_same_curve(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any], name: str
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS[name].plan(graph))
    done = elastic(folder, device=DEVICES[3], step=2)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["lost"] == [DEVICES[3]]
    assert line["step"] == 1
    assert line["at"] - float((folder / "ended").read_text()) < 1
    found = seen(folder)
    assert distance(found, undisturbed) < 1e-10
    expected = changing_plans(folder, graph, 2)
    assert_same(found, expected)


# The first device's process starts planning. After its loss the others use the plans.
@pytest.mark.idle
@pytest.mark.parametrize("who", [0, pytest.param(3, marks=NIGHTLY)])
def test_plan_for_survivors_exists_before_the_loss(
    tmp_path: Path, graph: medley.Graph, who: int
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    log = ["--elastic", "--elastic-log", str(folder / "elastic.jsonl")]
    fault = {"device": DEVICES[who], "step": 1, "ahead": True}
    done = launched(folder, *log, steps=60, **fault)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["lost"] == [DEVICES[who]]
    assert line["planned_ahead"]
    left = [name for name in DEVICES[:4] if name != DEVICES[who]]
    machines = medley.cluster.parse_cluster(CLUSTER)
    rule, times = survivor.optimizer().core(graph.core), ("", "<profile>")
    found = find_plan(graph.core, machines, Question("auto", survivor.ROWS), rule, times, left)
    assert json.loads((folder / "elastic-1.plan.json").read_text()) == json.loads(found.text())
    assert distance(seen(folder), one_device(graph.text(), 60)) < 1e-10


# Faults by plan: place in the step, and killed device. A step is repeated if the fault precedes its
# commit, else the others finish it.
WHERE: dict[str, dict[str, Any]] = {
    "forward": {"call": "forward", "exchange": ""},
    "backward": {"call": "backward", "exchange": ""},
    "transfer": {"call": "", "exchange": "transfer"},
    "gradient_sync": {"call": "", "exchange": "sync "},
    "norm": {"call": "update", "exchange": "norm/sum"},
    "update": {"call": "update", "exchange": ""},
    "save": {"saving": "written", "save": 1},
}


CHOSEN = [
    ("rows", 0, "forward"),
    ("several pipelines", 1, "gradient_sync"),
    ("several pipelines", 2, "norm"),
    ("several pipelines of six", 3, "forward"),  # a failed gradient sync, and one after it
]
EVERYWHERE = [
    (plan, who, where)
    for plans, count in ((PLANS, 4), (OF_SIX, 6))
    for plan in plans
    for who in range(count)
    for where in WHERE
]
MORE = [pytest.param(*each, marks=NIGHTLY) for each in EVERYWHERE if each not in CHOSEN]


# Only some devices have transfers, gradient syncs or a norm.
@pytest.mark.parametrize(("name", "who", "where"), [*CHOSEN, *MORE])
def test_a_process_may_be_killed_anywhere_in_a_step(
    tmp_path: Path,
    graph: medley.Graph,
    undisturbed: dict[str, Any],
    name: str,
    who: int,
    where: str,
) -> None:
    folder = prepare(tmp_path / "run", graph, (PLANS | OF_SIX)[name].plan(graph))
    done = elastic(folder, device=DEVICES[who], step=2, **WHERE[where])
    assert done.returncode == 0, done.stderr
    if (name, who, where) in CHOSEN or where in ("forward", "backward", "update", "save"):
        assert recoveries(folder), "nobody was killed"
    assert distance(seen(folder), undisturbed) < 1e-10


# The others have begun the next step before a slow device reads the result of the commit.
def test_a_step_that_others_have_committed_is_finished_alone(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any]
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    where = {"call": "update", "exchange": "norm/sum", "behind": True}
    done = elastic(folder, device=DEVICES[3], slow=DEVICES[1], step=2, **where)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["step"] == 2
    assert distance(seen(folder), undisturbed) < 1e-10


# The earlier checkpoint stays whole, or the new one is. The next save replaces an incomplete one.
FIRST_ONLY = ("complete", "committed")  # places that only the first device reaches
IN_A_SAVE = [(place, who) for place in survivor.SAVING for who in range(4)]


@pytest.mark.parametrize("name", [pytest.param(each, marks=NIGHTLY) for each in PLANS])
@pytest.mark.parametrize(
    ("place", "who"), [each for each in IN_A_SAVE if each[1] == 0 or each[0] not in FIRST_ONLY]
)
def test_a_process_may_be_killed_in_a_save(
    tmp_path: Path,
    graph: medley.Graph,
    undisturbed: dict[str, Any],
    name: str,
    place: str,
    who: int,
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS[name].plan(graph))
    done = elastic(folder, device=DEVICES[who], step=2, saving=place, save=1)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["lost"] == [DEVICES[who]]
    assert distance(seen(folder), undisturbed) < 1e-10
    found = _core.find_checkpoints(str(folder / "saved"))
    complete = {step: path for path, step, is_complete in found if is_complete}
    assert max(complete) == STEPS
    for path in complete.values():
        assert _core.Manifest.open(path).check(path) > 0


@NIGHTLY
@pytest.mark.parametrize(("options", "seconds"), [((), 6), (("--heartbeat-timeout", "0.5"), 1.9)])
def test_a_process_that_is_stopped_is_out(
    tmp_path: Path,
    graph: medley.Graph,
    undisturbed: dict[str, Any],
    options: tuple[str, ...],
    seconds: float,
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    done = elastic(folder, *options, device=DEVICES[1], step=1, signal=int(signal.SIGSTOP))
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["lost"] == [DEVICES[1]]
    assert line["detected"] == "silence"
    assert line["at"] - float((folder / "ended").read_text()) < seconds
    assert distance(seen(folder), undisturbed) < 1e-10


# One second is too short for detection. After ten the others have long continued. A process that
# returns in between may join, possibly after a generation without a loss.
@NIGHTLY
@pytest.mark.parametrize(
    ("seconds", "losses"), [(1, (0,)), (1.9, (0, 1)), (2.1, (0, 1)), (10, (1,))]
)
def test_a_process_that_is_stopped_and_continued_changes_nothing(
    tmp_path: Path,
    graph: medley.Graph,
    undisturbed: dict[str, Any],
    seconds: float,
    losses: tuple[int, ...],
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["several pipelines"].plan(graph))
    stopped = {"signal": int(signal.SIGSTOP), "continues": seconds}
    done = elastic(folder, device=DEVICES[1], step=1, **stopped)
    assert done.returncode == 0, done.stderr
    lines = recoveries(folder)
    assert len(lines) in losses
    is_out = [[DEVICES[1]], *([] if seconds > 2.5 else [[]])]
    assert all(line["lost"] in is_out for line in lines), done.stderr
    assert distance(seen(folder), undisturbed) < 1e-10


# Also if no other device has its values.
@NIGHTLY
@pytest.mark.parametrize("name", ["three stages", "rows"])
def test_a_process_that_gets_notice_gives_what_it_has_and_leaves(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any], name: str
) -> None:
    folder = prepare(tmp_path / "run", graph, (PLANS | MATRIX)[name].plan(graph))
    done = elastic(folder, *NEVER, device=DEVICES[1], step=2, signal=int(signal.SIGTERM))
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["left"] == [DEVICES[1]]
    assert DEVICES[1] not in line["members"]
    assert (line["step"], line["back"]) == (1, 0)
    assert distance(seen(folder), undisturbed) < 1e-10


@pytest.mark.parametrize(
    "during",
    [
        "_share_history",
        *(
            pytest.param(each, marks=NIGHTLY)
            for each in (
                "_report",
                "_catch_up",
                "plan",
                "_source",
                "make_runs",
                "fetch",
                "hand_over",
            )
        ),
    ],
)
def test_another_loss_in_a_recovery_begins_it_again(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any], during: str
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    done = elastic(folder, device=DEVICES[3], step=2, second=DEVICES[1], during=during)
    assert done.returncode == 0, done.stderr
    assert recoveries(folder)[-1]["lost"] == [DEVICES[1], DEVICES[3]]
    assert distance(seen(folder), undisturbed) < 1e-10


def test_a_process_that_is_started_again_leaves_no_trace_in_the_curve(
    tmp_path: Path, graph: medley.Graph
) -> None:
    plan = PLANS["several pipelines"].plan(graph)
    folder = prepare(tmp_path / "run", graph, plan)
    done = elastic(folder, "--max-restarts", "1", device=DEVICES[2], step=2)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["members"] == DEVICES[:4]
    assert_same(seen(folder), calm(tmp_path / "calm", graph, plan))


# All save after each step. A restarted process reaches all of these saves.
@pytest.mark.parametrize(
    "fault",
    [
        {"device": DEVICES[2], "step": 2},
        pytest.param({"device": DEVICES[2], "step": 2, "saving": "begun"}, marks=NIGHTLY),
        {"device": DEVICES[0], "step": 2, "saving": "begun"},
        pytest.param({"device": DEVICES[2], "step": 2, "saving": "reported"}, marks=NIGHTLY),
        pytest.param({"device": DEVICES[0], "step": 2, "saving": "committed"}, marks=NIGHTLY),
        pytest.param({"device": DEVICES[3], "step": 3, **FORWARD}, marks=NIGHTLY),
    ],
    ids=lambda fault: "-".join(str(value) for value in fault.values()),
)
def test_a_process_that_is_started_again_comes_to_the_saves_of_others(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any], fault: dict[str, Any]
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["several pipelines"].plan(graph))
    done = elastic(folder, "--max-restarts", "1", **fault, save=1)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["members"] == DEVICES[:4]
    assert distance(seen(folder), undisturbed) < 1e-10
    newest = _core.find_checkpoints(str(folder / "saved"))[0]
    assert newest[1:] == (STEPS, True)


# The current values differ from those that the others read.
def test_restarted_process_does_not_repeat_reads(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    done = elastic(folder, "--max-restarts", "1", device=DEVICES[2], step=2, reads=True)
    assert done.returncode == 2
    assert "found a script that is after step 1, and a run that has done 2" in done.stderr
    assert "behind Trainer.catch_up()" in done.stderr


# Killed while all save or read, or in between; then all return by two steps. With ZeRO no device
# has all state.
@pytest.mark.parametrize(
    ("every", "fault"),
    [
        (1, {"step": 2, "saving": "reported"}),
        pytest.param(1, {"step": 3}, marks=NIGHTLY),
        (3, {"step": 3, **FORWARD}),
        pytest.param(3, {"step": 2, **FORWARD}, marks=NIGHTLY),
    ],
)
@pytest.mark.parametrize("who", [1, pytest.param(3, marks=NIGHTLY)])
def test_process_that_catches_up_reads_with_the_others(
    tmp_path: Path,
    graph: medley.Graph,
    undisturbed: dict[str, Any],
    who: int,
    every: int,
    fault: dict[str, Any],
) -> None:
    folder = prepare(tmp_path / "run", graph, MATRIX["ZeRO"].plan(graph))
    options = ("--max-restarts", "1", "--replicate-every", str(every))
    asked = {"device": DEVICES[who], **fault, "save": 1, "reads": True, "catches_up": True}
    done = elastic(folder, *options, **asked)
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    assert line["members"] == DEVICES[:4]
    assert distance(seen(folder), undisturbed) < 1e-10


def test_state_that_only_the_lost_device_had_is_named(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, MATRIX["three stages"].plan(graph))
    done = elastic(folder, *NEVER, device=DEVICES[0], step=2)
    assert done.returncode != 0
    assert "what only lost devices had cannot be restored: parameter " in done.stderr


# Saved after steps 1 and 3 (counted from 0). The process is killed in step 4 or 3.
@pytest.mark.parametrize(
    ("name", "step", "second"),
    [
        ("three stages", 4, ""),
        pytest.param("ZeRO", 3, "", marks=NIGHTLY),
        pytest.param("tied ends", 3, "", marks=NIGHTLY),
        pytest.param("three stages", 3, "_go_back", marks=NIGHTLY),
        pytest.param("ZeRO", 4, "_take_saved", marks=NIGHTLY),
    ],
)
def test_unreplicated_state_comes_back_from_the_newest_checkpoint(
    tmp_path: Path,
    graph: medley.Graph,
    undisturbed: dict[str, Any],
    name: str,
    step: int,
    second: str,
) -> None:
    folder = prepare(tmp_path / "run", graph, MATRIX[name].plan(graph))
    more = {"second": DEVICES[2], "during": second} if second else {}
    done = elastic(folder, *NEVER, device=DEVICES[0], step=step, save=2, **more)
    assert done.returncode == 0, done.stderr
    saved = step // 2 * 2
    assert f"all go back to {folder}/saved/step-0000000{saved}" in done.stderr
    line = recoveries(folder)[-1]
    assert line["step"] == saved - 1
    assert line["bytes"]["read"] > 0
    steps = re.findall(r"a/3/0\s*\] step (\d) loss", done.stdout)
    assert steps == [str(each) for each in range(STEPS)]  # each counted once
    assert distance(seen(folder), undisturbed) < 1e-10


# Copies are of the state before every step, or every second one. With a copy of the repeated step
# no step is lost; otherwise all return.
@pytest.mark.parametrize(
    ("name", "every", "source", "back"),
    [
        ("three stages", 1, "memory", 0),
        pytest.param("ZeRO", 2, "replicas", 1, marks=NIGHTLY),
        pytest.param("one axis", 2, "replicas", 1, marks=NIGHTLY),
        pytest.param("owners", 1, "memory", 0, marks=NIGHTLY),
    ],
)
@pytest.mark.parametrize("who", [0, *(pytest.param(each, marks=NIGHTLY) for each in (1, 2, 3))])
def test_state_of_the_lost_device_alone_comes_back_from_its_replica(
    tmp_path: Path,
    graph: medley.Graph,
    undisturbed: dict[str, Any],
    name: str,
    every: int,
    source: str,
    back: int,
    who: int,
) -> None:
    folder = prepare(tmp_path / "run", graph, MATRIX[name].plan(graph))
    copies = ("--replicate-every", str(every))
    done = elastic(folder, *copies, device=DEVICES[who], step=3, call="forward", exchange="")
    assert done.returncode == 0, done.stderr
    (line,) = recoveries(folder)
    if name == "ZeRO" and who == 2:  # without rows and thus without a shard: no state is lost
        assert (line["source"], line["back"], line["step"]) == ("memory", 0, 2)
        assert line["bytes"]["replicas"] == 0
    else:
        assert (line["source"], line["back"], line["step"]) == (source, back, 2 - back)
        assert line["bytes"]["replicas"] > 0
        assert line["replicas"]["after"] == 3 - back
    assert distance(seen(folder), undisturbed) < 1e-10


# The same plan again, from copies of an older step.
@NIGHTLY
def test_going_back_to_copies_leaves_no_trace_in_the_curve(
    tmp_path: Path, graph: medley.Graph
) -> None:
    plan = MATRIX["three stages"].plan(graph)
    folder = prepare(tmp_path / "run", graph, plan)
    options = ("--max-restarts", "1", "--replicate-every", "2")
    done = elastic(folder, *options, device=DEVICES[0], step=3, call="backward", exchange="")
    assert done.returncode == 0, done.stderr
    assert recoveries(folder)[0]["back"] == 1
    assert_same(seen(folder), calm(tmp_path / "calm", graph, plan))


# They may be others after a loss.
def test_a_step_takes_the_global_batch_only(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    done = elastic(folder, step=-1, own_rows=True)
    assert done.returncode == 2
    expected = r'batch\["\w+"\]: found [12] rows, expected the 6 of the global batch: .*Loader'
    assert re.search(expected, done.stderr)


@NIGHTLY
def test_processes_that_share_rows_have_the_same(tmp_path: Path, graph: medley.Graph) -> None:
    plan = PLANS["tensors inside, rows between"].plan(graph)
    done = elastic(prepare(tmp_path / "run", graph, plan), step=-1, other_order="a/0/0")
    assert done.returncode == 2
    assert "batch: row 0: found other values of" in done.stderr


def test_generations_leave_nothing_behind(
    tmp_path: Path, graph: medley.Graph, undisturbed: dict[str, Any]
) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["rows"].plan(graph))
    done = elastic(folder, device=DEVICES[1], step=-1, generations=STEPS - 1)
    assert done.returncode == 0, done.stderr
    assert len(recoveries(folder)) == STEPS - 1
    found = seen(folder)
    assert distance(found, undisturbed) < 1e-10
    # Plans that are found ahead are read from a file. Threads of the group before may still be on
    # their way out.
    assert found["had"][-1][0] <= found["had"][0][0] + 1
    assert found["had"][-1][1] <= found["had"][0][1] + 1


@NIGHTLY
def test_fifty_generations_leave_nothing_behind(tmp_path: Path, graph: medley.Graph) -> None:
    folder = prepare(tmp_path / "run", graph, PLANS["several pipelines"].plan(graph))
    done = elastic(folder, device=DEVICES[1], steps=52, step=-1, generations=50)
    assert done.returncode == 0, done.stderr
    assert len(recoveries(folder)) == 50
    had = seen(folder)["had"]
    assert had[49][0] <= had[1][0]
    assert had[49][1] <= had[1][1] + 1
    assert had[49][2] <= had[9][2] * 1.05, [each[2] for each in had]
