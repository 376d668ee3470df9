"""The rows of a data set in each global batch, and those that this device computes."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

from medley import _core
from medley.cursor import Cursor
from medley.optimizer import AdamW
from medley.plan import Plan
from medley.run import job


class GlobalBatches:
    """The order of the rows of a data set. It depends on a seed and is identical on all devices.
    `drop_last` skips an incomplete last batch."""

    def __init__(
        self,
        plan: Plan,
        dataset: Sized,
        shuffle: bool = False,
        seed: int = 0,
        drop_last: bool = True,
    ) -> None:
        self._plan = plan
        self._length = len(dataset)
        self._shuffle = shuffle
        self._seed = seed
        self.epoch = 0  # its order of rows comes next
        self._first_batch = 0
        self._drop_last = drop_last
        least = plan.global_batch if drop_last else 1
        if self._length < least:
            raise ValueError(
                f"{type(self).__name__}: found a data set of {self._length} rows, expected at "
                f"least {f'one global batch of {least}' if drop_last else 'one'}"
            )

    def set_epoch(self, epoch: int, first_batch: int = 0) -> None:
        """Sets the order of the rows, identical on all devices, and the global batch with which the
        next iteration begins."""
        self.epoch = epoch
        self._first_batch = first_batch

    def cursor(self, steps: int) -> Cursor:
        """Returns the position of the next step's rows after `steps` steps, for `Trainer.save`."""
        return Cursor(*divmod(steps, len(self)), self._seed)

    def set_cursor(self, cursor: Cursor | tuple[int, int, int]) -> None:
        """Resumes at the position of a checkpoint. Raises ValueError if it has another order of
        rows."""
        epoch, batch, seed = cursor
        if seed != self._seed or not 0 <= batch < len(self):
            raise ValueError(
                f"{type(self).__name__}: found the cursor of seed {seed}, batch {batch}, expected "
                f"seed {self._seed} and a batch below {len(self)}"
            )
        self.set_epoch(epoch, batch)

    def __len__(self) -> int:
        whole, left = divmod(self._length, self._plan.global_batch)
        return whole + (left > 0 and not self._drop_last)

    def batches(self) -> Iterator[list[int]]:
        """Yields the indices of the rows of each global batch of the epoch."""
        order = torch.arange(self._length)
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self.epoch)
            order = torch.randperm(self._length, generator=generator)
        first, self._first_batch = self._first_batch, 0
        rows = self._plan.global_batch
        for batch in range(first, len(self)):
            yield order[batch * rows : (batch + 1) * rows].tolist()


class BatchSampler(GlobalBatches, Sampler[list[int]]):
    """Yields the indices of this device's rows for each global batch.

    Pass it as `torch.utils.data.DataLoader(dataset, batch_sampler=BatchSampler(plan, dataset))`,
    and the batches of that loader to `Trainer.step`. In a single process, or with a plan read
    without graph and cluster, it yields all rows. An incomplete global batch is dropped. A device
    without rows, such as one between the first and the last pipeline stage, receives one that
    `Trainer.step` ignores. If the plan may change (`medley launch --elastic`), use `Loader`
    instead.

    Example:
        sampler = medley.BatchSampler(plan, dataset, shuffle=True)
        for batch in torch.utils.data.DataLoader(dataset, batch_sampler=sampler):
            trainer.step(batch)
    """

    def __init__(self, plan: Plan, dataset: Sized, shuffle: bool = False, seed: int = 0) -> None:
        super().__init__(plan, dataset, shuffle, seed)

    def __iter__(self) -> Iterator[list[int]]:
        for rows in self.batches():
            yield [rows[each] for each in self._mine or [0]]

    @functools.cached_property
    def _mine(self) -> list[int]:
        this, graph, cluster = job.current(), self._plan.graph, self._plan.cluster
        if this is None or graph is None or cluster is None:
            return list(range(self._plan.global_batch))
        # Rows do not depend on the optimizer.
        program = _core.Program(graph.core, self._plan.core, cluster, AdamW().core(graph.core))
        return own_rows(program, this.rank)


def own_rows(program: _core.Program, rank: int) -> list[int]:
    """Returns the rows of a global batch that a process computes."""
    return [row for first, count in program.rows(rank) for row in range(first, first + count)]
