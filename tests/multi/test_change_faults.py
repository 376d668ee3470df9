"""A run keeps its curve through faults in every state of a change of plan: signals, a killed
process, a full disk, a device without memory."""

from __future__ import annotations

import functools
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import change_faults
import exactness
from change_faults import AT, ELASTIC_STEPS, STEPS, batches, plans, trainer_of
from outcomes import recoveries
from test_processes import LAUNCH, TORCHRUN, run

import medley

pytestmark = [pytest.mark.multi, pytest.mark.slow]

SCRIPT = str(Path(change_faults.__file__))
DEVICES = [f"a/{number}/0" for number in range(3)]
NIGHTLY = pytest.mark.nightly
STATES = ["begun", "built", "moved", "finished", "entered", "stepping"]
SOME = [
    pytest.param(each, marks=[] if each in ("moved", "stepping") else NIGHTLY) for each in STATES
]
OF_RECOVERY = [
    "requested",
    "plan",
    "connect",
    "make_runs",
    "fetch",
    "load_constants",
    "share_history",
    "hand_over",
    "taken",
    "stepping",
]


@functools.cache
def expected(steps: int) -> tuple[list[float], dict[str, Any]]:
    """Returns the losses and parameters of one device."""
    _, _, graph = change_faults.captured()
    with exactness.double_precision():
        alone = medley.Plan(exactness.random_plan(graph, 0, exactness.ROWS, 1))
        trainer = trainer_of(alone, local=True)
        losses = [trainer.step(batch).loss for batch in batches(steps)]
    return losses, trainer.parameters()


def require_curve(folder: Path, steps: int = STEPS, plan: int = 0, unwritten: int = 0) -> None:
    """Resumes what is left of a run, and asserts that all of it has the curve of one device. A kill
    may precede the line of the step `unwritten`."""
    with exactness.double_precision():
        trainer = trainer_of(plans()[plan], local=True)
        trainer.fit(batches(steps), output=folder / "run")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert {*range(1, steps + 1)} - {line["step"] for line in found} <= {unwritten}
    losses, parameters = expected(steps)
    for line in found:
        loss = losses[line["step"] - 1]
        assert abs(line["loss"] - loss) <= 1e-10 * abs(loss), line["step"]
    for name, value in trainer.parameters().items():
        error = float((value - parameters[name]).abs().max() / parameters[name].abs().max())
        assert error <= 1e-10, name


def require_checkpoint(folder: Path, steps: int = STEPS) -> None:
    """Asserts that the checkpoint of AT steps resumes under the plans before and after."""
    for plan in plans()[:2]:
        with exactness.double_precision():
            trainer = trainer_of(plan, local=True)
            assert trainer.load(folder / "run" / f"step-{AT:08}").step == AT
            losses = [trainer.step(batch).loss for batch in batches(steps)[AT:]]
        assert losses == pytest.approx(expected(steps)[0][AT:], rel=1e-10)


def launched(folder: Path, *options: str, **fault: Any) -> Any:
    """Runs the script under `medley launch`."""
    folder.mkdir(exist_ok=True)
    plans()[0].save(folder / "plan.json")
    return run(
        [*LAUNCH, *options, str(folder / "plan.json"), SCRIPT, str(folder), json.dumps(fault)]
    )


def under_torchrun(folder: Path, **fault: Any) -> Any:
    """Runs the script under torchrun, one process per device."""
    return run([*TORCHRUN, "--nproc-per-node=3", SCRIPT, str(folder), json.dumps(fault)])


def seen(folder: Path) -> list[dict[str, Any]]:
    """Returns the results of all processes that have ended well."""
    return [json.loads(each.read_text()) for each in sorted(folder.glob("seen-*.json"))]


# --- threads ---


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("state", STATES)
def test_signal_ends_threads_with_a_checkpoint(
    tmp_path: Path, state: str, number: signal.Signals
) -> None:
    fitted = change_faults.train(tmp_path, {"state": state, "signal": number}, local=True)
    assert fitted is not None and fitted.interrupted
    assert fitted.steps == AT + (state == "stepping")
    require_curve(tmp_path, plan=number % 2)


@pytest.mark.parametrize("state", STATES)
def test_second_signal_ends_threads_at_once(tmp_path: Path, state: str) -> None:
    fault = {"state": state, "signal": signal.SIGINT, "times": 2, "save": 1}
    with pytest.raises(KeyboardInterrupt):
        change_faults.train(tmp_path, fault, local=True)
    require_curve(tmp_path)


@pytest.mark.parametrize("plan", [0, 1])
def test_full_disk_ends_no_threads(
    tmp_path: Path, plan: int, capfd: pytest.CaptureFixture[str]
) -> None:
    change_faults.train(tmp_path, {"saves": True, "full": True}, local=True)
    assert capfd.readouterr().err.count("is not saved") == 1
    require_curve(tmp_path, plan=plan)


@pytest.mark.parametrize("state", STATES)
def test_ctrl_c_in_a_script_leaves_a_trainer_that_trains(tmp_path: Path, state: str) -> None:
    with exactness.double_precision():
        trainer = trainer_of(plans()[0], local=True)
        losses = []
        with change_faults.faulty({"state": state, "signal": signal.SIGINT}):
            for batch in batches(AT):
                losses.append(trainer.step(batch).loss)
            with pytest.raises(KeyboardInterrupt):
                trainer.change_plan(plans()[1])
                trainer.step(batches(STEPS)[AT])
        for batch in batches(STEPS)[trainer.steps :]:
            losses.append(trainer.step(batch).loss)
        trainer.save(tmp_path / "run")
        resumed = trainer_of(plans()[2], local=True)
        assert resumed.load(tmp_path / "run").step == STEPS
    wanted, parameters = expected(STEPS)
    assert losses[:AT] == pytest.approx(wanted[:AT], rel=1e-10)
    assert losses[-1] == pytest.approx(wanted[-1], rel=1e-10)
    for name, value in resumed.parameters().items():
        assert (value - parameters[name]).abs().max() <= 1e-10 * parameters[name].abs().max(), name


@pytest.mark.parametrize("state", ["built", "moved"])
def test_threads_without_memory_keep_their_plan(tmp_path: Path, state: str) -> None:
    change_faults.train(tmp_path, {"state": state, "raises": "CUDA out of memory"}, local=True)
    assert seen(tmp_path) == [{"errors": ["change_plan: CUDA out of memory"], "interrupted": False}]
    require_curve(tmp_path, plan=1)


def require_return(folder: Path, devices: Sequence[str]) -> None:
    """Asserts that all processes have the curve of one device, under the plan before the change.
    `devices`: those that may have the error."""
    losses, parameters = expected(STEPS)
    for each in seen(folder):
        (error,) = each["errors"]
        device, place, _ = error.split(": ", 2)
        assert device in devices and place.startswith("stage ")
        assert error.endswith(": CUDA out of memory")
        assert each["plan"] == plans()[0].text
        assert each["losses"] == pytest.approx(losses, rel=1e-10)
        for name, value in parameters.items():
            found = value.new_tensor(each["values"][name])
            assert (found - value).abs().max() <= 1e-10 * value.abs().max(), name


def test_threads_return_if_the_first_step_lacks_memory(tmp_path: Path) -> None:
    fault = {"state": "stepping", "raises": "CUDA out of memory", "alone": True}
    change_faults.train(tmp_path, fault, local=True)
    require_return(tmp_path, DEVICES)


# --- a job of fixed size ---


@pytest.mark.parametrize("state", STATES)
def test_signal_ends_a_job_with_a_checkpoint(tmp_path: Path, state: str) -> None:
    done = launched(tmp_path, device=DEVICES[1], state=state, signal=signal.SIGTERM)
    assert done.returncode == 0, done.stderr
    assert [each["interrupted"] for each in seen(tmp_path)] == [True] * 3
    require_curve(tmp_path, plan=1)


@pytest.mark.parametrize("state", STATES)
def test_killed_process_ends_a_job_and_is_named(tmp_path: Path, state: str) -> None:
    done = launched(tmp_path, device=DEVICES[1], state=state, signal=signal.SIGKILL, saves=True)
    assert done.returncode == 128 + signal.SIGKILL, done.stderr
    assert f"device {DEVICES[1]} was killed by SIGKILL" in done.stderr.splitlines()[-1]
    require_checkpoint(tmp_path)
    require_curve(tmp_path, unwritten=AT)


# A process gets both signals, or the launcher does.
@pytest.mark.parametrize("fault", [{}, {"launcher": True}])
@pytest.mark.parametrize("state", SOME)
def test_second_signal_ends_a_job(tmp_path: Path, state: str, fault: dict[str, Any]) -> None:
    fault = {**fault, "state": state, "signal": signal.SIGINT, "times": 2, "saves": True}
    done = launched(tmp_path, device=DEVICES[1], **fault)
    assert done.returncode == 128 + signal.SIGINT, done.stderr
    require_checkpoint(tmp_path)
    require_curve(tmp_path, unwritten=AT)


@pytest.mark.parametrize("state", SOME)
def test_killed_process_ends_torchrun(tmp_path: Path, state: str) -> None:
    done = under_torchrun(
        tmp_path, device=DEVICES[1], state=state, signal=signal.SIGKILL, saves=True
    )
    assert done.returncode == 1, done.stderr
    cause = done.stderr.partition("Root Cause")[2]
    assert "rank      : 1 " in cause and "(SIGKILL)" in cause, done.stderr
    require_checkpoint(tmp_path)
    require_curve(tmp_path, unwritten=AT)


def test_torchrun_returns_if_the_first_step_lacks_memory(tmp_path: Path) -> None:
    fault = {"state": "stepping", "raises": "CUDA out of memory", "alone": True}
    done = under_torchrun(tmp_path, device=DEVICES[1], **fault)
    assert done.returncode == 0, done.stderr
    assert len(seen(tmp_path)) == len(DEVICES)
    require_return(tmp_path, [DEVICES[1]])


def test_full_disk_ends_no_job(tmp_path: Path) -> None:
    done = launched(tmp_path, saves=True, full=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is not saved") == 1, done.stderr
    require_curve(tmp_path)


def test_job_without_memory_keeps_its_plan(tmp_path: Path) -> None:
    fault = {"state": "built", "raises": "CUDA out of memory", "save": 1}
    done = launched(tmp_path, device=DEVICES[1], **fault)
    assert done.returncode == 0, done.stderr
    errors = [f"change_plan: {DEVICES[1]}: CUDA out of memory"]
    assert seen(tmp_path) == [{"errors": errors, "interrupted": False}] * 3
    require_curve(tmp_path, plan=1)


@pytest.mark.parametrize("device", DEVICES)
def test_job_returns_if_the_first_step_lacks_memory(tmp_path: Path, device: str) -> None:
    fault = {"state": "stepping", "raises": "CUDA out of memory", "alone": True}
    done = launched(tmp_path, device=device, **fault)
    assert done.returncode == 0, done.stderr
    assert len(seen(tmp_path)) == len(DEVICES)
    require_return(tmp_path, [device])


def test_launcher_that_is_interrupted_leaves_a_checkpoint(tmp_path: Path) -> None:
    fault = {"state": "built", "signal": signal.SIGTERM, "launcher": True}
    done = launched(tmp_path, device=DEVICES[1], **fault)
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert [each["interrupted"] for each in seen(tmp_path)] == [True] * 3
    require_curve(tmp_path, plan=1)


# --- an elastic run ---


def elastic(folder: Path, *options: str, **fault: Any) -> Any:
    """Runs the script under `medley launch --elastic`."""
    log = ["--elastic", "--elastic-log", str(folder / "elastic.jsonl")]
    return launched(folder, *log, *options, **fault)


# The first process requests the change and plans for all.
@pytest.mark.parametrize("device", [DEVICES[1], pytest.param(DEVICES[0], marks=NIGHTLY)])
@pytest.mark.parametrize("state", OF_RECOVERY)
def test_elastic_run_goes_on_without_a_killed_process(
    tmp_path: Path, state: str, device: str
) -> None:
    done = elastic(tmp_path, device=device, state=state, signal=signal.SIGKILL, saves=True)
    assert done.returncode == 0, done.stderr
    assert device in recoveries(tmp_path)[-1]["lost"]
    require_curve(tmp_path, ELASTIC_STEPS)
    require_checkpoint(tmp_path, ELASTIC_STEPS)


# The only complete copies are those before the change, unless the others have received all.
@pytest.mark.parametrize(
    ("state", "sources"), [("copying", ["replicas"]), ("copied", ["replicas", "memory"])]
)
def test_process_killed_in_the_copies_after_a_change(
    tmp_path: Path, state: str, sources: list[str]
) -> None:
    fault = {"state": state, "skip": 1, "signal": signal.SIGKILL}
    done = elastic(tmp_path, "--replicate-every", "1000", device=DEVICES[1], **fault)
    assert done.returncode == 0, done.stderr
    last = recoveries(tmp_path)[-1]
    assert last["lost"] == [DEVICES[1]] and last["source"] in sources, last
    require_curve(tmp_path, ELASTIC_STEPS)


@pytest.mark.parametrize("state", ["fetch", pytest.param("stepping", marks=NIGHTLY)])
def test_elastic_run_takes_back_a_killed_process(tmp_path: Path, state: str) -> None:
    fault = {"state": state, "signal": signal.SIGKILL}
    done = elastic(tmp_path, "--max-restarts", "1", device=DEVICES[1], **fault)
    assert done.returncode == 0, done.stderr
    assert recoveries(tmp_path)[-1]["lost"] == []
    require_curve(tmp_path, ELASTIC_STEPS)


def test_full_disk_ends_no_elastic_run(tmp_path: Path) -> None:
    done = elastic(tmp_path, saves=True, full=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is not saved") == 1, done.stderr
    require_curve(tmp_path, ELASTIC_STEPS)


@pytest.mark.parametrize("state", ["make_runs", "fetch"])
def test_elastic_run_without_memory_returns_to_its_plan(tmp_path: Path, state: str) -> None:
    done = elastic(tmp_path, device=DEVICES[1], state=state, raises="CUDA out of memory")
    assert done.returncode == 0, done.stderr
    assert len(recoveries(tmp_path)) == 1
    last = json.loads((tmp_path / "elastic-2.plan.json").read_text())
    assert last == json.loads((tmp_path / "plan.json").read_text())
    require_curve(tmp_path, ELASTIC_STEPS)


def test_elastic_run_returns_if_the_first_step_lacks_memory(tmp_path: Path) -> None:
    done = elastic(tmp_path, device=DEVICES[1], state="stepping", raises="CUDA out of memory")
    assert done.returncode == 0, done.stderr
    assert len(recoveries(tmp_path)) == 2  # the change, and the return
    last = json.loads((tmp_path / "elastic-2.plan.json").read_text())
    assert last == json.loads((tmp_path / "plan.json").read_text())
    require_curve(tmp_path, ELASTIC_STEPS)


def test_elastic_run_that_is_interrupted_leaves_a_checkpoint(tmp_path: Path) -> None:
    done = elastic(tmp_path, device=DEVICES[1], state="hand_over", signal=signal.SIGTERM)
    assert done.returncode == 0, done.stderr
    assert [each["interrupted"] for each in seen(tmp_path)] == [True] * 3
    require_curve(tmp_path, ELASTIC_STEPS, plan=1)
