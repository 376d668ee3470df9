"""Batches whose rows are chosen when a step is made: those that this device computes then."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch.utils.data import default_collate

from medley.data.sampler import GlobalBatches
from medley.plan import Plan

Read = Callable[[Sequence[int]], Any]  # reads positions of a global batch


class UnreadBatch:
    """The global batch of one step, for `Trainer.step`, which reads the rows that its device
    computes under the plan of that moment: others if the step is made again after a loss."""

    def __init__(self, read: Read, thread: ThreadPoolExecutor, size: int | None = None) -> None:
        self.size = size  # rows; None: as many as the plan is for
        self._read = read
        self._thread = thread
        self._ahead: tuple[list[int], Future[Any]] | None = None
        self.following: UnreadBatch | None = None  # that of the next step

    def rows(self, positions: Sequence[int]) -> Any:
        """Returns what the model is called with, of the rows at these positions of the global
        batch; and begins to read the same rows of the following one."""
        wanted = list(positions)
        ahead, self._ahead = self._ahead, None
        found = ahead[1] if ahead is not None and ahead[0] == wanted else self._begin(wanted)
        result = found.result()
        if self.following is not None:
            self.following.read_ahead(wanted)
            self.following = None
        return result

    def read_ahead(self, positions: list[int]) -> None:
        """Begins to read these rows, which probably are asked for."""
        self._ahead = positions, self._begin(positions)

    def _begin(self, positions: list[int]) -> Future[Any]:
        try:
            return self._thread.submit(self._read, positions)
        except RuntimeError:  # the script has ended, and somebody was lost: the last step is made
            made: Future[Any] = Future()  # again, without new threads
            made.set_result(self._read(positions))
            return made


def unread(
    reads: Iterable[tuple[Read, int | None]], thread: ThreadPoolExecutor
) -> Iterator[UnreadBatch]:
    """Yields a batch for each of what reads positions of one, and how many rows that has."""
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
    """Yields a batch for each step of an epoch, whose rows `Trainer.step` asks for: those that this
    device computes, also when the plan has changed after a loss (`medley launch --elastic`).

    `dataset` has a length and gives a row for an index; `collate` makes a batch of a list of rows,
    as in `torch.utils.data.DataLoader`, and as there if not given. While a step is made, the rows
    of the next one are read, in one thread. The last batch of an epoch has the rows that are left,
    unless `drop_last` leaves them out.
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
        # It lives as long as this: the last step may be made again when all has been yielded.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="medley loader")

    def __iter__(self) -> Iterator[UnreadBatch]:
        return unread(((self.reader(rows), len(rows)) for rows in self.batches()), self._thread)

    def reader(self, rows: list[int]) -> Read:
        """Returns how to read positions of the batch that has these rows; a subclass may read them
        in another way."""

        def read(positions: Sequence[int]) -> Any:
            return self._collate([self._dataset[rows[each]] for each in positions])

        return read
