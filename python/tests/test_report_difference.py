"""The first difference of a measured step: made-up steps whose times are known in closed form."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import medley
from medley.run import job
from medley_extras.models import gpt
from medley_extras.report.collect import collect
from medley_extras.report.difference import (
    COLLECTIVES,
    COMPUTES,
    MESSAGES,
    PAUSES,
    compare,
    divide,
)
from medley_extras.report.measured import rows, sentence
from medley_extras.report.trace import WAITING, Event, Trace

MS = 1_000_000


class Made:
    """A trace that is made device by device. Times are in milliseconds."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.clock: dict[str, float] = {}

    def add(self, device: str, name: str, time: float, category: str = "") -> None:
        """Adds a call after the last event of the device."""
        start = self.clock.get(device, 0.0)
        self.clock[device] = start + time
        begin, end = round(start * MS), round((start + time) * MS)
        kind = category or name.partition(" ")[0]
        self.events.append(Event(device, True, name, kind, begin, end))

    def wait(self, device: str, name: str, until: float) -> None:
        """Adds a wait, and the communication that it is for."""
        start = self.clock.get(device, 0.0)
        self.add(device, name, max(0.0, until - start), WAITING)
        begin, end = round(start * MS), round(self.clock[device] * MS)
        self.events.append(Event(device, False, name, name.partition(" ")[0], begin, end))

    def trace(self) -> Trace:
        return Trace(self.events, {})


def pipeline(count: int, first: float, second: float, delay: float) -> Trace:
    """Two stages without a backward phase: `count` micro-batches, times of their calls, and the
    time of a message."""
    made = Made()
    for number in range(count):
        made.add("a", f"forward {number}", first)
        made.wait("b", "transfer x", (number + 1) * first + delay)
        made.add("b", f"forward {number}", second)
    return made.trace()


def parallel(computes: dict[str, float], network: float) -> Trace:
    """Devices that sum their gradients, `network` after the last one is done."""
    made = Made()
    for device, time in computes.items():
        made.add(device, "forward 0", time / 3)
        made.add(device, "backward 0", 2 * time / 3)
        made.wait(device, "all_reduce gradients", max(computes.values()) + network)
        made.add(device, "update 0", 1)
    return made.trace()


def no_stage(device: str) -> str:
    return ""


def stage(device: str) -> str:
    return str("ab".index(device))


def test_pieces_add_up_to_the_step() -> None:
    draw = random.Random(3)
    for _ in range(50):
        made = Made()
        for device in "abc":
            for number in range(draw.randint(1, 6)):
                made.add(device, f"forward {number}", draw.uniform(0, 3))
                made.wait(device, "transfer x", made.clock[device] + draw.uniform(-1, 1))
                made.clock[device] += draw.choice([0, draw.uniform(0, 2)])
        trace = made.trace()
        spent = dict.fromkeys("abc", 0)
        for key, piece in divide(trace).items():
            spent[key.device] += piece.time
        assert set(spent.values()) == {trace.span}


def test_equal_steps_have_no_first_difference() -> None:
    trace = pipeline(4, 2, 1, 0.5)
    found = compare(trace, trace)
    assert found.first is None and found.change == 0
    assert all(total.change == 0 for total in found.totals)
    assert sentence(found, stage) == (
        "The measured step is 9.5 ms, predicted 9.5 ms: they agree within 1 %."
    )


# Every call of the first stage is late by 1 ms, and the second stage waits: the cause comes first.
def test_slow_calls_are_the_cause_of_later_waits() -> None:
    found = compare(pipeline(8, 2, 1, 0.5), pipeline(8, 3, 1, 0.5))
    assert found.change == 8 * MS
    first = found.first
    assert first is not None and first.key[:4] == ("a", COMPUTES, "forward", "forward 0")
    assert (first.predicted.time, first.measured.time) == (2 * MS, 3 * MS)
    assert (first.count, first.mean_predicted, first.mean_measured) == (8, 2 * MS, 3 * MS)
    assert first.share == 1
    assert sentence(found, stage) == (
        "The measured step is 25.5 ms, predicted 17.5 ms. They first differ at a (stage 0), which "
        "computes forward of micro-batch 0 for 3 ms, predicted 2 ms. Its 8 forward calls take 3 ms "
        "on average, predicted 2 ms. Its computing explains 100 % of the 8 ms by which the step is "
        "longer."
    )


def test_the_call_that_is_slow_is_found_by_its_number() -> None:
    predicted, slow = Made(), Made()
    for number in range(8):
        predicted.add("a", f"forward {number}", 2)
        slow.add("a", f"forward {number}", 9 if number == 5 else 2)
    found = compare(predicted.trace(), slow.trace())
    assert found.first is not None and found.first.key.name == "forward 5"
    assert found.first.mean_measured == (7 * 2 + 9) / 8 * MS


# The second stage is the slower one: only its first wait depends on the time of a message.
def test_a_slow_network_is_the_wait_for_the_first_message() -> None:
    found = compare(pipeline(8, 1, 2, 0.5), pipeline(8, 1, 2, 3.5))
    first = found.first
    assert found.change == 3 * MS and first is not None
    assert first.key[:3] == ("b", MESSAGES, "transfer") and first.key.ordinal == 0
    assert (first.predicted.time, first.measured.time) == (1.5 * MS, 4.5 * MS)
    assert (first.count, first.share) == (1, 1)  # other messages are awaited by no one


def test_waits_for_all_messages_are_summarised() -> None:
    predicted, measured = Made(), Made()
    for made, wait in ((predicted, 0.1), (measured, 1.1)):
        for number in range(72):
            made.wait("b", "transfer x", made.clock.get("b", 0) + wait)
            made.add("b", f"forward {number}", 1)
    text = sentence(compare(predicted.trace(), measured.trace()), stage)
    assert "at b (stage 1), which waits 1.1 ms for `transfer x`, predicted 100 us." in text
    assert "Its 72 waits for messages take 1.1 ms on average, predicted 100 us." in text
    assert "Its waiting explains 100 % of the 72 ms by which the step is longer." in text


def test_of_a_slow_device_and_those_that_wait_the_slow_one_is_found() -> None:
    predicted = parallel({"a": 6, "b": 6, "c": 6}, 1)
    found = compare(predicted, parallel({"a": 6, "b": 9, "c": 6}, 1))
    first = found.first
    assert first is not None and first.key[:4] == ("b", COMPUTES, "forward", "forward 0")
    assert first.share == 1 and first.others == 0
    assert "Its computing explains 100 % of the 3 ms" in sentence(found, no_stage)
    both = compare(predicted, parallel({"a": 6, "b": 9, "c": 9}, 1))
    assert sentence(both, no_stage).endswith("the step is longer. 1 other device does the same.")


# The device that is late waits least: only its wait is that of the network.
def test_of_two_causes_the_share_of_each_is_right() -> None:
    predicted = parallel({"a": 6, "b": 6}, 1)
    found = compare(predicted, parallel({"a": 6, "b": 7}, 10))
    first = found.first
    assert found.change == 10 * MS and first is not None
    assert first.key[:3] == ("b", COLLECTIVES, "all_reduce")
    assert first.share == pytest.approx(0.9)
    found = compare(predicted, parallel({"a": 6, "b": 9}, 8))
    assert found.first is not None and found.first.key[:2] == ("b", COMPUTES)
    assert found.first.share == pytest.approx(0.3)


def test_a_shorter_step_has_a_first_difference_too() -> None:
    found = compare(parallel({"a": 6, "b": 6}, 4), parallel({"a": 6, "b": 6}, 1))
    assert found.first is not None and found.first.key[:2] == ("a", COLLECTIVES)
    assert sentence(found, no_stage).endswith(
        "Its waiting explains 100 % of the 3 ms by which the step is shorter."
    )


def test_time_between_calls_is_a_pause() -> None:
    predicted, measured = Made(), Made()
    for made, gap in ((predicted, 0), (measured, 2)):
        for number in range(3):
            made.clock["a"] = made.clock.get("a", 0) + gap * (number > 0)
            made.add("a", f"forward {number}", 1)
    found = compare(predicted.trace(), measured.trace())
    first = found.first
    assert first is not None and first.key[1:4] == (PAUSES, PAUSES, "forward 1")
    text = sentence(found, no_stage)
    assert "at a, which pauses 2 ms before `forward 1`, predicted 0 ns." in text
    assert "Its 2 pauses take 2 ms on average" in text
    assert "Its pausing explains 100 % of the 4 ms" in text


# Measured ops leave gaps in a call, waits divide it, and clocks begin at any time.
def test_pieces_match_by_name_and_ordinal() -> None:
    predicted, measured = Made(), Made()
    predicted.add("a", "forward 0", 2)
    for name in ("backward 0", "backward 1", "backward 0"):
        predicted.add("a", name, 2)
    measured.add("a", "forward 0", 1)
    measured.clock["a"] += 0.001
    measured.wait("a", "all_gather w", 1.002)
    measured.add("a", "forward 0", 1)
    for name, time in (("backward 0", 2), ("backward 1", 2), ("backward 0", 5)):
        measured.add("a", name, time)
    found = compare(predicted.trace(), measured.trace())
    assert found.first is not None and found.first.key[3:] == ("backward 0", 1)
    assert (found.first.predicted.time, found.first.measured.time) == (2 * MS, 5 * MS)
    assert "computes backward of micro-batch 0, part 2 for 5 ms" in sentence(found, no_stage)


def test_rows_add_up_to_the_step_of_each_device() -> None:
    found = compare(pipeline(8, 2, 1, 0.5), pipeline(8, 3, 1, 0.5))
    table = rows(found, ["b", "a"])
    assert table[0] == ["the step", "17.5 ms", "25.5 ms", "+45.7 %", ""]
    shares = {row[0]: row[4] for row in table[1:]}
    assert shares == {
        "b computes": "0 %",
        "b waits for messages": "100 %",
        "a computes": "100 %",
        "a pauses": "0 %",
    }


CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: CPU, devices_per_node: 1}
  - {name: slow, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [fast, slow], bandwidth: 1 Gbit/s, latency: 20 us}
devices:
  half: {based_on: CPU, speed: 0.5, memory: 8 GiB}
"""
STAGES = [
    {"mesh": {"devices": ["fast/0/0"]}},
    {"mesh": {"devices": ["slow/0/0"]}, "first": "blocks.1.norm1/native_layer_norm#0"},
]
PLAN: dict[str, Any] = {
    "format": "medley-plan",
    "version": 1,
    "global_batch": 12,
    "pipelines": [{"microbatches": [{"rows": 3}] * 4, "stages": STAGES}],
}


# The devices are emulated by a cluster that differs in one figure from the file of the plan.
@pytest.mark.parametrize(
    ("figure", "truth", "part"),
    [("latency: 20 us", "latency: 3 ms", MESSAGES), ("speed: 0.5", "speed: 0.125", COMPUTES)],
)
def test_the_first_difference_is_the_figure_that_is_wrong(
    tmp_path: Path, figure: str, truth: str, part: str
) -> None:
    model, batch = gpt(batch=12)
    graph = medley.capture(model, batch)
    g, cluster, plan, trace = (tmp_path / name for name in ("g", "c.yaml", "plan.json", "trace"))
    g.write_text(graph.text())
    plan.write_text(json.dumps(PLAN))
    cluster.write_text(CLUSTER.replace(figure, truth))
    with job.emulated():
        ran = medley.plan(graph, cluster, plan=plan)
        trainer = medley.Trainer(model, graph, ran, local=True, trace=True)
    trainer.step(batch)
    trainer.save_trace(trace)
    cluster.write_text(CLUSTER)
    found = collect(str(plan), str(g), str(cluster), traces=[trace]).difference
    assert found is not None and found.first is not None
    first = found.first
    assert first.key[:2] == ("slow/0/0", part) and first.share > 0.5
    if part == MESSAGES:
        assert first.measured.time - first.predicted.time == 2.98 * MS
    else:
        assert first.key.name == "forward 0"
        rounding = pytest.approx(4 * first.predicted.time, abs=100)  # of each op, to nanoseconds
        assert first.measured.time == rounding
