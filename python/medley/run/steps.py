"""The steps of an elastic run in one process: the script's steps, and the work between them, under
the current plan."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections.abc import Iterator

from medley import extras
from medley.checkpoint import Saving
from medley.cursor import Cursor
from medley.engine import Engine
from medley.metrics import Given, Metrics, sent_part
from medley.run import elastic, exchange, job
from medley.run.acts import Acts
from medley.run.ahead import PlansAhead
from medley.run.elastic import Member
from medley.run.journal import Journal, Kind
from medley.run.lives import Life, Progress
from medley.run.notice import Notice
from medley.run.objectives import Factors, Objectives, wanted_factors
from medley.run.replicas import Copies, Version


class Steps:
    """The steps of one state, whose engines may have no runs yet."""

    def __init__(self, objectives: Objectives, member: Member) -> None:
        number = len(objectives.engines)
        self.objectives, self.member = objectives, member
        self.journal, self.progress = Journal(number), Progress()
        self.acts = Acts(member, self.journal, self.progress)
        self.notice = Notice()
        every = job.replicate_every() if number == 1 else None
        self.second = None if every is None else Copies(every, objectives.replicas)
        self._whole, self._engines = objectives.whole, objectives.engines
        self._lives = self.journal.lives
        self.safe_step = sys.maxsize  # steps in the checkpoint to which the run can return
        want = functools.partial(wanted_factors, member)
        self._tempos = [
            extras.tempo(member, job.settle_seconds(), self._gain_with, want, f"{each or ''}")
            for each in range(number)
        ]
        self._ahead: PlansAhead | None = None

    @property
    def versions(self) -> list[Version]:
        """The copies of this process."""
        return [] if self.second is None else self.second.versions

    def engine_of(self, step: int) -> Engine:
        """Returns the engine of a step of this life, or the first one before any step."""
        return self._engines[self._lives.last.objective(step) if step >= 0 else 0]

    def set_steps(self, steps: int, life: Life | None = None) -> None:
        """Sets the engines to the state after `steps` steps. `life`: by default that of the
        script."""
        self._whole.set_steps((life or self._lives.here).counts(steps))

    def metrics_of(self, step: int, life: Life | None = None) -> Metrics:
        """Returns the metrics of a step that ran without this process."""
        life = life or self._lives.here
        engine = self._engines[life.objective(step)]
        with self._behind(step, life):
            return engine.metrics(life.seen[step])

    @contextlib.contextmanager
    def _behind(self, steps: int, life: Life) -> Iterator[None]:
        """Sets the engines to the state after `steps` steps inside the block."""
        before = [engine.steps for engine in self._engines]
        self.set_steps(steps, life)
        try:
            yield
        finally:
            self._whole.set_steps(before)

    def oldest_needed(self, step: int) -> int:
        """Returns the first step that may be repeated if `step` is the next one."""
        saver = self._whole.saver
        safe = None if saver is None else saver.safe_step
        if safe is not None:
            self.safe_step = safe
        return min([step - 1, self.safe_step, *(each.done for each in self.versions)])

    # --- generations ---

    def forget(self, steps: int, has_saved: bool) -> None:
        """Begins a life after `steps` steps: no earlier step is repeated. `has_saved`: a checkpoint
        has its state."""
        self.progress.done, self.progress.begun = steps, steps - 1
        self.safe_step = steps if has_saved else sys.maxsize
        for kind in (Kind.BATCH, Kind.READ, Kind.WRITING):
            self.journal.forget(kind)
        for each in (self.second, self._whole.saver):
            if each is not None:
                each.forget()

    def go_back(self, step: int, generation: int) -> None:
        """Returns to the state after an older step."""
        self.progress.done, self.progress.back = step + 1, generation
        del self._lives.last.seen[step + 1 :]

    def begin_generation(self, factors: Factors) -> None:
        """Starts a generation whose runs exist, and the planning for its possible losses. With slow
        devices plans are made when needed."""
        self.end_ahead()
        member, generation = self.member, self.progress.generation
        plans = self.objectives.plans(generation)
        for tempo in filter(None, self._tempos):
            tempo.begin(plans[0].devices, factors)
        if member.name == plans[0].devices[0] and not factors:
            self._ahead = PlansAhead(
                self._engines,
                plans,
                self.progress.members,
                lambda key, text: member.store.set(member.key(key, generation), text),
            )

    def end_ahead(self) -> None:
        """Ends the planning for losses."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _gain_with(self, planned: Factors, factors: Factors) -> float:
        return self.objectives.gain_with(self.progress.members, planned, factors)

    # --- a step ---

    def make_missing(self, what: str) -> None:
        """Runs the steps that the script has requested. `what`: its next call, "step", "read", or a
        published kind."""
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
        """Runs the next step, of its objective."""
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
            # An unreadable batch ends the run. A process lost meanwhile is lost before the step.
            with elastic.of_script():
                batch = engine.read(self.journal.find(Kind.BATCH, (lives.newest, step)))
            if not engine.program.groups:  # otherwise no watchdog would abort it
                member.check()
            progress.begun = step
            metrics = engine.step(batch)
        if (tempo := self._tempos[number]) is not None:
            tempo.note_step(metrics.step_seconds * (1 - metrics.waiting))
        if self.second is not None:
            self.second.note_step()
        if progress.spares and engine.job.rank == 0:
            member.store.set(member.key(key), json.dumps(sent_part(metrics)))
        self.take(metrics)

    @contextlib.contextmanager
    def _watching(self, engine: Engine) -> Iterator[None]:
        """Wraps a step of an objective. The run of the first objective aborts it when the
        generation ends; for the others and their exchanges a watch does."""
        if self._whole.shared is None:
            yield
            return
        group = self.member.group
        assert group is not None

        def end_waits() -> None:
            engine.run.abort("the generation is over")
            group.abort()

        with self.member.watched(end_waits), engine.together(f"step() of {engine.name!r}"):
            yield

    def _prepare(self, engine: Engine) -> None:
        """Gives an objective the values that it reads. A process that begins a step of another
        objective knows that all have completed the last one, and have the values for this one. Only
        then may a device drop values that others could still need."""
        if (shared := self._whole.shared) is None:
            return
        shared.bring(engine.name)
        if shared.last != engine.name:
            exchange.largest(0.0)
        shared.take(engine.name)

    def take(self, metrics: Metrics) -> None:
        """Records the next step as done."""
        progress, seen = self.progress, self._lives.last.seen
        del seen[progress.done :]
        seen.append(sent_part(metrics))
        progress.metrics = metrics
        progress.done += 1

    def _save_again(self) -> None:
        """Repeats the checkpoint that was interrupted by a loss."""
        done = self.progress.done
        if (written := self.journal.find_writing(done)) is None:
            return
        folder, _, saving, data = written
        with self._behind(done, self._lives.here):  # the script may not have reached them
            place = None if data is None else Cursor(*data)
            self._whole.save(folder, Saving(*saving), False, place)
        self.journal.forget(Kind.WRITING)  # a loss before this repeats it again

    def _make_copies(self) -> None:
        """Gives other processes replicas of unreplicated state if they are due."""
        engine, second, progress = self.objectives.first, self.second, self.progress
        if second is None or engine.job is None:
            return
        if not second.is_due(progress.generation, progress.done):
            return
        peers = self.objectives.peers(engine.plan.devices)
        with engine.together("replicas"):
            costs = second.make(progress.done, engine.run, peers)
        if engine.job.rank == 0:
            self.member.store.set(self.member.key("copies"), json.dumps(costs))

    def wait_for_all(self) -> None:
        """Waits until all members have finished."""
        if self._whole.saver is not None:
            self._whole.saver.wait()
        for engine in self._engines:
            if engine.run is not None:
                engine.run.finish()  # read by the processes that wait for this one
        self.member.finish_with(self.progress.members)
