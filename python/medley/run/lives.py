"""The lives of a run: a load ends one and begins the next, in which the same steps may recur. A
process that joins later passes through all lives and receives the steps of each."""

from __future__ import annotations

import dataclasses
import math
from array import array
from collections.abc import Sequence
from typing import Any

from medley.metrics import Given, Metrics


@dataclasses.dataclass
class Progress:
    """The progress of a process. Steps are counted over all objectives."""

    asked: int = 0  # steps requested by the script
    done: int = 0  # steps in the state
    begun: int = -1  # the last step that the run has begun or been set to
    metrics: Metrics | None = None  # metrics of the last step
    generation: int = -1  # generation of the plan of this process's state; -1: no state
    back: int = 0  # generation in which this process last returned to copies or a checkpoint
    members: list[str] = dataclasses.field(default_factory=list)  # remaining ones of the generation
    spares: int = 0  # members without a device of the plan


class Life:
    """The steps from one load to the next, of a run with `number` objectives, numbered from 0."""

    def __init__(self, number: int) -> None:
        self.seen: list[Given] = []  # results of each step
        self._of = array("H")  # objective by step, including requested steps
        self._counts = 0, [0] * number  # steps of each objective among a number of steps

    def ask(self, step: int, objective: int) -> bool:
        """Returns whether a step is of this objective. A new step becomes so."""
        if step == len(self._of):
            self._of.append(objective)
        return self._of[step] == objective

    def objective(self, step: int) -> int:
        """Returns the objective of a step."""
        return self._of[step]

    def counts(self, steps: int) -> list[int]:
        """Returns the number of steps of each objective among the first `steps`."""
        counted, counts = self._counts
        if steps < counted:
            counted, counts = 0, [0] * len(counts)
        for each in self._of[counted:steps]:
            counts[each] += 1
        self._counts = steps, counts
        return list(counts)

    def begin(self, counts: Sequence[int]) -> None:
        """Sets the number of earlier steps of each objective, in any order."""
        self._of.extend(each for each, count in enumerate(counts) for _ in range(count))
        self.seen = [Given(math.nan, math.nan, {})] * sum(counts)

    def export(self, steps: int) -> list[Any]:
        """Returns `steps` steps for load() in another process."""
        return [self._of[:steps].tolist(), self.seen[:steps]]

    def load(self, exported: Sequence[Any]) -> None:
        """Loads the steps of another process. Requested steps that have not run keep their
        order."""
        objectives, seen = exported
        self._of.extend(objectives[len(self._of) :])
        self.seen = [Given(*each) for each in seen]


class Lives:
    """The lives known to one process."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._all = [Life(number)]
        self.place = 0  # place of the script's life

    @property
    def last(self) -> Life:
        """The life of the run."""
        return self._all[-1]

    @property
    def here(self) -> Life:
        """The life of the script."""
        return self._all[self.place]

    @property
    def newest(self) -> int:
        """The place of the last life."""
        return len(self._all) - 1

    @property
    def is_past(self) -> bool:
        """Returns whether the run has ended the life of the script."""
        return self.place < self.newest

    def begin(self, counts: Sequence[int]) -> bool:
        """Moves the script to its next life, after these steps of each objective. Returns whether
        the run begins it too."""
        is_new = not self.is_past
        self.place += 1
        if is_new:
            self._all.append(Life(self._number))
            self.last.begin(counts)
        return is_new

    def export(self, steps: int) -> list[Any]:
        """Returns the lives for load() in other processes, with `steps` steps of the last one."""
        ended = [life.export(len(life.seen)) for life in self._all[:-1]]
        return [*ended, self.last.export(steps)]

    def load(self, exported: Sequence[Any]) -> None:
        """Loads the lives of another process."""
        new = [Life(self._number) for _ in exported[len(self._all) :]]
        self._all = [*self._all[: len(exported)], *new]
        for life, each in zip(self._all, exported, strict=True):
            life.load(each)
