"""Traces of spot pools are read and replayed as computed by hand, on plans that are given."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.spot import planned, traces
from benchmarks.spot.costs import Costs
from benchmarks.spot.replay import Outcome, Plan, oracle, replay
from benchmarks.spot.traces import Change

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "benchmarks" / "data" / "traces"
VARUNA = ROOT / "benchmarks" / "spot" / "varuna.json"
FREE = {
    "notice_seconds": 0,
    "wait_seconds": 0,
    "start_after_loss_seconds": 0,
    "start_after_join_seconds": 0,
    "planning_share": 0,
    "written_share": 0,
    "read_after_loss_share": 0,
    "read_after_join_share": 0,
    "repeated_seconds": 0,
    "node_rate": None,
    "storage_rate": None,
}


def costs(folder: Path, **figures: object) -> Costs:
    """Returns costs with only these figures."""
    path = folder / "costs.json"
    values = {**FREE, **figures}
    entries = {name: {"value": value, "source": "assumed: here"} for name, value in values.items()}
    head = {"format": "medley-recovery-costs", "version": 1, "name": "rule"}
    path.write_text(json.dumps({**head, "figures": entries}))
    return Costs.load(path)


def ten_each(nodes: frozenset[str]) -> Plan:
    """Returns a plan of ten rows per second per node, with two nodes at least. Every node stores
    half of the state."""
    return Plan(10.0 * len(nodes), len(nodes) / 2) if len(nodes) > 1 else Plan(0.0)


# Two nodes from the start, a third from 100 s to 200 s.
CHANGES = [
    Change(0.0, ("p/0", "p/1")),
    Change(100.0, ("p/2",)),
    Change(200.0, (), ("p/2",)),
]
END = 300.0
BEST = 100 * 20 + 100 * 30 + 100 * 20


def test_events_and_counts_give_the_lowest_free_places(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("0,add,x\n0,add,y\n1500,remove,x\n2000,add,z\n2000,add,w\n")
    assert traces.read(tmp_path / "a.csv", "p") == [
        Change(0.0, ("p/0", "p/1")),
        Change(1.5, (), ("p/0",)),
        Change(2.0, ("p/0", "p/2")),
    ]
    entries = [{"Time": 0, "GPUs": 2}, {"Time": 60, "GPUs": 2}, {"Time": 120, "GPUs": 1}]
    (tmp_path / "b.json").write_text(json.dumps(entries))
    counts = traces.read(tmp_path / "b.json", "q")
    assert counts == [Change(0.0, ("q/0", "q/1")), Change(120.0, (), ("q/1",))]
    merged = traces.merge([traces.read(tmp_path / "a.csv", "p"), counts])
    assert merged[0] == Change(0.0, ("p/0", "p/1", "q/0", "q/1"))
    assert [change.at for change in merged] == [0.0, 1.5, 2.0, 120.0]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("0,add,x\n0,gone,x\n", r"a\.csv:2: found 0,gone,x, expected"),
        ("5,add,x\n4,add,y\n", r"a\.csv:2: found 0\.004 s after 0\.005 s"),
        ("0,add,x\n1,add,x\n", r"a\.csv:2: found add of x, which is there already"),
        ("0,remove,x\n", r"a\.csv:1: found remove of x, which is not there"),
    ],
)
def test_wrong_traces_are_named(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(ValueError, match=sentence):
        traces.read(tmp_path / "a.csv", "p")


@pytest.mark.parametrize(("name", "most", "last"), [("p3", 32, 10), ("g4dn", 24, 5)])
def test_recorded_traces_are_read(name: str, most: int, last: int) -> None:
    alive: set[str] = set()
    seen = []
    for change in traces.read(RECORDED / f"{name}-trace.csv", name):
        assert set(change.left) <= alive | set(change.joined)
        alive = (alive - set(change.left)) | set(change.joined)
        seen.append(len(alive))
    assert (max(seen), seen[-1]) == (most, last)
    assert {int(node.split("/")[1]) for node in alive} <= set(range(most))


def test_policy_without_cost_is_the_oracle(tmp_path: Path) -> None:
    assert oracle(CHANGES, ten_each, END).rows == pytest.approx(BEST)
    assert replay(CHANGES, ten_each, costs(tmp_path), 1e9, END) == Outcome(BEST, 0.0, 3, 0)


# Starts 6 s late, is idle for 6 s at the join and, at 190 s, for 4 + 20 + 7 s.
def test_each_figure_is_paid_where_it_belongs(tmp_path: Path) -> None:
    rule = costs(
        tmp_path,
        notice_seconds=10,
        wait_seconds=20,
        start_after_loss_seconds=7,
        start_after_join_seconds=6,
        written_share=0,
    )
    found = replay(CHANGES, ten_each, rule, 1e9, END)
    assert found.rows == pytest.approx(94 * 20 + 84 * 30 + 83 * 20)
    assert found.stopped_seconds == pytest.approx(6 + 6 + 27)


# 1 GB at 1 MB/s: two nodes write it in 500 s, three in 333 s; each loads half a gigabyte.
def test_state_is_moved_at_the_rate_of_nodes_and_of_storage(tmp_path: Path) -> None:
    changes = [Change(0.0, ("p/0", "p/1", "p/2")), Change(10_000.0, (), ("p/2",))]
    everything = {"read_after_loss_share": "everything", "node_rate": 1e6}
    slow = replay(changes, ten_each, costs(tmp_path, **everything), 1e9, 20_000.0)
    assert slow.stopped_seconds == pytest.approx(500.0)
    share = costs(tmp_path, read_after_loss_share=0.1, written_share=1, node_rate=1e6)
    assert replay(changes, ten_each, share, 1e9, 20_000.0).stopped_seconds == pytest.approx(
        1000 / 3 + 50
    )
    shared = costs(tmp_path, read_after_loss_share="everything", storage_rate=1e6)
    assert replay(changes, ten_each, shared, 1e9, 20_000.0).stopped_seconds == pytest.approx(1000.0)


# The moved state follows from the plans: those of training, and those of the remaining nodes.
def test_a_rule_may_move_what_plans_say_and_repeat_a_step(tmp_path: Path) -> None:
    asked = []

    def mover(before: frozenset[str], left: frozenset[str], after: frozenset[str]) -> float:
        asked.append((len(before), len(left), len(after)))
        return 3e6

    def planner(nodes: frozenset[str]) -> Plan:
        return Plan(10.0 * len(nodes), 1.0, 4.0, 0.5) if len(nodes) > 1 else Plan(0.0)

    rule = costs(
        tmp_path,
        read_after_loss_share="moved",
        read_after_join_share="moved",
        repeated_seconds="a step",
        planning_share=1,
        node_rate=1e6,
    )
    found = replay(CHANGES, planner, rule, 1e6, END, mover)
    # At first no node has state: two nodes read 1 MB.
    assert asked == [(2, 2, 3), (3, 2, 2)]
    assert found.stopped_seconds == pytest.approx(1.0 + 3.5 + 3.5)
    assert found.rows == pytest.approx(99 * 20 + 96.5 * 30 - 4 * 30 + 96.5 * 20)


def test_a_loss_undoes_some_training_and_never_more_than_there_is(tmp_path: Path) -> None:
    rule = costs(tmp_path, repeated_seconds=5)
    assert replay(CHANGES, ten_each, rule, 1e9, END).rows == pytest.approx(BEST - 5 * 30)
    early = [Change(0.0, ("p/0", "p/1", "p/2")), Change(1.0, (), ("p/2",))]
    assert replay(early, ten_each, rule, 1e9, 1.0 + 1e-9).rows == pytest.approx(0.0, abs=1e-6)
    # Two losses, 2 s apart: the second one undoes 2 s, back to where the first one went back to.
    nodes = tuple(f"p/{i}" for i in range(4))
    twice = [Change(0.0, nodes), Change(100.0, (), ("p/3",)), Change(102.0, (), ("p/2",))]
    found = replay(twice, ten_each, rule, 1e9, 110.0)
    assert found.rows == pytest.approx(95 * 40 + 8 * 20)


# The second loss, at 103 s, is within the wait of the first and adds nothing; that at 112 s is not.
def test_a_loss_in_a_recovery_begins_it_again_once_something_was_started(tmp_path: Path) -> None:
    nodes = tuple(f"p/{i}" for i in range(5))
    rule = costs(tmp_path, wait_seconds=10, start_after_loss_seconds=5)
    first, second = Change(100.0, (), ("p/4",)), Change(103.0, (), ("p/3",))
    third = Change(112.0, (), ("p/2",))
    found = replay([Change(0.0, nodes), first, second], ten_each, rule, 1e9, 200.0)
    assert (found.stopped_seconds, found.begun_again) == (pytest.approx(15.0), 0)
    assert found.rows == pytest.approx(100 * 50 + 85 * 30)
    found = replay([Change(0.0, nodes), first, second, third], ten_each, rule, 1e9, 200.0)
    assert (found.stopped_seconds, found.begun_again) == (pytest.approx(12 + 15), 1)


def test_node_that_joins_in_a_recovery_is_included(tmp_path: Path) -> None:
    rule = costs(tmp_path, wait_seconds=10, start_after_join_seconds=50)
    changes = [Change(0.0, ("p/0", "p/1", "p/2")), Change(100.0, (), ("p/2",))]
    changes.append(Change(104.0, ("p/2",)))
    found = replay(changes, ten_each, rule, 1e9, 200.0)
    assert found.rows == pytest.approx(50 * 30 + 90 * 30)


def test_without_enough_nodes_nothing_is_trained_and_nothing_is_stopped(tmp_path: Path) -> None:
    changes = [Change(0.0, ("p/0", "p/1")), Change(50.0, (), ("p/1",)), Change(80.0, ("p/1",))]
    rule = costs(tmp_path, start_after_join_seconds=4)
    found = replay(changes, ten_each, rule, 1e9, 100.0)
    assert (found.rows, found.stopped_seconds) == (pytest.approx(46 * 20 + 16 * 20), 8.0)
    assert oracle(changes, ten_each, 100.0).rows == pytest.approx(70 * 20)


def test_figures_need_a_source_and_a_value(tmp_path: Path) -> None:
    assert Costs.load(VARUNA).wait_seconds.number == 120
    assert "| wait_seconds | 120 | published: " in Costs.load(VARUNA).table()
    raw = json.loads(VARUNA.read_text())
    for change, sentence in (
        ({"value": 1, "source": "everybody knows"}, "expected value and source"),
        ({"value": -1, "source": "assumed: so"}, "found -1, expected a number of at least 0"),
        ({"value": "everything", "source": "assumed: so"}, "found everything, expected a number"),
    ):
        raw["figures"]["wait_seconds"] = change
        (tmp_path / "costs.json").write_text(json.dumps(raw))
        with pytest.raises(ValueError, match=sentence):
            Costs.load(tmp_path / "costs.json")
    del raw["figures"]["wait_seconds"]
    (tmp_path / "costs.json").write_text(json.dumps(raw))
    with pytest.raises(ValueError, match="figures: found"):
        Costs.load(tmp_path / "costs.json")


def test_copies_are_the_devices_of_a_stage() -> None:
    stages = [{"mesh": {"devices": ["a", "b"]}}, {"mesh": {"devices": ["c", "d"]}}]
    plan = {"pipelines": [{"stages": stages}, {"stages": [{"mesh": {"devices": ["e"]}}]}]}
    assert planned.copies(plan) == 3.0


# Plans of a small graph: a second device of the type makes it faster. Known plans are reused.
def test_plans_are_made_for_present_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cluster = ROOT / "tests" / "data" / "mlp.graph", tmp_path / "cluster.yaml"
    cluster.write_text(
        "format: medley-cluster\nversion: 1\nnodes:\n"
        "  - {name: p, count: 2, device: T4-16GB, devices_per_node: 1}\n"
        "networks:\n  - {name: lan, connects: [p], bandwidth: 100 Gbit/s, latency: 1 us}\n"
    )
    cache = tmp_path / "found.json"
    planner = planned.Planned(graph, cluster, 65536, "data-parallel-even", cache)
    both = planner(frozenset({"p/0", "p/1"}))
    one = planner(frozenset({"p/1"}))
    assert planner(frozenset()) == Plan(0.0)
    assert both.rows_per_second > one.rows_per_second > 0
    assert (both.copies, one.copies) == (2.0, 1.0)
    tight = tmp_path / "tight.yaml"
    tight.write_text(
        cluster.read_text().replace("T4-16GB", "tight")
        + "devices: {tight: {based_on: T4-16GB, memory: 1 MB}}\n"
    )
    none = planned.Planned(graph, tight, 65536, "data-parallel-even", None)
    assert none(frozenset({"p/0"})).rows_per_second == 0.0
    unknown = planned.Planned(graph, cluster, 65536, "fastest", None)
    with pytest.raises(ValueError, match="fastest"):
        unknown(frozenset({"p/0"}))
    monkeypatch.setattr(planned._core, "plan", None)
    again = planned.Planned(graph, cluster, 65536, "data-parallel-even", cache)
    assert again(frozenset({"p/0"})) == one
    # New nodes receive all of the state. Remaining nodes have it.
    first, second = frozenset({"p/0"}), frozenset({"p/1"})
    assert again.moved(first, first, first | second) > 0
    assert again.moved(first | second, second, second) == 0
    with pytest.raises(ValueError, match="nobody who is left has it"):
        again.moved(first, frozenset(), second)
    with pytest.raises(ValueError, match="has no node q/7"):
        again(frozenset({"q/7"}))
