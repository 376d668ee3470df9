"""Records of an elastic run, and their treatment after a loss."""

from __future__ import annotations

import math

import pytest
import torch

from medley.metrics import Given
from medley.run import acts
from medley.run.journal import SCRIPT, Journal, Kind, Replay, Step

RESULTS = {  # results that can be sent to others, by kind
    Kind.EVALUATION: {"loss": 0.5},
    Kind.PREDICTION: {"loss": 0.5, "rows": torch.arange(3)},
    Kind.SAVE: "",
    Kind.LOAD: ["/a/step-3", 3, 8, None],
    Kind.FIT: 7,
}


def held(journal: Journal, kind: Kind, steps: range) -> list[int]:
    """Returns at which of these steps there is a record."""
    return [step for step in steps if journal.has(kind, (0, step))]


def keep(journal: Journal, step: int, batch: object, oldest: int = 0) -> None:
    """Records a batch. No step before `oldest` is repeated."""
    journal.forget(Kind.BATCH, (0, oldest))
    journal.record(Kind.BATCH, (0, step), 0, batch)


def with_steps(count: int, asked: int = 0, number: int = 1) -> Journal:
    """Returns a journal of `count` steps, with objectives in turn, and of `asked` requested
    steps."""
    journal = Journal(number)
    for step in range(count + asked):
        assert journal.lives.last.ask(step, step % number)
    journal.lives.last.seen = [Given(float(step), 1.0, {}) for step in range(count)]
    return journal


def passed(journal: Journal, steps: int, into: Journal) -> Journal:
    """Lets another process load an export, as text."""
    into.load(acts.parse(acts.to_text(journal.export(steps))))
    return into


def test_batches_are_kept_from_the_oldest_step_that_may_be_made_again() -> None:
    journal = Journal()
    for step in range(6):
        keep(journal, step, {"x": torch.full((4,), step)}, oldest=3)
    assert held(journal, Kind.BATCH, range(6)) == [3, 4, 5]
    journal.require(range(3, 6), "memory")
    with pytest.raises(ValueError, match="next step is 2, and the batches of steps 2 to 2 are not"):
        journal.require(range(2, 6), "memory")


# A script may reuse the same memory for every step.
def test_batches_are_copies() -> None:
    journal, buffer = Journal(), torch.zeros(2)
    for step in range(3):
        buffer.fill_(step)
        keep(journal, step, (buffer, {"y": buffer}))
    for step in range(3):
        first, second = journal.find(Kind.BATCH, (0, step))
        assert first.tolist() == second["y"].tolist() == [step, step]


def test_oldest_records_are_dropped_but_never_the_last_two() -> None:
    journal = Journal(most_bytes={Kind.BATCH: 64})
    for step in range(5):
        keep(journal, step, torch.zeros(4))  # 16 bytes each
    assert held(journal, Kind.BATCH, range(5)) == [1, 2, 3, 4]
    keep(journal, 5, torch.zeros(1000))
    assert held(journal, Kind.BATCH, range(6)) == [4, 5]
    keep(journal, 6, torch.zeros(4), oldest=5)
    keep(journal, 7, torch.zeros(4), oldest=6)
    keep(journal, 8, torch.zeros(4), oldest=6)  # the large one no longer counts
    assert held(journal, Kind.BATCH, range(9)) == [6, 7, 8]


def test_the_oldest_predictions_lose_their_rows_but_never_the_last_one() -> None:
    journal = Journal(most_bytes={Kind.PREDICTION: 16})
    for step in range(3):
        journal.record(Kind.PREDICTION, (0, step), 0, {"loss": step, "rows": torch.zeros(4)})
    found = [journal.find(Kind.PREDICTION, (0, step)) for step in range(3)]
    assert [set(each) for each in found] == [{"loss"}, {"loss"}, {"loss", "rows"}]
    assert [each["loss"] for each in found] == [0, 1, 2]
    other = passed(journal, 0, Journal(most_bytes={Kind.PREDICTION: 32}))
    other.record(Kind.PREDICTION, (0, 3), 0, {"loss": 3, "rows": torch.zeros(4)})
    assert set(other.find(Kind.PREDICTION, (0, 2))) == {"loss", "rows"}


def test_records_of_a_step_are_numbered_as_the_script_comes_to_them() -> None:
    journal = Journal()
    asked = [journal.ask(Kind.SAVE, place) for place in [(0, 1), (0, 1), (0, 2), (1, 2)]]
    assert asked == [0, 1, 0, 0]
    assert journal.ask(Kind.EVALUATION, (1, 2)) == 0
    assert [journal.ask(Kind.FIT, SCRIPT) for _ in range(2)] == [0, 1]


def test_a_record_is_made_once() -> None:
    journal = Journal()
    for value in ("first", "second"):
        journal.record(Kind.SAVE, (0, 1), 0, value)
    assert journal.find(Kind.SAVE, (0, 1)) == "first"
    assert journal.count() == 1


def test_all_records_are_exported() -> None:
    assert set(RESULTS) == {kind for kind in Kind if kind.replay is Replay.SHARED}
    journal = with_steps(4)
    for kind, value in RESULTS.items():
        journal.record(kind, (0, 3), 1, value)
    journal.record(Kind.READ, (0, 3), 0, print)
    keep(journal, 3, torch.zeros(2))
    other = passed(journal, 3, Journal())
    assert other.count() == journal.count() == len(RESULTS)
    for kind, value in RESULTS.items():
        found = other.find(kind, (0, 3), 1)
        if kind is Kind.PREDICTION:
            assert torch.equal(found.pop("rows"), torch.arange(3))
            value = {"loss": 0.5}
        assert found == value
    assert not other.has(Kind.READ, (0, 3))
    assert not other.has(Kind.BATCH, (0, 3))
    assert other.lives.last.seen == journal.lives.last.seen[:3]
    assert other.last(Kind.EVALUATION) == (3, {"loss": 0.5})


def test_a_loaded_journal_replaces_what_was_loaded_before() -> None:
    lost, left = with_steps(3), with_steps(2)
    lost.record(Kind.SAVE, (0, 2), 0, "of one that is lost, too")
    assert lost.lives.begin([0])
    new = passed(left, 2, passed(lost, 0, Journal()))
    assert new.count() == new.lives.newest == 0
    assert len(new.lives.last.seen) == 2


# All return to a checkpoint, and another process is lost before this one has returned.
def test_restarted_process_keeps_the_order_of_its_steps() -> None:
    behind = with_steps(5, asked=1, number=2)
    passed(with_steps(3, number=2), 3, behind)
    assert [behind.lives.last.objective(step) for step in range(6)] == [0, 1, 0, 1, 0, 1]
    assert len(behind.lives.last.seen) == 3


def test_lives_are_exported_with_their_steps() -> None:
    journal = with_steps(3)
    assert journal.lives.begin([2])
    journal.record(Kind.LOAD, (1, 2), 0, ["", 0])
    other = passed(journal, 2, Journal())
    assert other.lives.newest == 1
    assert other.lives.is_past
    assert len(other.lives.here.seen) == 3
    assert all(math.isnan(each.loss) for each in other.lives.last.seen)
    assert other.last(Kind.LOAD) is None  # the life of the script
    assert not other.lives.begin([2])
    assert other.last(Kind.LOAD) == (2, ["", 0])


@pytest.mark.parametrize(
    ("done", "taken", "left"),
    [(3, None, True), (4, ["a", 4], True), (5, None, False)],
    ids=["before", "at", "behind"],
)
def test_a_save_begins_again_at_its_step_only(
    done: int, taken: list[object] | None, left: bool
) -> None:
    journal = Journal()
    journal.set_writing(9, ["b", 9])
    journal.set_writing(4, ["a", 4])
    assert journal.find_writing(done) == taken
    assert (journal.writing is not None) == left
    journal.set_writing(-1, None)
    assert journal.writing is None


def test_forgotten_records_are_repeated() -> None:
    journal = Journal()
    steps: list[Step] = [(0, 1), (0, 2), (1, 0)]
    for step in steps:
        journal.record(Kind.READ, step, 0, print)
    journal.forget(Kind.READ, (0, 2))
    assert [len(journal.at(Kind.READ, step)) for step in steps] == [0, 1, 1]
    journal.forget(Kind.READ)
    assert not any(journal.at(Kind.READ, step) for step in steps)
