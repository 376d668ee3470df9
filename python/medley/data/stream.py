"""Batches of data without a length, read from the first row on."""

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
    """Yields a batch per step, endlessly, from an iterable such as a streamed data set of datasets.

    All processes must receive the same rows in the same order. At its end the iterable restarts,
    after `set_epoch` if it has that method. The last batch of an epoch has the remaining rows, or
    is skipped with `drop_last`. Every process reads all rows, and `collate` receives those that its
    device computes, also if the plan changes. A thread reads the rows of the next steps meanwhile.
    A process that resumes reads the earlier rows again. Set the length of training in steps.

    Example:
        loader = medley.StreamLoader(plan, stream)
        trainer.fit(loader, steps=10_000)
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
        # As in a Loader: the last step may be repeated after the last batch.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="medley loader")

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Sets the batch with which the next iteration begins, counted from the first of all. The
        only epoch is 0, which does not end."""
        self._first = first_batch

    def cursor(self, steps: int) -> Cursor:
        """Returns the position of the next step's rows after `steps` steps, for `Trainer.save`."""
        return Cursor(0, steps, 0)

    def __iter__(self) -> Iterator[UnreadBatch]:
        first, self._first = self._first, 0
        return unread(
            ((self._reader(rows), len(rows)) for rows in self._ahead(first)), self._thread
        )

    def _ahead(self, first: int) -> Iterator[list[Any]]:
        """Yields the rows of each batch, and reads those of the next one meanwhile."""
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
