"""Batches of data that have no length and are read from the first row on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from torch.utils.data import default_collate

from medley.cursor import Cursor
from medley.data.loader import Read, UnreadBatch, unread
from medley.plan import Plan


class StreamLoader:
    """Yields a batch for each step, without end, of an iterable that gives the same rows to all
    processes in the same order, such as a streamed data set of the package datasets. When it ends
    it is iterated again, after `set_epoch` if it has that; an epoch's last batch has the rows that
    are left, unless `drop_last` leaves them out.

    Every process reads all rows, and `collate` (as in `torch.utils.data.DataLoader`) gets those
    that its device computes, also when the plan has changed after a loss. While a step is made the
    rows of the next ones are read, in one thread. Who goes on from a checkpoint reads what came
    before once more. How long to train is said in steps.
    """

    def __init__(
        self,
        plan: Plan,
        dataset: Iterable[Any],
        collate: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
    ) -> None:
        if not isinstance(dataset, Iterable) or isinstance(dataset, Iterator):
            raise ValueError(
                f"StreamLoader: found {dataset!r}, expected what can be iterated more than once"
            )
        self._rows = plan.global_batch
        self._dataset = dataset
        self._collate = default_collate if collate is None else collate
        self._drop_last = drop_last
        self._first = 0
        # As in a Loader: the last step may be made again when all has been yielded.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="medley loader")

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Chooses with which batch the next iteration begins, counted from the first of all: there
        is one epoch, 0, which does not end."""
        self._first = first_batch

    def cursor(self, steps: int) -> Cursor:
        """Returns where the rows of the next step are after so many steps, for `Trainer.save`."""
        return Cursor(0, steps, 0)

    def __iter__(self) -> Iterator[UnreadBatch]:
        first, self._first = self._first, 0
        return unread(
            ((self._reader(rows), len(rows)) for rows in self._ahead(first)), self._thread
        )

    def _ahead(self, first: int) -> Iterator[list[Any]]:
        """Yields the rows of each batch; those of the following one are read meanwhile."""
        batches = self._batches(first)
        following = self._thread.submit(next, batches)
        while True:
            rows = following.result()
            following = self._thread.submit(next, batches)
            yield rows

    def _batches(self, first: int) -> Iterator[list[Any]]:
        number = 0
        for epoch in itertools.count():
            if callable(choose := getattr(self._dataset, "set_epoch", None)):
                choose(epoch)
            rows, before = iter(self._dataset), number
            while batch := list(itertools.islice(rows, self._rows)):
                if len(batch) < self._rows and self._drop_last:
                    break
                number += 1
                if number > first:
                    yield batch
            if number == before:
                least = f"a global batch of {self._rows}" if self._drop_last else "one"
                raise ValueError(
                    f"StreamLoader: found a stream of {len(batch)} rows, expected at least {least}"
                )

    def _reader(self, rows: list[Any]) -> Read:
        def read(positions: Sequence[int]) -> Any:
            return self._collate([rows[each] for each in positions])

        return read
