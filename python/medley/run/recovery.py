"""How training goes on in this process when others are lost: its part of every recovery.

What a trainer does is done again, or finished, under the plan of the next epoch, as if nothing had
happened. The rules are the core's (`medley/elastic`): which step all have done, and which bytes go
where. Several objectives over one state (`objectives.py`) are one run: its steps are those of all,
in the order in which the script asks for them.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from medley import _core, checkpoint
from medley.checkpoint import Saving
from medley.cursor import Cursor
from medley.data.inputs import StepBatch
from medley.metrics import Given, Metrics, told_by
from medley.run import elastic, ends, epochs, exchange, job
from medley.run.acts import Acts
from medley.run.ahead import PlansAhead
from medley.run.elastic import RunEndError, ScriptError
from medley.run.epochs import Agreement
from medley.run.evaluations import Evaluations
from medley.run.journal import Journal, Kind
from medley.run.lives import Life
from medley.run.notice import Notice
from medley.run.objectives import Moved, Objectives, Whole
from medley.run.second_homes import SecondHomes, Version
from medley.run.sources import Source, Sources
from medley.run.tempo import Tempo
from medley.run.times import Times

if TYPE_CHECKING:
    from medley.run.course import Course
    from medley.shared_state import Owners
    from medley.trainer import Trainer

Made = TypeVar("Made")
_alive: list[Recovery] = []  # to the end of the process, which others may need


class Recovery:
    """Recovers a trainer, or several over one state. They have no runs yet if this process takes
    the place of a lost one. `number`: of objectives."""

    def __init__(self, whole: Whole, this: job.Job, number: int = 1) -> None:
        if _alive:
            raise ValueError("elastic: found a second trainer in a process, expected one")
        _alive.append(self)
        self._whole = whole
        self._member = elastic.member()
        self._all = Objectives(whole, self._member, this)
        self.journal = Journal(number)
        self._lives = self.journal.lives
        self._state = -1  # the epoch whose plan says what this process has; -1: nothing
        self._begun = -1  # the last step that the run has begun, or has been brought to
        self._back = 0  # the epoch in which this process last went back to copies or a checkpoint
        self._notice = Notice()
        self.acts = Acts(self, self._member, self.journal)
        self.evaluations: Evaluations = Evaluations(self, self._member, self._notice)
        every = job.second_homes_every() if number == 1 else None
        self._second = None if every is None else SecondHomes(every, self._find_homes)
        self.asked = 0  # steps that the script has asked for
        self._done = 0  # steps that the state is of
        self._metrics: Metrics | None = None  # of the last step
        self._safe_step = sys.maxsize  # steps done in the checkpoint that the run can go back to
        self._tempos = [
            Tempo(self._member, job.settle_seconds(), self._gain_with, f"{each or ''}")
            for each in range(number)
        ]
        self._seeds: list[int] = []  # by objective
        self.spares = 0
        self._members: list[str] = []
        self._ahead: PlansAhead | None = None

    # --- what a trainer does ---

    def begin(self) -> None:
        """The runs of the first epoch stand; or this process takes the place of a lost one, and has
        its part of the state when this returns."""
        if job.joins_later():
            self._seeds = [int(each._options["seed"]) for each in self._all.trainers]
            self._member.arrive(self._all.gain(job.offered_devices()))
            self._recover(None)
            return
        epoch = self._member.epoch
        self._all.begin(epoch)
        self._state, self._members = epoch, self._member.members
        for tempo in self._tempos:
            tempo.begin(self._first.plan.devices, {})
        self._plan_ahead()

    def begin_at(self, counts: list[int], path: str) -> None:
        """Training goes on from a checkpoint after so many steps of each objective; after none it
        is one of parameters alone. Others may have gone on from it before this process has come."""
        self.asked = steps = sum(counts)
        if not self._lives.begin(counts):
            return
        self._done, self._begun = steps, steps - 1
        has_saved = path != "" and steps > 0
        self._safe_step = steps if has_saved else sys.maxsize
        for kind in (Kind.BATCH, Kind.READ, Kind.WRITING):
            self.journal.forget(kind)
        for each in (self._second, self._whole._saver):
            if each is not None:
                each.forget()
        if self._member.name == self._members[0]:
            epochs.begin_checkpoints(self._member.store, path if has_saved else "", steps)

    def go_on_after(self, read: Callable[[], list[int]]) -> list[int]:
        """Takes what no checkpoint has, once in a run; `read` does, and returns after how many
        steps of each objective training goes on."""
        counts: list[int] = self.acts.once(Kind.LOAD, read)
        self.begin_at(counts, "")
        return counts

    @property
    def _course(self) -> Course:
        return self._lives.last.course

    @property
    def place(self) -> tuple[int, int]:
        """Where the script is: in which life of the run, and after how many steps."""
        return self._lives.place, self.asked

    @property
    def _first(self) -> Trainer:
        return self._all.first

    @property
    def job_now(self) -> job.Job | None:
        """This process in the epoch of now; None without a device of the plan."""
        return self._first._job

    @property
    def is_behind(self) -> bool:
        """Whether the script makes again what was made before this process has come."""
        return self._lives.is_past or self.asked < len(self._lives.last.seen)

    def _gain_with(self, planned: dict[str, float], factors: dict[str, float]) -> float:
        return self._all.gain_with(self._members, planned, factors)

    def catch_up(self, most: int | None = None, before: int = 0) -> Metrics | None:
        """Leaves out the steps that were made before this process has come, `most` or all but so
        many; returns what the last one gave, if that is known."""
        if most is None and self._lives.is_past:
            self._lives.place, self.asked = self._lives.newest, 0
        seen = len(self._lives.here.seen)
        steps = seen - before if most is None else min(most, seen)
        if steps <= self.asked:
            return None
        self.asked = steps
        self._set_steps(steps)
        last = self._told(steps - 1)
        return last if math.isfinite(last.loss) else None

    def step(self, trainer: Trainer, batch: Any) -> Metrics:
        """Makes a step, however often that takes. The steps that were made before this process has
        come are not made again: their metrics are what they were."""
        step = self.asked
        number, here = self._all.trainers.index(trainer), self._lives.here
        if not here.course.ask(step, number):
            names = list(self._whole._trainers)
            raise ValueError(
                f"step {step}: found one of {names[number]!r} in the script, and of "
                f"{names[here.course[step]]!r} in the run: expected the same order of objectives "
                "in all processes"
            )
        self.asked += 1
        if not self._lives.is_past:
            life = self._lives.newest
            self.journal.forget(Kind.BATCH, (life, self._oldest_needed(step)))
            self.journal.record(Kind.BATCH, (life, step), 0, batch)
        if step < len(here.seen):
            told = self._told(step)
            self._set_steps(self.asked)
            return told
        self.call(lambda: None, "step")
        assert self._metrics is not None
        return self._metrics

    def together(self, make: Callable[[], Made]) -> Made:
        """Does what all processes have to do together, as it is now."""
        if self.is_behind:
            raise ValueError(
                f"found a script that is after step {self.asked}, and a run that has done "
                f"{self._done}: what others were given then is gone; expected a script that begins "
                "at Trainer.steps, behind Trainer.catch_up()"
            )
        made = self.call(make, "read")
        self.acts.note_read(make, self._oldest_needed(self.asked))
        return made

    def call(self, make: Callable[[], Made], what: str = "") -> Made:
        """Does what all processes have to do together, after the steps that are missing; again
        after each recovery. `what`: "step", "read" or what others are told of."""
        while True:
            try:
                if not self._lives.is_past:  # else the others have made a load without this one
                    self._make_missing(what)
                return make()
            except ScriptError as failed:
                raise failed.error from None
            except (OSError, RuntimeError) as error:
                if not self._is_over(error):
                    raise
                if self._recover(error):
                    self._notice.leave()

    def _make_missing(self, what: str) -> None:
        self._save_again()
        while self._done < self.asked:
            self.acts.repeat(self._done, False)
            self._notice.check(self._member)
            self._make_copies()
            self._make_step()
            self._save_again()
        self._set_steps(self.asked)
        if what != "step":
            self.acts.repeat(self._done, what == "read")

    def finish(self) -> None:
        """Waits until all have finished, so that nobody goes with what others may need."""
        self._end_ahead()
        if self._notice.has_left:
            return
        with contextlib.suppress(OSError):  # it has ended in another way
            self.call(self._wait_for_all)

    def _set_steps(self, steps: int) -> None:
        """The trainers are behind so many steps of all."""
        counts = self._lives.here.course.counts(steps)
        for trainer, count in zip(self._all.trainers, counts, strict=True):
            trainer.steps = count

    def _save_again(self) -> None:
        """Writes the checkpoint again that was being written when a process was lost."""
        if (written := self.journal.take_writing(self._done)) is None:
            return
        folder, _, saving, data = written
        trainers = self._all.trainers
        before = [trainer.steps for trainer in trainers]
        self._set_steps(self._done)  # which the script may not have come to
        try:
            place = None if data is None else Cursor(*data)
            self._whole._save(folder, Saving(*saving), False, place)
        finally:
            for trainer, steps in zip(trainers, before, strict=True):
                trainer.steps = steps

    def _oldest_needed(self, step: int) -> int:
        """The first step that may have to be made again when `step` is the next one."""
        saver = self._whole._saver
        safe = None if saver is None else saver.safe_step
        if safe is not None:
            self._safe_step = safe
        return min([step - 1, self._safe_step, *(each.done for each in self._versions())])

    def _make_copies(self) -> None:
        """Gives others a copy of what one failure would take, if it is time."""
        trainer, second = self._first, self._second
        if second is None or trainer._job is None or not second.is_due(self._state, self._done):
            return
        peers = self._all.peers(trainer.plan.devices)
        with trainer._together("second homes"):
            costs = second.make(self._done, trainer._run, peers)
        if trainer._job.rank == 0:
            self._member.store.set(self._member.key("copies"), json.dumps(costs))

    def _find_homes(self, epoch: int) -> _core.SecondHomes:
        homes = _core.SecondHomes(self._all.programs(epoch)[0], self._first._machines)
        if homes.without and self._member.name == self._all.plans(epoch)[0].devices[0]:
            checkpoint.say(
                f"second homes: nobody has room for {homes.without} bytes that one failure would "
                "take; a checkpoint may bring them back"
            )
        return homes

    def _wait_for_all(self) -> None:
        if self._whole._saver is not None:
            self._whole._saver.wait()
        for trainer in self._all.trainers:
            if trainer._run is not None:
                trainer._run.finish()  # processes that wait for this one read it
        self._member.finish_with(self._members)

    # --- a step ---

    def _make_step(self) -> None:
        """Makes the next step, of the objective that it is of."""
        step, number = self._done, self._course[self._done]
        trainer, member = self._all.trainers[number], self._member
        key = f"step/{self._lives.place}/{step}"
        trainer.steps = self._course.counts(step)[number]
        if self._ahead is not None:
            self._ahead.note_step()
        if trainer._job is None:  # no device of the plan
            self._begun = step
            return self._take(trainer._metrics(Given(*json.loads(member.wait(key))), None))
        with self._watching(number):
            self._prepare(number)
            # A process that is lost while all agree on a length is lost before the step begins. A
            # batch that the script cannot read ends the run: it could not be read again.
            with elastic.of_script():
                batch: StepBatch = trainer._tensors(
                    self.journal.find(Kind.BATCH, (self._lives.newest, step))
                )
            if not trainer._program.groups:  # nobody would end what it is in
                member.check()
            self._begun = step
            metrics = trainer._step(batch)
        self._tempos[number].note_step(metrics.step_seconds * (1 - metrics.waiting))
        if self._second is not None:
            self._second.note_step()
        if self.spares and trainer._job.rank == 0:
            member.store.set(member.key(key), json.dumps(told_by(metrics)))
        self._take(metrics)

    @contextlib.contextmanager
    def _watching(self, number: int) -> Iterator[None]:
        """Around a step of an objective. The run of the first one ends what it is in when the epoch
        is over; for the others, and for what they give each other, it takes a watch."""
        if self._whole._state is None:
            yield
            return
        trainer, group = self._all.trainers[number], self._member.group
        assert group is not None

        def end_waits() -> None:
            trainer._run.abort("the epoch is over")
            group.abort()

        name = list(self._whole._trainers)[number]
        with self._member.watched(end_waits), trainer._together(f"step() of {name!r}"):
            yield

    def _prepare(self, number: int) -> None:
        """Gives an objective what it reads. Whoever begins a step of another objective than that of
        the last one knows that all have done that one, and have what this one reads: only then may
        a device let go of what others could still take from it."""
        state = self._whole._state
        if state is None:
            return
        name = list(self._whole._trainers)[number]
        state.bring(name)
        if state.last != name:
            exchange.largest(0.0)
        state.take(name)

    def _take(self, metrics: Metrics) -> None:
        """The next step is done."""
        del self._lives.last.seen[self._done :]
        self._lives.last.seen.append(told_by(metrics))
        self._metrics = metrics
        self._done += 1

    def _told(self, step: int, life: Life | None = None) -> Metrics:
        """Returns the metrics of a step that was made without this process; `life`: that of the
        script, if none is given."""
        life = life or self._lives.here
        number = life.course[step]
        trainer = self._all.trainers[number]
        before, trainer.steps = trainer.steps, life.course.counts(step)[number]
        try:
            return trainer._metrics(life.seen[step], None)
        finally:
            trainer.steps = before

    # --- a recovery ---

    def _is_over(self, error: Exception) -> bool:
        """Whether an error is a consequence of the end of the epoch, or becomes its cause: unless
        the run is over, or all have raised it together."""
        if isinstance(error, RunEndError) or hasattr(error, ends.SAID_ELSEWHERE):
            return False
        self._member.fail(str(error))
        return True

    def _recover(self, error: Exception | None) -> bool:
        """Returns when the next epoch stands: whether it goes on without this process."""
        while True:
            if error is not None:
                if self._member.group is not None:
                    self._member.group.abort()
                self._report()
            agreement = self._member.next_agreement()
            try:
                self._enter(agreement)
                return self._member.name in agreement.leaving
            except (OSError, RuntimeError) as again:
                if isinstance(again, RunEndError):
                    raise
                self._member.fail(str(again))
                error = again

    def _left(self) -> tuple[str, float | None, bool, bool]:
        """Returns how far the last step has come, as StepLeft says it."""
        run = self._trainer_of(self._begun)._run
        if run is None:
            return ("done" if self._done > self._begun else "before"), None, False, False
        reached, committed, commits, spreads = run.left()
        is_within = reached in ("before", "at commit")
        if is_within and self._trainer_of(self._begun - 1)._run is not run:
            committed = None  # it is that of an older step
        return reached, committed, commits, spreads

    def _trainer_of(self, step: int) -> Trainer:
        return self._all.trainers[self._course[step]] if step >= 0 else self._first

    def _report(self) -> None:
        reached, committed, commits, spreads = self._left()
        self._member.report(
            {
                "device": self._member.name,
                "step": self._begun,
                "reached": reached,
                "committed": committed,
                "commits": commits,
                "spreads": spreads,
                "back": self._back,
                "loads": self._lives.newest,
                "kept": [] if self._second is None else self._second.described(),
                "state": self._state,
                "at": time.time(),
            }
        )

    def _enter(self, agreement: Agreement) -> None:
        """Begins an epoch with what all of its members have."""
        times = Times()
        member, epoch = self._member, agreement.epoch
        if self._first._run is not None:
            self._seeds = [int(trainer._run.seed) for trainer in self._all.trainers]
        if agreement.states[member.name] >= 0:
            self._catch_up(agreement)
        times.note("catch_up")
        plans = self._all.plan(agreement, self._state)
        times.note("plan")
        used = plans[0].devices
        for trainer in self._all.trainers:
            trainer._evaluation.move(trainer.plan, trainer._job)
        member.leave()
        members = used + [name for name in agreement.members if name not in used]
        group = member.connect(members)
        with member.watched(group.abort):
            owners = self._agree_on_owners(agreement, members)
            source = self._source(agreement, owners)
            times.note("program")
            runs = self._all.make_runs(epoch, members)
            times.note("build")
            step, seeds = source.done - 1, self._seeds
            if source.saved:
                step, seeds, moved = self._take_saved(source, runs, members)
                owners = {}
            else:
                moved = self._all.fetch(source, runs, members)
            self.journal.require(range(step + 1, self.asked), source.what)
            self._all.load_constants(runs)
            seeds = self._share_history(agreement, step, seeds)  # when all have been restored
        if len(members) > len(used) and member.name in used:
            exchange.use(group.first(len(used)))  # the spares take no part in the rest
        times.note("restore")
        self._members = [name for name in members if name not in agreement.leaving]
        self.spares = len(self._members) - len(used)
        self._hand_over(epoch, runs, members, seeds)
        if self._whole._state is not None:
            self._whole._state.enter(self._all.peers(used), owners)
        if step < agreement.step:
            self._go_back(step, epoch)
        self._state, self._begun = epoch, step
        self.acts.begin(self._members, self.asked + 1)
        self._all.forget({epoch, *(each.epoch for each in self._versions())})
        self._plan_ahead()
        for tempo in self._tempos:
            tempo.begin(used, self._all.factors(epoch))
        told = {
            "at": time.time(),
            "step": step,
            "source": source.what,
            "seconds": times.seconds,
            "bytes": moved,
        }
        member.store.set(member.key(f"built/{member.name}"), json.dumps(told))

    def _versions(self) -> list[Version]:
        return [] if self._second is None else self._second.versions

    def _plan_ahead(self) -> None:
        """Lets the next plans be found for who would be left; of devices that are slow they are
        found when they are needed."""
        self._end_ahead()
        member, epoch = self._member, self._state
        plans = self._all.plans(epoch)
        if member.name == plans[0].devices[0] and not self._all.factors(epoch):
            self._ahead = PlansAhead(
                self._all.trainers,
                plans,
                self._members,
                lambda key, text: member.store.set(member.key(key, epoch), text),
            )

    def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _agree_on_owners(self, agreement: Agreement, members: Sequence[str]) -> Owners:
        """Returns the objective that each shared value is taken from, as the process says that has
        come farthest: all others have had these values, too."""
        state = self._whole._state
        if state is None:
            return {}
        told = exchange.values(state.told())
        known = [
            each for name, each in zip(members, told, strict=True) if agreement.states[name] >= 0
        ]
        return state.heard(max(known, key=lambda each: (each[0], len(each[1]))))

    def _source(self, agreement: Agreement, owners: Owners) -> Source:
        found = Sources(self._member, self._all.number, self._all.programs, self._second)
        names, trainers = list(self._whole._trainers), self._all.trainers
        others = [[value for value, owner in owners.items() if owner != name] for name in names]
        runs = [trainer._run for trainer in trainers]
        return found.newest(agreement, self._all.programs(agreement.epoch), runs, others)

    def _take_saved(
        self, source: Source, runs: Sequence[Any], members: Sequence[str]
    ) -> tuple[int, list[int], Moved]:
        """Gives new runs what they have of a checkpoint, as all members do; returns the last step,
        the seeds, and the bytes by source."""
        found, seeds, moved = self._all.take_saved(source, runs, members)
        self._safe_step = found.step
        return min(found.step, source.done) - 1, seeds, moved

    def _hand_over(
        self, epoch: int, runs: Sequence[Any], members: Sequence[str], seeds: list[int]
    ) -> None:
        self._seeds = seeds
        for run, seed in zip(runs, seeds, strict=True):
            if run is not None:
                run.seed = seed
        self._all.hand_over(epoch, runs, members)

    def _go_back(self, step: int, epoch: int) -> None:
        """The state is that after an older step."""
        self._done, self._back = step + 1, epoch
        del self._lives.last.seen[step + 1 :]

    def _catch_up(self, agreement: Agreement) -> None:
        trainer = self._trainer_of(self._begun)
        if trainer._run is not None:
            left = _core.StepLeft(self._member.name, self._begun, *trainer._run.left())
            finish, undo = left.catch_up(agreement.step)
            if undo:
                trainer._run.undo(undo)
            if finish:
                trainer.steps = self._course.counts(self._begun)[self._course[self._begun]]
                result = trainer._run.finish_step(agreement.committed)
                self._done = self._begun
                given = Given.of(result, trainer._rows)
                self._take(trainer._metrics(given, result))
        self._begun = agreement.step
        self._done = agreement.step + 1

    def _share_history(self, agreement: Agreement, step: int, seeds: list[int]) -> list[int]:
        """Gives all what others have made, and who has no run the seeds, which are returned."""
        saver = self._whole._saver
        if saver is not None and (written := saver.beside()) is not None:
            self.journal.set_writing(written[1], written)
        is_new = agreement.states[self._member.name] < 0
        told = self.acts.share(is_new, step + 1, self.asked, seeds)
        if told is None:
            return seeds
        self._done = step + 1
        if step >= 0:  # who had no device may not know the last step
            self._metrics = self._told(step, self._lives.last)
        return [int(seed) for seed in told] if is_new else seeds
