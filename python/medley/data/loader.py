"""Batches whose rows are chosen when a step runs: those that this device computes then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch.utils.data import default_collate

from medley.data.sampler import GlobalBatches
from medley.plan import Plan

Read = Callable[[Sequence[int]], Any]  # reads positions of a global batch


class UnreadBatch:
    """The global batch of one step. `Trainer.step` reads the rows that its device computes under
    the current plan. They differ if the step is repeated after a node loss."""

    def __init__(self, read: Read, thread: ThreadPoolExecutor, size: int | None = None) -> None:
        self.size = size  # rows; None: the planned number
        self._read = read
        self._thread = thread
        self._ahead: tuple[list[int], Future[Any]] | None = None
        self.following: UnreadBatch | None = None  # batch of the next step

    def rows(self, positions: Sequence[int]) -> Any:
        """Returns the arguments of the model for these positions of the global batch, and starts
        reading the same positions of the following batch."""
        wanted = list(positions)
        ahead, self._ahead = self._ahead, None
        found = ahead[1] if ahead is not None and ahead[0] == wanted else self._begin(wanted)
        result = found.result()
        if self.following is not None:
            self.following.read_ahead(wanted)
            self.following = None
        return result

    def read_ahead(self, positions: list[int]) -> None:
        """Starts reading these rows, which the next step probably requires."""
        self._ahead = positions, self._begin(positions)

    def _begin(self, positions: list[int]) -> Future[Any]:
        try:
            return self._thread.submit(self._read, positions)
        except RuntimeError:  # script ended and process lost: last step is repeated
            made: Future[Any] = Future()  # without new threads
            made.set_result(self._read(positions))
            return made


def unread(
    reads: Iterable[tuple[Read, int | None]], thread: ThreadPoolExecutor
) -> Iterator[UnreadBatch]:
    """Yields a batch for each reader of positions and its number of rows."""
    last: UnreadBatch | None = None
    for read, size in reads:
        following = UnreadBatch(read, thread, size)
        if last is not None:
            last.following = following
            yield last
        last = following
    if last is not None:
        yield last


class Loader(GlobalBatches):
    """Yields a batch per step of an epoch. `Trainer.step` reads the rows that this device computes,
    also if the plan changes after a node loss (`medley launch --elastic`).

    `dataset` has a length and returns a row for an index. `collate` makes a batch from a list of
    rows; its default is that of `torch.utils.data.DataLoader`. A thread reads the rows of the next
    step meanwhile. The last batch of an epoch has the remaining rows, or is skipped with
    `drop_last`.

    Example:
        loader = medley.Loader(plan, dataset, shuffle=True, seed=1)
        for batch in loader:
            trainer.step(batch)
    """

    def __init__(
        self,
        plan: Plan,
        dataset: Any,
        shuffle: bool = False,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
    ) -> None:
        super().__init__(plan, dataset, shuffle, seed, drop_last)
        self._dataset = dataset
        self._collate = default_collate if collate is None else collate
        # It lives as long as the loader: the last step may be repeated after the last batch.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="medley loader")

    def __iter__(self) -> Iterator[UnreadBatch]:
        return unread(((self.reader(rows), len(rows)) for rows in self.batches()), self._thread)

    def reader(self, rows: list[int]) -> Read:
        """Returns a function that reads positions of the batch with these rows. Subclasses may
        override it."""

        def read(positions: Sequence[int]) -> Any:
            return self._collate([self._dataset[rows[each]] for each in positions])

        return read
