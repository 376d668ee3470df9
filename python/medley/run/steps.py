"""The steps of an elastic run in one process: how those are made that the script asks for, and what
is made beside them, under the plan of now."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator

from medley.checkpoint import Saving
from medley.cursor import Cursor
from medley.engine import Engine
from medley.metrics import Given, Metrics, told_by
from medley.run import elastic, exchange, job
from medley.run.acts import Acts
from medley.run.ahead import PlansAhead
from medley.run.elastic import Member
from medley.run.journal import Journal, Kind
from medley.run.lives import Life, Progress
from medley.run.notice import Notice
from medley.run.objectives import Objectives
from medley.run.second_homes import Copies, Version
from medley.run.tempo import Factors, Tempo


class Steps:
    """Of a whole, whose engines may have no runs yet."""

    def __init__(self, objectives: Objectives, member: Member) -> None:
        number = len(objectives.engines)
        self.objectives, self.member = objectives, member
        self.journal, self.progress = Journal(number), Progress()
        self.acts = Acts(member, self.journal, self.progress)
        self.notice = Notice()
        every = job.second_homes_every() if number == 1 else None
        self.second = None if every is None else Copies(every, objectives.homes)
        self._whole, self._engines = objectives.whole, objectives.engines
        self._lives = self.journal.lives
        self.safe_step = sys.maxsize  # steps done in the checkpoint that the run can go back to
        self._tempos = [
            Tempo(member, job.settle_seconds(), self._gain_with, f"{each or ''}")
            for each in range(number)
        ]
        self._ahead: PlansAhead | None = None

    @property
    def versions(self) -> list[Version]:
        """The copies that this process has."""
        return [] if self.second is None else self.second.versions

    def engine_of(self, step: int) -> Engine:
        """Returns the engine of a step of this life; the first one before any."""
        return self._engines[self._lives.last.objective(step) if step >= 0 else 0]

    def set_steps(self, steps: int, life: Life | None = None) -> None:
        """The engines are behind so many steps of all; `life`: that of the script if none is
        given."""
        self._whole.set_steps((life or self._lives.here).counts(steps))

    def told(self, step: int, life: Life | None = None) -> Metrics:
        """Returns the metrics of a step that was made without this process."""
        life = life or self._lives.here
        engine = self._engines[life.objective(step)]
        with self._behind(step, life):
            return engine.metrics(life.seen[step])

    @contextlib.contextmanager
    def _behind(self, steps: int, life: Life) -> Iterator[None]:
        """Inside the block the engines are behind so many steps."""
        before = [engine.steps for engine in self._engines]
        self.set_steps(steps, life)
        try:
            yield
        finally:
            self._whole.set_steps(before)

    def oldest_needed(self, step: int) -> int:
        """Returns the first step that may have to be made again when `step` is the next one."""
        saver = self._whole.saver
        safe = None if saver is None else saver.safe_step
        if safe is not None:
            self.safe_step = safe
        return min([step - 1, self.safe_step, *(each.done for each in self.versions)])

    # --- epochs ---

    def forget(self, steps: int, has_saved: bool) -> None:
        """A life begins after so many steps: nothing before it is made again. `has_saved`: a
        checkpoint has its state."""
        self.progress.done, self.progress.begun = steps, steps - 1
        self.safe_step = steps if has_saved else sys.maxsize
        for kind in (Kind.BATCH, Kind.READ, Kind.WRITING):
            self.journal.forget(kind)
        for each in (self.second, self._whole.saver):
            if each is not None:
                each.forget()

    def go_back(self, step: int, epoch: int) -> None:
        """The state is that after an older step."""
        self.progress.done, self.progress.back = step + 1, epoch
        del self._lives.last.seen[step + 1 :]

    def begin_epoch(self, factors: Factors) -> None:
        """The runs stand. Lets the next plans be found for who would be left; of devices that are
        slow they are found when they are needed."""
        self.end_ahead()
        member, epoch = self.member, self.progress.epoch
        plans = self.objectives.plans(epoch)
        for tempo in self._tempos:
            tempo.begin(plans[0].devices, factors)
        if member.name == plans[0].devices[0] and not factors:
            self._ahead = PlansAhead(
                self._engines,
                plans,
                self.progress.members,
                lambda key, text: member.store.set(member.key(key, epoch), text),
            )

    def end_ahead(self) -> None:
        """No more plans are found."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _gain_with(self, planned: Factors, factors: Factors) -> float:
        return self.objectives.gain_with(self.progress.members, planned, factors)

    # --- a step ---

    def make_missing(self, what: str) -> None:
        """Makes the steps that the script has asked for. `what` it comes to: "step", "read", or
        what others are told of."""
        progress = self.progress
        self._save_again()
        while progress.done < progress.asked:
            self.acts.repeat(progress.done, False)
            self.notice.check(self.member)
            self._make_copies()
            self._make_step()
            self._save_again()
        self.set_steps(progress.asked)
        if what != "step":
            self.acts.repeat(progress.done, what == "read")

    def _make_step(self) -> None:
        """Makes the next step, of the objective that it is of."""
        progress, lives, member = self.progress, self._lives, self.member
        step = progress.done
        engine, number = self.engine_of(step), lives.last.objective(step)
        key = f"step/{lives.place}/{step}"
        engine.steps = lives.last.counts(step)[number]
        if self._ahead is not None:
            self._ahead.note_step()
        if engine.job is None:  # no device of the plan
            progress.begun = step
            return self.take(engine.metrics(Given(*json.loads(member.wait(key)))))
        with self._watching(engine):
            self._prepare(engine)
            # A process that is lost while all agree on a length is lost before the step begins. A
            # batch that the script cannot read ends the run: it could not be read again.
            with elastic.of_script():
                batch = engine.read(self.journal.find(Kind.BATCH, (lives.newest, step)))
            if not engine.program.groups:  # nobody would end what it is in
                member.check()
            progress.begun = step
            metrics = engine.step(batch)
        self._tempos[number].note_step(metrics.step_seconds * (1 - metrics.waiting))
        if self.second is not None:
            self.second.note_step()
        if progress.spares and engine.job.rank == 0:
            member.store.set(member.key(key), json.dumps(told_by(metrics)))
        self.take(metrics)

    @contextlib.contextmanager
    def _watching(self, engine: Engine) -> Iterator[None]:
        """Around a step of an objective. The run of the first one ends what it is in when the epoch
        is over; for the others, and for what they give each other, it takes a watch."""
        if self._whole.shared is None:
            yield
            return
        group = self.member.group
        assert group is not None

        def end_waits() -> None:
            engine.run.abort("the epoch is over")
            group.abort()

        with self.member.watched(end_waits), engine.together(f"step() of {engine.name!r}"):
            yield

    def _prepare(self, engine: Engine) -> None:
        """Gives an objective what it reads. Whoever begins a step of another objective than that of
        the last one knows that all have done that one, and have what this one reads: only then may
        a device let go of what others could still take from it."""
        if (shared := self._whole.shared) is None:
            return
        shared.bring(engine.name)
        if shared.last != engine.name:
            exchange.largest(0.0)
        shared.take(engine.name)

    def take(self, metrics: Metrics) -> None:
        """The next step is done."""
        progress, seen = self.progress, self._lives.last.seen
        del seen[progress.done :]
        seen.append(told_by(metrics))
        progress.metrics = metrics
        progress.done += 1

    def _save_again(self) -> None:
        """Writes the checkpoint again that was being written when a process was lost."""
        done = self.progress.done
        if (written := self.journal.take_writing(done)) is None:
            return
        folder, _, saving, data = written
        with self._behind(done, self._lives.here):  # which the script may not have come to
            place = None if data is None else Cursor(*data)
            self._whole.save(folder, Saving(*saving), False, place)

    def _make_copies(self) -> None:
        """Gives others a copy of what one failure would take, if it is time."""
        engine, second, progress = self.objectives.first, self.second, self.progress
        if second is None or engine.job is None:
            return
        if not second.is_due(progress.epoch, progress.done):
            return
        peers = self.objectives.peers(engine.plan.devices)
        with engine.together("second homes"):
            costs = second.make(progress.done, engine.run, peers)
        if engine.job.rank == 0:
            self.member.store.set(self.member.key("copies"), json.dumps(costs))

    def wait_for_all(self) -> None:
        """Waits until all members have nothing more to do."""
        if self._whole.saver is not None:
            self._whole.saver.wait()
        for engine in self._engines:
            if engine.run is not None:
                engine.run.finish()  # processes that wait for this one read it
        self.member.finish_with(self.progress.members)
