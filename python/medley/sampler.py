"""Which rows of a data set this device computes."""

from __future__ import annotations

from collections.abc import Iterator, Sized

import torch
from torch.utils.data import Sampler

from medley import job
from medley.plan import Plan


class BatchSampler(Sampler[list[int]]):
    """Yields, for each global batch, the indices of the rows that this device computes.

    For `torch.utils.data.DataLoader(dataset, batch_sampler=BatchSampler(plan, dataset))`; what the
    loader yields goes to `Trainer.step`. In a single process these are all rows. What does not fill
    a global batch is dropped. A device without rows gets one, which `Trainer.step` ignores.
    """

    def __init__(self, plan: Plan, dataset: Sized, shuffle: bool = False, seed: int = 0) -> None:
        self._plan = plan
        self._length = len(dataset)
        self._shuffle = shuffle
        self._seed = seed
        self._epoch = 0
        if self._length < plan.global_batch:
            raise ValueError(
                f"BatchSampler: found a data set of {self._length} rows, expected at least one "
                f"global batch of {plan.global_batch}"
            )

    def set_epoch(self, epoch: int) -> None:
        """Chooses the order of the rows, equal on all devices."""
        self._epoch = epoch

    def __len__(self) -> int:
        return self._length // self._plan.global_batch

    def __iter__(self) -> Iterator[list[int]]:
        order = torch.arange(self._length)
        if self._shuffle:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + self._epoch)
            order = torch.randperm(self._length, generator=generator)
        this = job.current()
        mine = (
            list(range(self._plan.global_batch)) if this is None else self._plan.rows_of(this.rank)
        )
        for batch in range(len(self)):
            start = batch * self._plan.global_batch
            yield [int(order[start + row]) for row in mine or [0]]
