"""Batches whose rows are chosen when a step is made."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

pytest.importorskip("medley._runtime", reason="needs the extension module _runtime")

import medley
from medley.cluster import parse_cluster
from medley.data.loader import UnreadBatch, unread
from medley.models import mlp

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 2, device: CPU, devices_per_node: 1}
networks:
  - {name: lan, connects: [a], bandwidth: 10 Gbit/s, latency: 10 us}
"""
ROWS = 4


class Rows:
    """A data set that notes what is read of it."""

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
    """Returns batches, and a list that gets what is read: the batch, and the positions."""
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
    # The step is made again.
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


def test_a_row_that_cannot_be_read_is_told_as_it_is() -> None:
    def read(positions: Sequence[int]) -> None:
        raise KeyError("row 3")

    (batch,) = unread([(read, None)], ThreadPoolExecutor(1))
    with pytest.raises(KeyError, match="row 3"):
        batch.rows([3])


def test_fewer_rows_than_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="Loader: found a data set of 3 rows, expected at least"):
        medley.Loader(
            medley.Plan('{"format": "medley-plan", "version": 1, "global_batch": 4}'),
            range(3),
            drop_last=True,
        )
