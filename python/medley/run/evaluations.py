"""Evaluating in an elastic run: all make each evaluation once, whoever is lost meanwhile.

One that nobody has made goes on in the next epoch with the batch that was under way, under the plan
of then. While one is made, nobody is taken in who can wait.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from medley.evaluation import Evaluation, Sums
from medley.metrics import Outputs
from medley.run import elastic, exchange
from medley.run.elastic import Member
from medley.run.epochs import EVALUATES
from medley.run.journal import Kind
from medley.run.notice import Notice

if TYPE_CHECKING:
    from medley.run.recovery import Recovery
    from medley.trainer import Trainer

Values = Mapping[str, float]
Found = TypeVar("Found", bound=Mapping[str, Any])


class _Progress:
    """How far this process has come in one, from epoch to epoch. A batch is only taken when those
    before are in the sums, so that none is kept: what all agree on lacks the last one at most."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self._batches = iter(batches)
        self._taken = 0
        self._last: Any = None
        self.sums = Sums()

    def agree(self) -> None:
        """Takes the sums of whoever has come farthest."""
        told = [Sums.parse(text) for text in exchange.texts(self.sums.to_text())]
        self.sums = max(told, key=lambda each: each.batches)

    def next(self) -> Any:
        """Returns the batch behind those in the sums, None if there is none."""
        with elastic.of_script():
            while self._taken <= self.sums.batches:
                self._last = next(self._batches, None)
                self._taken += 1
        return self._last


class Evaluations:
    """The evaluations of one run, each made once."""

    def __init__(self, recovery: Recovery, member: Member, notice: Notice) -> None:
        self._recovery = recovery
        self._member = member
        self._notice = notice
        self._is_in_one = False

    @property
    def last(self) -> tuple[int, Values] | None:
        """After how many steps the last one was made, and what was found."""
        return self._recovery.journal.last(Kind.EVALUATION)

    def evaluate(self, trainer: Trainer, batches: Iterable[Any]) -> dict[str, float]:
        """Returns the means of loss and metrics over the rows of all batches."""
        if trainer._graph.carry:  # after a loss rows have nothing from the batch before
            kept = list(batches)
            return dict(self.once(lambda: self._means(trainer, _Progress(kept))))
        progress = _Progress(batches)
        return dict(self.once(lambda: self._means(trainer, progress)))

    def once(self, make: Callable[[], Values]) -> Values:
        """Returns what `make` finds, in all processes of the plan together, or has found before
        this process has come."""
        return self._once(Kind.EVALUATION, "evaluate", make)

    def predict(self, trainer: Trainer, batch: Any) -> dict[str, Any]:
        """Returns what the model gives for one batch."""

        def make() -> dict[str, Any]:
            with self._watched(trainer):
                self._notice.check(self._member)
                self._require_same(trainer._evaluation, batch, "predict")
                return trainer._evaluation.outputs(
                    trainer._run, batch, trainer.steps, trainer._together
                )

        return Outputs(self._once(Kind.PREDICTION, "predict", make), trainer._rows)

    def _once(self, kind: Kind, what: str, make: Callable[[], Found]) -> Found:
        if self._is_in_one:  # which begins again as a whole
            return make()
        found: Found | None = self._recovery.acts.once(kind, lambda: self._flagged(make))
        if found is None:
            raise ValueError(
                f"{what}: found a script that is after step {self._recovery.asked}, before the "
                "run began from a checkpoint; expected one that begins at Trainer.steps, behind "
                "Trainer.catch_up()"
            )
        return found

    def _flagged(self, make: Callable[[], Found]) -> Found:
        this = self._recovery.job_now
        assert this is not None
        member, first = self._member, this.rank == 0
        if first:
            member.store.set(member.key(EVALUATES), "yes")
        self._is_in_one = True
        try:
            return make()
        finally:
            self._is_in_one = False
            if first:
                member.store.set(member.key(EVALUATES), "")

    def _means(self, trainer: Trainer, progress: _Progress) -> Values:
        evaluation = trainer._evaluation
        try:
            with self._watched(trainer), trainer._together("evaluate()"):
                progress.agree()
                while (batch := self._next(evaluation, progress)) is not None:
                    evaluation.add(progress.sums, trainer._run, batch, trainer.steps)
        finally:
            evaluation.drop_values()
        return progress.sums.means()

    def _watched(self, trainer: Trainer) -> contextlib.AbstractContextManager[None]:
        """Around what all wait for: they wait no longer if the epoch ends."""
        evaluation, group = trainer._evaluation, self._member.group
        assert group is not None

        def end_waits() -> None:
            evaluation.abort("the epoch is over")
            group.abort()

        return self._member.watched(end_waits)

    def _next(self, evaluation: Evaluation, progress: _Progress) -> Any:
        """Returns the next batch; None behind the last one. Raises ValueError in all processes if
        they do not have the same."""
        self._notice.check(self._member)
        self._member.check()
        batch = progress.next()
        self._require_same(evaluation, batch, f"evaluate: batch {progress.sums.batches}")
        return batch

    def _require_same(self, evaluation: Evaluation, batch: Any, what: str) -> None:
        told = "none" if batch is None else evaluation.told(batch)
        if not exchange.is_same(told):
            found = ", ".join(exchange.texts(told))
            raise ValueError(
                f"{what}: found {found} in the "
                "processes, expected the same batch in all, with all of its rows: which of them a "
                "device computes is another matter in another epoch, and medley.Loader reads those"
            )
