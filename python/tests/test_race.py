"""The race finds the fastest plan by real steps, at a bounded cost, on the same curve."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import exactness
import pytest
import torch

import medley
import medley_extras.race
from medley.cluster import parse_cluster
from medley.run import devices, job
from medley.run.beside import Beside
from medley.run.replanning import Subject, stepper, text_of_subject
from medley_extras import models
from medley_extras.race import OFTEN, Tuner, table, tuner
from medley_extras.race.race import ROUNDS, STEPS, WARM_UP, Race, Runner
from medley_extras.race.results import save
from medley_extras.race.searches import Searches
from medley_extras.report import raced
from medley_extras.search import strategies
from medley_extras.search.costs import Corrections, with_links, with_ops

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 2, device: quick, devices_per_node: 1}
  - {name: slow, count: 2, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: BANDWIDTH, latency: LATENCY}
devices:
  quick: {based_on: CPU, speed: 0.05}
  half: {based_on: CPU, speed: 0.025}
"""


def run(
    predicted: Sequence[float],
    time: Callable[[int], float],
    budget: float = 1e9,
    change: float = 0.0,
) -> Race:
    """Returns a finished race of runners whose steps take time(number)."""
    race = Race([Runner(str(each), each) for each in predicted], budget, change)
    for _ in range(1000):
        if race.is_over:
            return race
        race.note_step(time(race.current))
    raise AssertionError("the race does not end")


def test_the_fastest_runner_wins() -> None:
    for truth in itertools.permutations([1.0, 1.2, 1.5]):
        race = run([1.0, 1.1, 1.2], lambda number, truth=truth: truth[number])
        assert truth[race.best] == 1.0
        assert race.runners[race.best].verdict == "chosen"


def test_steps_without_noise_run_once() -> None:
    race = run([1.0, 1.1], lambda number: [1.0, 0.9][number])
    assert race.steps == STEPS + WARM_UP + STEPS


def test_slower_runners_stop_after_a_step() -> None:
    race = run([1.0, 1.1], lambda number: [1.0, 3.0][number])
    assert len(race.runners[1].times) == 1
    assert race.runners[1].verdict == "slower"


def test_runners_that_cannot_win_do_not_run() -> None:
    race = run([1.0, 1.5, 9.0], lambda number: 1.0)
    assert not race.runners[2].times
    assert race.runners[2].verdict == "cannot win"


def test_close_runners_run_again_with_more_steps() -> None:
    draw = random.Random(7)
    race = run([1.0, 1.0], lambda number: [1.0, 0.97][number] * draw.uniform(0.95, 1.05))
    assert race.best == 1
    assert len(race.runners[1].times) >= 3 * STEPS
    assert race.steps <= 2 * (ROUNDS * WARM_UP + 7 * STEPS)


@pytest.mark.parametrize("seed", range(20))
def test_cost_stays_in_the_budget(seed: int) -> None:
    draw = random.Random(seed)
    predicted = sorted(draw.uniform(1, 2) for _ in range(6))
    truth = [each * draw.uniform(0.7, 1.4) for each in predicted]
    race = run(predicted, lambda number: truth[number], budget=5.0)
    loss = sum(
        (WARM_UP + len(r.times)) * (r.measured - min(truth)) for r in race.runners if r.times
    )
    overrun = max(0.0, *(truth[n] / predicted[n] for n in range(6))) * (WARM_UP + STEPS)
    assert loss <= 5.0 + overrun
    measured = [truth[number] for number, each in enumerate(race.runners) if each.times]
    assert truth[race.best] == min(measured)


def test_no_budget_means_no_other_runner() -> None:
    race = run([1.0, 1.1, 1.2], lambda number: 1.0, budget=1.0, change=2.0)
    assert [each.verdict for each in race.runners] == ["chosen", "over budget", "over budget"]


def test_runner_whose_warm_up_costs_the_budget_is_not_measured() -> None:
    race = run([1.0, 1.0], lambda number: [1.0, 10.0][number], budget=8.0)
    assert [each.verdict for each in race.runners] == ["chosen", "over budget"]
    assert race.steps == STEPS + 1 and race.spent == pytest.approx(9.0)


def test_runner_that_cannot_run_is_dropped() -> None:
    race = Race([Runner("a", 1.0), Runner("b", 1.0)], 100.0)
    while race.current == 0:
        race.note_step(1.0)
    race.note_failure("does not fit")
    assert race.is_over
    assert race.best == 0
    assert race.runners[1].verdict == "does not fit"
    assert "does not fit" in table(race)


def test_results_are_those_of_the_race(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    race = run([1.0, 1.5, 9.0], lambda number: 2.0 + number)
    save(race, tmp_path / "race.json")
    found = json.loads((tmp_path / "race.json").read_text())
    assert (found["steps"], found["cost_steps"]) == (race.steps, race.spent / 2.0)
    for plan, runner in zip(found["plans"], race.runners, strict=True):
        assert plan.get("measured_seconds", math.inf) == runner.measured
        assert (plan["name"], plan["predicted_seconds"]) == (runner.name, runner.predicted)
        assert plan["steps"] == len(runner.times)
    assert [plan["verdict"] for plan in found["plans"]] == ["chosen", "slower", "cannot win"]
    assert raced.check(found, "race.json")["plans"] == found["plans"]
    save(race, tmp_path / "nowhere" / "race.json")  # training continues
    assert "race.json" in capsys.readouterr().err


@pytest.mark.parametrize(("bandwidth", "latency"), [("100 Mbit/s", "50 us"), ("1 Gbit/s", "5 ms")])
def test_emulated_run_ends_under_its_fastest_plan(bandwidth: str, latency: str) -> None:
    torch.manual_seed(0)
    with exactness.double_precision():
        model, batch = models.gpt(batch=12)
        graph = medley.capture(model, batch)
    cluster = parse_cluster(CLUSTER.replace("BANDWIDTH", bandwidth).replace("LATENCY", latency))
    plan = medley.plan(graph, cluster, "data-parallel-even", 12)
    trainers = []
    with job.emulated(truth_seed=3, truth_spread=0.3):
        for tune in (1000, "off"):
            trainer = medley.Trainer(model, graph, plan, medley.AdamW(), local=True, tune=tune)
            trainers.append([trainer.step(batch) for _ in range(20)])
            if tune == 1000:
                (observer,) = trainer.observers
    assert isinstance(observer, Tuner)
    assert observer.race is not None
    assert observer.race.is_over
    raced, plain = trainers
    for one, other in zip(raced, plain, strict=True):
        assert abs(one.loss - other.loss) <= 1e-10 * abs(other.loss)
    measured = [each.measured for each in observer.race.runners]
    assert raced[-1].step_seconds == pytest.approx(min(measured), rel=1e-6)
    assert raced[-1].step_seconds < 0.9 * plain[-1].step_seconds


def test_race_goes_on_when_a_plan_does_not_fit(
    trainer: medley.Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    problems = ["fast/0/0: out of memory: needs 9 bytes\nmore"]

    def lacks_once(*arguments: object) -> None:
        if problems:
            raise MemoryError(problems.pop())

    monkeypatch.setattr(devices, "require_memory", lacks_once)
    batch = models.gpt(batch=8)[1]
    observer = tuner(trainer, 1000, False)
    observer.prepare(trainer, batch)
    for _ in range(60):
        observer.step(trainer, trainer.step(batch))
        if observer.race is not None and observer.race.is_over:
            break
    race = observer.race
    assert race.is_over
    verdict = "does not fit: fast/0/0: out of memory: needs 9 bytes"
    (dropped,) = (each for each in race.runners if each.verdict == verdict)
    assert not dropped.times
    assert trainer.plan.text == observer._searches.plans[race.best].text
    assert verdict in table(race)


def test_chosen_runner_that_cannot_run_leaves_the_next_best() -> None:
    race = run([1.0, 1.1, 1.2], lambda number: [1.2, 1.0, 1.1][number])
    assert (race.best, race.wanted) == (1, 1)
    race.note_failure("does not fit")
    assert race.wanted == 2
    assert [each.verdict for each in race.runners] == ["slower", "does not fit", "chosen"]


@pytest.fixture
def trainer() -> Iterator[medley.Trainer]:
    model, batch = models.gpt(batch=8)
    graph = medley.capture(model, batch)
    cluster = parse_cluster(CLUSTER.replace("BANDWIDTH", "1 Gbit/s").replace("LATENCY", "1 ms"))
    plan = medley.plan(graph, cluster, "data-parallel-even", global_batch=8)
    with job.emulated():
        yield medley.Trainer(model, graph, plan, medley.AdamW(), local=True, trace=True)


def test_search_finds_plans_of_all_strategies(trainer: medley.Trainer) -> None:
    costs, *found = strategies.search(Subject.of(trainer.engine), asked(trainer.plan))
    assert costs == Corrections({}, {})
    assert found[0][:2] == (0, "")
    named = [medley.Plan(text).strategy for _, text, _ in found[1:]]
    assert named[1:3] == ["data-parallel-proportional", "data-parallel-even"]
    assert {"hap", "harp"} < set(named)


def test_processes_divide_the_strategies(trainer: medley.Trainer) -> None:
    subject = Subject.of(trainer.engine)

    def found(first: int, stride: int) -> list[object]:
        own = strategies.STRATEGIES[first::stride]
        part = asked(trainer.plan)._replace(strategies=own, predicts=first == 0)
        return list(strategies.search(subject, part))[1:]

    assert sorted([*found(0, 2), *found(1, 2)]) == found(0, 1)


def test_search_beside_training_finds_the_same(trainer: medley.Trainer) -> None:
    expected = list(strategies.search(Subject.of(trainer.engine), asked(trainer.plan)))
    beside = searching_beside(trainer)
    wait(lambda: beside.is_over)
    assert beside.values() == json.loads(json.dumps(expected))
    assert beside.values() == []
    beside.close()


def test_search_ends_with_its_owner(trainer: medley.Trainer) -> None:
    beside = searching_beside(trainer)
    process = beside._process
    del beside
    assert process.returncode == -signal.SIGKILL


def test_search_gives_way_to_training(trainer: medley.Trainer) -> None:
    beside = searching_beside(trainer)
    number = beside._process.pid
    nicest = min(19, os.nice(0) + strategies.NICENESS)
    wait(lambda: os.getpriority(os.PRIO_PROCESS, number) == nicest)
    wait(lambda: Path(f"/proc/{number}/oom_score_adj").read_text() == "1000\n")
    assert not beside.is_over


def searching_beside(trainer: medley.Trainer) -> Beside:
    """Returns the process of a search by the costs of the cluster."""
    text = text_of_subject(trainer.engine)
    return Beside(strategies.__name__, json.dumps([text, asked(trainer.plan)]))


def asked(plan: medley.Plan) -> strategies.Asked:
    """Returns the input of a search by the costs of the cluster."""
    return strategies.Asked(
        [plan.text], [None], None, Corrections({}, {}), None, strategies.STRATEGIES, True
    )


def wait(is_over: Callable[[], bool]) -> None:
    """Waits up to a minute."""
    end = time.monotonic() + 60
    while not is_over():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_race_waits_under_the_best_runner() -> None:
    answers = [True, True, False]
    race = Race([Runner("a", 1.0), Runner("b", 1.0)], 1e9, measured=lambda: answers.pop(0))
    times = [1.0, 2.0, 1.5]
    for _ in range(STEPS):
        race.note_step(times[race.wanted])
    assert race.is_waiting and race.wanted == 0
    race.note_pause(11.0, steps=10)
    assert race.spent == pytest.approx(1.0)
    race.go_on()
    assert race.wanted == 1
    while not race.is_waiting:
        race.note_step(times[race.wanted])
    assert race.wanted == 0
    race.add([Runner("c", 1.0)])
    race.go_on()
    assert race.wanted == 2
    while not race.is_over:
        race.note_step(times[race.wanted])
    assert race.best == 0
    assert not any(len(each.times) > STEPS for each in race.runners)


def real_trainer(tune: int | str) -> tuple[medley.Trainer, Any]:
    """Returns a trainer of the threads of this process, and its batch."""
    with exactness.double_precision():
        model, batch = models.mlp(batch=8)
        graph = medley.capture(model, batch)
    cluster = parse_cluster(CLUSTER.replace("BANDWIDTH", "1 Gbit/s").replace("LATENCY", "1 ms"))
    plan = medley.plan(graph, cluster, "data-parallel-even", global_batch=8)
    rule = medley.AdamW()
    return medley.Trainer(model, graph, plan, rule, local=True, tune=tune, remember=False), batch


def test_training_goes_on_during_a_search() -> None:
    torch.manual_seed(0)
    trainer, batch = real_trainer(10**6)
    (observer,) = trainer.observers
    losses = []
    while observer.race is None or not observer.race.is_waiting:
        losses.append(trainer.step(batch).loss)
    losses += [trainer.step(batch).loss for _ in range(3)]
    wait(lambda: observer._searches.is_over)
    while not observer.race.is_over:
        losses.append(trainer.step(batch).loss)
        wait(lambda: observer._searches.is_over)
    assert len(observer.race.runners) > 2
    assert trainer.plan.text == observer._searches.plans[observer.race.best].text
    torch.manual_seed(0)
    plain, batch = real_trainer("off")
    for loss in losses:
        assert abs(loss - plain.step(batch).loss) <= 1e-10 * abs(loss)


def test_plans_that_are_known_do_not_run_again(trainer: medley.Trainer) -> None:
    searches = Searches(Corrections({}, {}))
    searches.plans = [trainer.plan]
    searches._found = [[{}, {}], [3, trainer.plan.text, [1.0, 2.0]]]  # ended before it predicted
    assert searches.take(trainer, [Runner("a", 1.5)]) == []
    assert len(searches.plans) == 1


def searching(trainer: medley.Trainer, batch: Any) -> tuple[Tuner, medley.Metrics]:
    """Returns a tuner with a budget of 100 steps whose search has begun, and metrics of a step of a
    second."""
    observer = tuner(trainer, 100, False)
    observer.prepare(trainer, batch)
    metrics = dataclasses.replace(trainer.step(batch), step_seconds=1.0)
    while observer.race is None or not observer.race.is_waiting:
        observer.step(trainer, metrics)
    return observer, metrics


def test_search_ends_when_steps_have_lost_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Beside, "is_over", False)
    monkeypatch.setattr(Beside, "values", lambda self: [])
    monkeypatch.setattr(medley_extras.race, "_since", lambda begin, trainer: 0.0)  # of a change
    trainer, batch = real_trainer("off")
    observer, metrics = searching(trainer, batch)
    process = observer._searches._beside._process
    slower = dataclasses.replace(metrics, step_seconds=1.1)
    steps = 0
    while observer.race.is_waiting:
        observer.step(trainer, slower)
        steps += 1
    assert 500 < steps <= 500 * (1 + 1 / OFTEN) + 2  # half of the budget, a tenth of a second each
    assert process.returncode == -signal.SIGKILL
    assert observer.race.is_over
    assert observer.race.searches_cut == 1
    assert [each.verdict for each in observer.race.runners] == ["chosen"]


def test_nothing_is_searched_if_two_changes_cost_more_than_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow_stepper(*arguments: Any) -> Any:
        time.sleep(0.06)
        return stepper(*arguments)

    monkeypatch.setattr(medley_extras.race, "stepper", slow_stepper)
    trainer, batch = real_trainer("off")
    observer = tuner(trainer, 10, False)
    observer.prepare(trainer, batch)
    metrics = dataclasses.replace(trainer.step(batch), step_seconds=0.01)  # a budget of 0.1 s
    for _ in range(1 + STEPS):
        assert observer.race is None or not observer.race.is_over
        observer.step(trainer, metrics)
    assert observer.race is not None and observer.race.is_over
    assert observer._searches._beside is None
    assert len(observer.race.runners) == 1


def test_training_waits_for_a_search_that_slows_it_down() -> None:
    trainer, batch = real_trainer("off")
    observer, metrics = searching(trainer, batch)
    slower = dataclasses.replace(metrics, step_seconds=1.5)
    steps = 0
    while observer.race.is_waiting:
        observer.step(trainer, slower)
        steps += 1
    assert steps <= STEPS
    assert len(observer.race.runners) > 2


def test_short_runs_do_not_race(trainer: medley.Trainer) -> None:
    trainer.expected_steps = 150  # 2 % are less than the steps of one plan
    assert raced_in_a_step(trainer) is None
    trainer.expected_steps = 1000
    assert raced_in_a_step(trainer) is not None


def raced_in_a_step(trainer: medley.Trainer) -> Race | None:
    """Returns the race that a default tuner begins after one step."""
    batch = models.gpt(batch=8)[1]
    observer = tuner(trainer, None, False)
    observer.prepare(trainer, batch)
    observer.step(trainer, trainer.step(batch))
    return observer.race


def test_unknown_number_of_steps_is_expected_to_double(trainer: medley.Trainer) -> None:
    batch = models.gpt(batch=8)[1]
    observer = tuner(trainer, None, False)
    observer.prepare(trainer, batch)
    for steps, races in ((0, False), (100, False), (198, False), (199, True)):
        trainer.steps = steps
        observer.step(trainer, trainer.step(batch))
        assert (observer.race is not None) == races, steps


def test_plan_by_hand_stays(trainer: medley.Trainer) -> None:
    trainer.expected_steps = 1000
    text = json.dumps({**trainer.plan.to_dict(), "strategy": ""})
    trainer.plan = medley.Plan(text, trainer.engine.graph, trainer.engine.machines)
    assert raced_in_a_step(trainer) is None


def test_other_texts_are_refused() -> None:
    with pytest.raises(ValueError, match="--tune: found 'fast', expected auto, off or a number"):
        job.tune_steps("fast")
    assert [job.tune_steps(each) for each in ("off", "auto", "7", 3, None)] == [0, None, 7, 3, None]


def test_costs_are_found_again() -> None:
    truth = Corrections({"a": (2.0, 0.5), "b": (1.0, 1.5)}, {"lan": (0.7, 5e-4)})
    rows = [("a", "matmul", 2.0, 5e6), ("a", "memory", 0.5, 1e6), ("b", "memory", 1.5, 1e6)]
    found = with_ops(Corrections({}, {}), rows, ["a", "b", "c"])
    assert found.kinds["a"] == pytest.approx((2.0, 0.5))
    assert found.kinds["b"][1] == pytest.approx(1.5)
    assert found.kinds["b"][0] == pytest.approx(1.5)  # what its other ops show
    assert 0.5 < found.kinds["c"][0] < 2.0  # what the other types show
    again = with_ops(found, [("a", "matmul", 1.0, 1.0)], ["a", "b", "c"])
    assert again.kinds["a"][0] == pytest.approx(2.0)

    def predict(corrections: Corrections) -> list[float]:  # bytes and messages of three plans
        bandwidth, latency = corrections.networks["lan"]
        return [1.0 + 0.5 / bandwidth + 20 * latency, 1.2 + 0.1 / bandwidth, 1 + 300 * latency]

    fitted = with_links(found, predict(truth), predict, ["lan"])
    for got, want in zip(predict(fitted), predict(truth), strict=True):
        assert got == pytest.approx(want, rel=0.02)
    assert with_links(found, [1.0], lambda _: [1.0], ["lan"]).networks["lan"] == (1.0, 0.0)
