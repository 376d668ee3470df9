"""Batches whose rows are chosen when a step runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")

import medley
from medley.cluster import parse_cluster
from medley.data.loader import UnreadBatch, unread
from medley_extras.models import mlp

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 10 us}
"""
ROWS = 4
PLAN_OF_FOUR = (
    '{"format": "medley-plan", "version": 1, "global_batch": 4, "pipelines": [{"microbatches": '
    '[{"rows": 4}], "stages": [{"mesh": {"devices": ["a/0/0"]}}]}]}'
)


class Rows:
    """A data set that records its reads."""

    def __init__(self, batch: dict[str, Tensor], copies: int) -> None:
        self._batch = batch
        self._length = copies * ROWS
        self.read: list[int] = []

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        self.read.append(index)
        return {name: value[index % ROWS] * (1 + index) for name, value in self._batch.items()}


def batches_of(count: int) -> tuple[list[UnreadBatch], list[tuple[int, list[int]]]]:
    """Returns batches, and a list that receives the reads: the batch, and the positions."""
    seen: list[tuple[int, list[int]]] = []

    def reader(number: int) -> object:
        def read(positions: Sequence[int]) -> str:
            seen.append((number, list(positions)))
            return f"{number}: {list(positions)}"

        return read

    thread = ThreadPoolExecutor(1)
    return list(unread([(reader(i), None) for i in range(count)], thread)), seen  # type: ignore[misc]


def test_the_same_rows_of_the_next_batch_are_read_ahead() -> None:
    batches, seen = batches_of(2)
    assert seen == []
    assert batches[0].rows([1, 2]) == "0: [1, 2]"
    assert batches[1].rows([1, 2]) == "1: [1, 2]"
    assert seen == [(0, [1, 2]), (1, [1, 2])]


def test_other_rows_are_read_when_they_are_asked_for() -> None:
    batches, seen = batches_of(2)
    batches[0].rows([1])
    assert batches[1].rows([0, 1]) == "1: [0, 1]"
    # The step is repeated.
    assert batches[1].rows([3]) == "1: [3]"
    assert seen == [(0, [1]), (1, [1]), (1, [0, 1]), (1, [3])]


def test_a_trainer_takes_what_a_loader_yields() -> None:
    torch.manual_seed(0)
    model, tensors = mlp(batch=ROWS)
    graph = medley.capture(model, tensors)
    plan = medley.plan(graph, parse_cluster(CLUSTER), "data-parallel-even", global_batch=ROWS)
    trainer = medley.Trainer(model, graph, plan, local=True)
    other = medley.Trainer(model, graph, plan, local=True)
    data = Rows(tensors, 3)
    loader = medley.Loader(plan, data, shuffle=True, seed=1)
    losses = [trainer.step(batch).loss for batch in loader]
    assert len(losses) == 3
    order = list(medley.BatchSampler(plan, data, shuffle=True, seed=1))
    assert data.read == [row for rows in order for row in rows]
    whole = [
        {name: torch.stack([data[row][name] for row in rows]) for name in tensors} for rows in order
    ]
    assert losses == [other.step(batch).loss for batch in whole]
    loader.set_cursor(loader.cursor(2))
    data.read.clear()
    for batch in loader:
        trainer.step(batch)
    assert data.read == order[2]


def test_unreadable_row_is_reported() -> None:
    def read(positions: Sequence[int]) -> None:
        raise KeyError("row 3")

    (batch,) = unread([(read, None)], ThreadPoolExecutor(1))
    with pytest.raises(KeyError, match="row 3"):
        batch.rows([3])


def test_fewer_rows_than_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="Loader: found a data set of 3 rows, expected at least"):
        medley.Loader(medley.Plan(PLAN_OF_FOUR), range(3), drop_last=True)


class Stream:
    """Numbers that differ in every epoch."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(100 * self._epoch, 100 * self._epoch + self._length))


def streamed(loader: medley.StreamLoader, count: int) -> list[list[int]]:
    """Returns all rows of this many batches."""
    return [
        batch.rows(range(batch.size or 0)).tolist() for batch in itertools.islice(loader, count)
    ]


def test_a_stream_is_read_again_when_it_ends() -> None:
    plan = medley.Plan(PLAN_OF_FOUR)
    expected = [[0, 1, 2, 3], [4, 5], [100, 101, 102, 103], [104, 105], [200, 201, 202, 203]]
    loader = medley.StreamLoader(plan, Stream(6))
    assert streamed(loader, 5) == expected
    loader.set_epoch(0, 3)  # as after a resume at step three
    assert streamed(loader, 2) == expected[3:]
    assert streamed(loader, 2) == expected[:2]
    whole = medley.StreamLoader(plan, Stream(6), drop_last=True)
    assert streamed(whole, 3) == [[0, 1, 2, 3], [100, 101, 102, 103], [200, 201, 202, 203]]


def test_stream_gives_a_device_its_rows_and_others_after_a_loss() -> None:
    first, second = itertools.islice(medley.StreamLoader(medley.Plan(PLAN_OF_FOUR), Stream(8)), 2)
    assert first.rows([0, 2]).tolist() == [0, 2]
    assert first.rows([1, 3]).tolist() == [1, 3]  # the step is repeated
    assert second.rows([3]).tolist() == [7]


@pytest.mark.parametrize(
    ("rows", "drop_last", "sentence"),
    [
        ([], False, "found a stream of 0 rows, expected at least one"),
        ([1, 2], True, "found a stream of 2 rows, expected at least a global batch of 4"),
        (iter([1]), False, "expected what can be iterated more than once"),
        (3, False, "found 3, expected what can be iterated"),
    ],
)
def test_non_streams_are_refused(rows: Any, drop_last: bool, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        next(iter(medley.StreamLoader(medley.Plan(PLAN_OF_FOUR), rows, drop_last=drop_last)))


def test_a_stream_that_breaks_says_so() -> None:
    class Broken:
        def __iter__(self) -> Iterator[int]:
            yield from range(9)
            raise OSError("the connection is lost")

    found = iter(medley.StreamLoader(medley.Plan(PLAN_OF_FOUR), Broken()))
    assert next(found).rows([0]).tolist() == [0]
    with pytest.raises(OSError, match="the connection is lost"):
        list(found)
