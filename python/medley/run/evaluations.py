"""Evaluating in an elastic run: all make each evaluation once, whoever is lost meanwhile.

Evaluations have numbers, as steps have. One that somebody has made is over for all: the others are
told what was found when the next epoch begins, and who comes later gets it at once. One that nobody
has made goes on in the next epoch with the batch that was under way, under the plan of then. While
one is made, nobody is taken in who can wait.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from medley.evaluation import Evaluation, Sums
from medley.run import elastic, exchange
from medley.run.elastic import Member
from medley.run.epochs import EVALUATES
from medley.run.notice import Notice

if TYPE_CHECKING:
    from medley.trainer import Trainer

Values = Mapping[str, float]


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
    """Of one trainer. `call`: makes what all make together, again after each recovery."""

    def __init__(
        self,
        trainer: Trainer,
        member: Member,
        notice: Notice,
        call: Callable[[Callable[[], None]], None],
    ) -> None:
        self._trainer = trainer
        self._member = member
        self._notice = notice
        self._call = call
        self._made: list[tuple[int, Values]] = []  # after so many steps; what was found
        self._asked = 0  # for so many by the script
        self._is_in_one = False

    @property
    def last(self) -> tuple[int, Values] | None:
        """After how many steps the last one was made, and what was found."""
        return self._made[-1] if self._made else None

    def evaluate(self, batches: Iterable[Any]) -> dict[str, float]:
        """Returns the means of loss and metrics over the rows of all batches."""
        progress = _Progress(batches)
        return dict(self.once(lambda: self._means(progress)))

    def once(self, make: Callable[[], Values]) -> Values:
        """Returns what `make` finds, in all processes of the plan together, or has found before
        this process has come."""
        if self._is_in_one:  # which begins again as a whole
            return make()
        number = self._asked
        self._asked += 1
        self._call(lambda: self._add(number, make))
        return self._made[number][1]

    def _add(self, number: int, make: Callable[[], Values]) -> None:
        if number < len(self._made):
            return
        trainer, member = self._trainer, self._member
        key = f"evaluated/{number}"
        if trainer._job is None:  # no device of the plan
            found = json.loads(member.wait(key))
        else:
            first = trainer._job.rank == 0
            if first:
                member.store.set(member.key(EVALUATES), "yes")
            self._is_in_one = True
            try:
                found = make()
            finally:
                self._is_in_one = False
                if first:
                    member.store.set(member.key(EVALUATES), "")
            if first:
                member.store.set(member.key(key), json.dumps(found, default=float))
        self._made.append((trainer.steps, found))

    def _means(self, progress: _Progress) -> Values:
        trainer, member = self._trainer, self._member
        evaluation, group = trainer._evaluation, member.group
        assert group is not None

        def end_waits() -> None:
            evaluation.abort("the epoch is over")
            group.abort()

        watch = elastic.Watch(member.store, member.epoch, end_waits)
        try:
            with trainer._together("evaluate()"):
                progress.agree()
                while (batch := self._next(evaluation, progress)) is not None:
                    evaluation.add(progress.sums, trainer._run, batch, trainer.steps)
        finally:
            watch.stop()
            evaluation.drop_values()
        return progress.sums.means()

    def _next(self, evaluation: Evaluation, progress: _Progress) -> Any:
        """Returns the next batch; None behind the last one. Raises ValueError in all processes if
        they do not have the same."""
        self._notice.check(self._member)
        self._member.check()
        batch = progress.next()
        told = "none" if batch is None else evaluation.told(batch)
        if not exchange.is_same(told):
            found = ", ".join(exchange.texts(told))
            raise ValueError(
                f"evaluate: batch {progress.sums.batches}: found {found} in the "
                "processes, expected the same batch in all, with all of its rows: which of them a "
                "device computes is another matter in another epoch, and medley.Loader reads those"
            )
        return batch

    # --- a recovery ---

    def leave(self) -> None:
        """The epoch is over."""
        self._trainer._evaluation.move(self._trainer.plan, self._trainer._job)

    enter = leave  # another one begins, with its plan

    def share(self) -> None:
        """Lets those know what was found who have not made all that others have. All members call
        it."""
        counts = [int(text) for text in exchange.texts(str(len(self._made)))]
        member, most = self._member, max(counts)
        if min(counts) == most:
            return
        if len(self._made) < most:
            self._made = [(step, found) for step, found in json.loads(member.wait("evaluated"))]
        elif member.group is not None and member.group.rank == counts.index(most):
            member.store.set(member.key("evaluated"), json.dumps(self._made, default=float))

    def catch_up(self) -> None:
        """Leaves out those that were made before this process has come."""
        self._asked = len(self._made)
