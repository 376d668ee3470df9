"""Evaluation in an elastic run: all processes run each evaluation once, and tolerate node losses.
An unfinished evaluation continues in the next generation with the current batch, under the new
plan. A process that can wait joins later."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from medley.engine import Engine
from medley.evaluation import Evaluation, Sums
from medley.run import elastic, exchange
from medley.run.elastic import Member
from medley.run.generations import EVALUATES
from medley.run.notice import Notice

Values = Mapping[str, float]
Found = TypeVar("Found", bound=Mapping[str, Any])


class _Progress:
    """The progress of this process in an evaluation across generations. A batch is taken only when
    all before it are in the sums, so none is stored. Processes differ by the last batch at most."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = iter(batches)
        self._taken = 0
        self._last: Any = None
        self.sums = Sums()

    def agree(self) -> None:
        """Takes the sums of the most advanced process."""
        all_sums = [Sums(**each) for each in exchange.values(dataclasses.asdict(self.sums))]
        self.sums = max(all_sums, key=lambda each: each.batches)

    def next(self) -> Any:
        """Returns the batch after those in the sums, or None."""
        with elastic.of_script():
            while self._taken <= self.sums.batches:
                self._last = next(self._batches, None)
                self._taken += 1
        return self._last


class Evaluations:
    """The evaluations of one run in one process."""

    def __init__(self, member: Member, notice: Notice) -> None:
        self._member = member
        self._notice = notice
        self.is_in_one = False

    def means_of(self, engine: Engine, batches: Iterable[Any]) -> Callable[[], Values]:
        """Returns a function that computes the means of loss and metrics over the rows of all
        batches. Another call continues from the reached state."""
        if engine.graph.carry:  # after a loss rows lack the values of the batch before
            kept = list(batches)
            return lambda: self._means(engine, _Progress(kept))
        progress = _Progress(batches)
        return lambda: self._means(engine, progress)

    def outputs_of(self, engine: Engine, batch: Any) -> Callable[[], dict[str, Any]]:
        """Returns a function that computes the outputs of the model for one batch."""

        def make() -> dict[str, Any]:
            with self._watched(engine):
                self._notice.check(self._member)
                self._require_same(engine.evaluation, batch, "predict")
                return engine.evaluation.outputs(batch)

        return make

    def flagged(self, make: Callable[[], Found], first: Engine) -> Found:
        """Returns the result of `make` while the store marks that all evaluate. `first`: engine
        whose plan defines the first process."""
        assert first.job is not None
        member, is_first = self._member, first.job.rank == 0
        if is_first:
            member.store.set(member.key(EVALUATES), "yes")
        self.is_in_one = True
        try:
            return make()
        finally:
            self.is_in_one = False
            if is_first:
                member.store.set(member.key(EVALUATES), "")

    def _means(self, engine: Engine, progress: _Progress) -> Values:
        evaluation = engine.evaluation
        try:
            with self._watched(engine), engine.together("evaluate()"):
                progress.agree()
                while (batch := self._next(evaluation, progress)) is not None:
                    evaluation.add(progress.sums, batch)
        finally:
            evaluation.drop_values()
        return progress.sums.means()

    def _watched(self, engine: Engine) -> contextlib.AbstractContextManager[None]:
        """Wraps collective waits: they abort if the generation ends."""
        evaluation, group = engine.evaluation, self._member.group
        assert group is not None

        def end_waits() -> None:
            evaluation.abort("the generation is over")
            group.abort()

        return self._member.watched(end_waits)

    def _next(self, evaluation: Evaluation, progress: _Progress) -> Any:
        """Returns the next batch, or None after the last one. Raises ValueError in all processes if
        their batches differ."""
        self._notice.check(self._member)
        self._member.check()
        batch = progress.next()
        self._require_same(evaluation, batch, f"evaluate: batch {progress.sums.batches}")
        return batch

    def _require_same(self, evaluation: Evaluation, batch: Any, what: str) -> None:
        text = "none" if batch is None else evaluation.fingerprint(batch)
        if not exchange.is_same(text):
            found = ", ".join(exchange.texts(text))
            raise ValueError(
                f"{what}: found {found} in the "
                "processes, expected the same batch in all, with all of its rows: which of them a "
                "device computes is another matter in another generation, and medley.Loader reads "
                "those"
            )
