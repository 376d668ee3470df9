"""The transition of one process of an elastic run to the next generation after a loss. The core has
the rules (`medley/elastic`): the last complete step, and the moves of bytes."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Sequence

from medley import _core
from medley._core import Agreement
from medley.run import exchange, generations, job
from medley.run.elastic import RunEndError
from medley.run.sources import Source, Sources
from medley.run.steps import Steps
from medley.shared_state import Owners

_PARTS = ("catch_up", "plan", "program", "build", "restore")  # parts of a recovery, in order


class Recovery:
    """The recovery of one state. Its engines have no runs yet if this process replaces a lost
    one."""

    def __init__(self, steps: Steps) -> None:
        self._steps, self._all, self._whole = steps, steps.objectives, steps.objectives.whole
        self._member, self._progress = steps.member, steps.progress
        self._journal, self._lives = steps.journal, steps.journal.lives
        self._seeds = [engine.seed for engine in self._all.engines]
        self._begun_at = -1  # the last step before the generation

    def arrive(self) -> None:
        """Replaces a lost process and receives its part of the state."""
        self._member.arrive(self._all.gain(job.offered_devices()))
        self.recover(None)

    def begin(self) -> None:
        """Starts the first generation, whose runs exist."""
        member, progress = self._member, self._progress
        self._all.begin(member.generation)
        member.store.set(member.key(f"built/{member.name}"), "yes")
        progress.generation, progress.members = member.generation, member.members
        self._steps.begin_generation({})

    def begin_life(self, counts: list[int], path: str) -> None:
        """Begins a life after a load, with these steps of each objective. Other processes may have
        begun it before this one joined."""
        self._progress.asked = steps = sum(counts)
        if not self._lives.begin(counts):
            return
        has_saved = path != "" and steps > 0  # otherwise only parameters were loaded
        self._steps.forget(steps, has_saved)
        if self._member.name == self._progress.members[0]:
            generations.begin_checkpoints(self._member.store, path if has_saved else "", steps)

    def recover(self, error: Exception | None) -> bool:
        """Waits for the next generation. Returns whether it continues without this process."""
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
        """Returns the progress of the last step, as in StepLeft."""
        begun = self._progress.begun
        run = self._steps.engine_of(begun).run
        if run is None:
            return ("done" if self._progress.done > begun else "before"), None, False, False
        reached, committed, commits, spreads = run.left()
        is_within = reached in ("before", "at commit")
        if is_within and self._steps.engine_of(begun - 1).run is not run:
            committed = None  # it is of an older step
        return reached, committed, commits, spreads

    def _report(self) -> None:
        progress = self._progress
        left = _core.StepLeft(
            self._member.name, progress.begun, *self._left(), progress.back, self._lives.newest
        )
        kept = [(each.generation, each.done) for each in self._steps.versions]
        self._member.report(left, progress.generation, kept)

    def _enter(self, agreement: Agreement) -> None:
        """Begins a generation with the state of all its members."""
        marks = [time.monotonic()]  # start of each of the _PARTS
        member, progress, generation = self._member, self._progress, agreement.generation
        if self._all.first.run is not None:
            self._seeds = [int(engine.run.seed) for engine in self._all.engines]
        if agreement.states[member.name] >= 0:
            self._catch_up(agreement)
        marks.append(time.monotonic())
        plans = self._all.plan(agreement, progress.generation, agreement.step > self._begun_at)
        marks.append(time.monotonic())
        used = plans[0].devices
        for engine in self._all.engines:
            engine.evaluation.move()
        member.leave()
        members = used + [name for name in agreement.members if name not in used]
        group = member.connect(members)
        with member.watched(group.abort):
            owners = self._agree_on_owners(agreement, members)
            source = self._source(agreement, owners)
            marks.append(time.monotonic())
            runs = self._all.make_runs(generation, members)
            marks.append(time.monotonic())
            step, seeds = source.done - 1, self._seeds
            if source.saved:
                found, seeds, moved = self._all.take_saved(source, runs, members)
                self._steps.safe_step = found.step
                step, owners = min(found.step, source.done) - 1, {}
            else:
                moved = self._all.fetch(source, runs, members)
            self._journal.require(range(step + 1, progress.asked), source.what)
            self._all.load_constants(runs)
            seeds = self._share_history(agreement, step, seeds)  # when all have been restored
        if len(members) > len(used) and member.name in used:
            exchange.use(group.first(len(used)))  # spares skip the rest
        marks.append(time.monotonic())
        progress.members = [name for name in members if name not in agreement.leaving]
        progress.spares = len(progress.members) - len(used)
        self._seeds = seeds
        self._all.hand_over(generation, runs, seeds, members)
        if self._whole.shared is not None:
            self._whole.shared.enter(self._all.peers(used), owners)
        if step < agreement.step:
            self._steps.go_back(step, generation)
        progress.generation, progress.begun, self._begun_at = generation, step, step
        self._all.forget({generation, *(each.generation for each in self._steps.versions)})
        self._steps.acts.begin_generation()
        self._steps.begin_generation(self._all.factors(generation))
        entry = {"at": time.time(), "step": step, "source": source.what, "bytes": moved}
        seconds = [after - before for before, after in itertools.pairwise(marks)]
        text = json.dumps({**entry, "seconds": dict(zip(_PARTS, seconds, strict=True))})
        member.store.set(member.key(f"built/{member.name}"), text)

    def _agree_on_owners(self, agreement: Agreement, members: Sequence[str]) -> Owners:
        """Returns the objective that provides each shared value, as in the most advanced process:
        all others have had these values too."""
        if (shared := self._whole.shared) is None:
            return {}
        owners = exchange.values(shared.export_owners())
        known = [
            each for name, each in zip(members, owners, strict=True) if agreement.states[name] >= 0
        ]
        return shared.load_owners(max(known, key=lambda each: (each[0], len(each[1]))))

    def _source(self, agreement: Agreement, owners: Owners) -> Source:
        found = Sources(self._all, self._member, self._steps.second)
        engines = self._all.engines
        others = [[v for v, owner in owners.items() if owner != each.name] for each in engines]
        runs = [engine.run for engine in engines]
        return found.newest(agreement, self._all.programs(agreement.generation), runs, others)

    def _catch_up(self, agreement: Agreement) -> None:
        progress = self._progress
        engine = self._steps.engine_of(progress.begun)
        if engine.run is not None:
            left = _core.StepLeft(self._member.name, progress.begun, *engine.run.left())
            finish, undo = left.catch_up(agreement.step)
            if undo:
                engine.run.undo(undo)
            if finish:
                self._steps.set_steps(progress.begun, self._lives.last)
                progress.done = progress.begun
                self._steps.take(engine.finish_step(agreement.committed))
        progress.begun = agreement.step
        progress.done = agreement.step + 1

    def _share_history(self, agreement: Agreement, step: int, seeds: list[int]) -> list[int]:
        """Sends the journal to all, and the seeds, which are returned, to processes without a
        run."""
        saver = self._whole.saver
        if saver is not None and (written := saver.beside()) is not None:
            self._journal.set_writing(written[1], written)
        is_new = agreement.states[self._member.name] < 0
        shared = self._steps.acts.share(is_new, step + 1, seeds)
        if shared is None:
            return seeds
        self._progress.done = step + 1
        if step >= 0:  # a process without a device may not know the last step
            self._progress.metrics = self._steps.metrics_of(step, self._lives.last)
        return [int(seed) for seed in shared] if is_new else seeds
