"""How training goes on in this process when others are lost: its part of every recovery.

What a trainer does is done again, or finished, under the plan of the next epoch, as if nothing had
happened. The rules are the core's (`medley/elastic`): which step all have done, and which bytes go
where.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from medley import _core, _runtime, checkpoint
from medley.data.inputs import StepBatch
from medley.plan import Plan
from medley.run import connections, devices, elastic, ends, epochs, exchange, job, unfinished
from medley.run.ahead import PlansAhead, key_of
from medley.run.batches import MOST_BYTES, Batches
from medley.run.elastic import RunEndError, ScriptError
from medley.run.epochs import Agreement
from medley.run.evaluations import Evaluations
from medley.run.fits import Fits
from medley.run.notice import Notice
from medley.run.once import Once, share
from medley.run.reads import Reads
from medley.run.replanning import replan, saved
from medley.run.second_homes import SecondHomes
from medley.run.sources import Source, Sources
from medley.run.tempo import Factors, Tempo, wanted
from medley.run.times import Times

if TYPE_CHECKING:
    from medley.metrics import Metrics
    from medley.trainer import Trainer

Made = TypeVar("Made")
MOVE_SECONDS = 600.0


_alive: list[Recovery] = []  # to the end of the process, which others may need


class Recovery:
    """Of one trainer, which has no run yet if this process takes the place of a lost one."""

    def __init__(self, trainer: Trainer, this: job.Job) -> None:
        if _alive:
            raise ValueError("elastic: found a second trainer in a process, expected one")
        _alive.append(self)
        self._trainer = trainer
        self._job = this
        self._member = elastic.member(this)
        self._programs: dict[int, _core.Program] = {}  # by epoch
        self._plans: dict[int, Plan] = {}
        self._state = -1  # the epoch whose plan says what this process has; -1: nothing
        self._begun = -1  # the last step that the run has begun, or has been brought to
        self._back = 0  # the epoch in which this process last went back to an older state
        self._batches = Batches()
        self._notice = Notice()
        self.evaluations = Evaluations(
            trainer, self._member, self._notice, self.call, self._is_behind
        )
        self.saves = Once(trainer, self._member, "saves", self.call, self._is_behind)
        self.loads = Once(trainer, self._member, "loads", self.call, self._is_behind)
        every = job.second_homes_every()
        self._second = None if every is None else SecondHomes(every, self._find_homes)
        self._asked = 0  # steps that the script has made, or makes now: its trainer's `steps`
        self._done = 0  # steps that the state is of
        self._seen: list[tuple[float, float]] = []  # loss and norm of every step
        self._metrics: Metrics | None = None  # of the last step
        self._safe_step = sys.maxsize  # steps done in the checkpoint that the run can go back to
        self._tempo = Tempo(self._member, job.settle_seconds(), self._gain_with)
        self._seed = int(trainer._options["seed"])
        self._spares = 0
        self._members: list[str] = []
        self._ahead: PlansAhead | None = None
        self._reads = Reads(self._member)
        self.fits = Fits()
        self._written = unfinished.NOTHING  # the checkpoint to be written again

    # --- what a trainer does ---

    def begin(self, plan: Plan, program: _core.Program) -> None:
        """The run of the first epoch stands."""
        epoch = self._member.epoch
        self._plans[epoch], self._programs[epoch] = plan, program
        self._state, self._members = epoch, plan.devices
        self._tempo.begin(plan.devices, {})
        if self._member.name == plan.devices[0]:
            self._member.store.set(self._member.key("plan"), plan.text)
        self._plan_ahead(plan)

    def begin_at(self, steps: int, path: str, is_told: bool) -> None:
        """Training goes on from a checkpoint; after no steps it is one of parameters alone. Maybe
        others have gone on from it, and this process `is_told`."""
        if is_told and job.joins_later() and steps <= len(self._seen):
            self._asked = steps
            return
        self._asked = self._done = steps
        self._begun = steps - 1
        if steps > 0:
            self._safe_step = steps
            if self._member.name == self._members[0]:
                epochs.note_checkpoint(self._member.store, path, steps)
        self._seen = [(math.nan, math.nan)] * steps

    def join(self) -> None:
        """Takes the place of a lost process: returns when this one has its part of the state."""
        self._member.arrive(self._gain(job.offered_devices()))
        self._recover(None)

    def _gain(self, devices: list[str]) -> float:
        """Returns which part of a step would be saved with these devices, as it is predicted."""
        text = self._member.store.get(self._member.key("plan"))
        if not devices or text is None:
            return 0.0
        now = self._plan_of(text)
        others = [name for name in now.devices if name not in devices]
        try:
            before = replan(self._trainer, now, others)
            after = replan(self._trainer, now, others + devices)
        except ValueError:  # there is none
            return 0.0
        return saved(self._trainer, before, after)

    def _gain_with(self, planned: Factors, factors: Factors) -> float:
        """Returns which part of a step would be saved by a plan that counts with how long devices
        take now."""
        trainer, now = self._trainer, self._trainer.plan
        try:
            after = replan(trainer, now, self._members, planned, factors)
        except ValueError:  # there is none
            return 0.0
        return saved(trainer, now, after, factors)

    def catch_up(self, most: int | None = None, before: int = 0) -> Metrics | None:
        """Leaves out the steps that were made before this process has come, `most` or all but so
        many; returns what the last one gave, if that is known."""
        steps = len(self._seen) - before if most is None else min(most, len(self._seen))
        if steps <= self._asked:
            return None
        self._asked = self._trainer.steps = steps
        last = self._told(self._asked - 1)
        return last if math.isfinite(last.loss) else None

    def step(self, batch: Any) -> Metrics:
        """Makes a step, however often that takes. The steps that were made before this process has
        come are not made again: their metrics are what they were."""
        step = self._asked
        self._asked += 1
        self._batches.keep(step, batch, self._oldest_needed(step))
        if step < len(self._seen):
            self._trainer.steps = self._asked
            return self._told(step)
        self.call(lambda: None, "step")
        assert self._metrics is not None
        return self._metrics

    def together(self, make: Callable[[], Made]) -> Made:
        """Does what all processes have to do together, as it is now."""
        if self._is_behind():
            raise ValueError(
                f"found a script that is after step {self._asked}, and a run that has done "
                f"{self._done}: what others were given then is gone; expected a script that begins "
                "at Trainer.steps, behind Trainer.catch_up()"
            )
        made = self.call(make, "read")
        self._reads.note(self._asked, make, self._oldest_needed(self._asked))
        return made

    def _is_behind(self) -> bool:
        """Whether the script makes again what was made before this process has come."""
        return self._asked < len(self._seen)

    def call(self, make: Callable[[], Made], what: str = "") -> Made:
        """Does what all processes have to do together, after the steps that are missing; again
        after each recovery. `what`: "step", "read" or what others are told of."""
        while True:
            try:
                self._written = unfinished.save_again(self._trainer, self._written, self._done)
                while self._done < self._asked:
                    self._reads.repeat(self._done, False)
                    self._notice.check(self._member)
                    self._make_copies()
                    # Who is lost while all agree on a length is lost before the step has begun.
                    batch = self._read(self._batches[self._done])
                    self._begun = self._trainer.steps = self._done
                    if self._ahead is not None:
                        self._ahead.note_step()
                    self._take(self._make_step(batch))
                    self._written = unfinished.save_again(self._trainer, self._written, self._done)
                self._trainer.steps = self._asked
                if what != "step":
                    self._reads.repeat(self._done, what == "read")
                return make()
            except ScriptError as failed:
                raise failed.error from None
            except (OSError, RuntimeError) as error:
                if not self._is_over(error):
                    raise
                if self._recover(error):
                    self._notice.leave()

    def finish(self) -> None:
        """Waits until all have finished, so that nobody goes with what others may need."""
        self._end_ahead()
        if self._notice.has_left:
            return
        with contextlib.suppress(OSError):  # it has ended in another way
            self.call(self._wait_for_all)

    def _oldest_needed(self, step: int) -> int:
        """The first step that may have to be made again when `step` is the next one."""
        saver = self._trainer._saver
        safe = None if saver is None else saver.safe_step
        if safe is not None:
            self._safe_step = safe
        versions = [] if self._second is None else self._second.versions
        return min([step - 1, self._safe_step, *(version.done for version in versions)])

    def _make_copies(self) -> None:
        """Gives others a copy of what one failure would take, if it is time."""
        trainer, second = self._trainer, self._second
        if second is None or trainer._job is None or not second.is_due(self._state, self._done):
            return
        numbers = [self._number(name) for name in trainer.plan.devices]
        with trainer._together("second homes"):
            costs = second.make(self._done, trainer._run, self._peers(numbers))
        if trainer._job.rank == 0:
            self._member.store.set(self._member.key("copies"), json.dumps(costs))

    def _find_homes(self, epoch: int) -> _core.SecondHomes:
        homes = _core.SecondHomes(self._program(epoch), self._trainer._machines)
        if homes.without and self._member.name == self._plans[epoch].devices[0]:
            checkpoint.say(
                f"second homes: nobody has room for {homes.without} bytes that one failure would "
                "take; a checkpoint may bring them back"
            )
        return homes

    def _peers(self, numbers: list[int]) -> _runtime.MovePeers:
        own = self._number(self._member.name)
        return _runtime.MovePeers(exchange.group_name(), numbers, own, round(1000 * MOVE_SECONDS))

    def _wait_for_all(self) -> None:
        if self._trainer._saver is not None:
            self._trainer._saver.wait()
        if self._trainer._run is not None:
            self._trainer._run.finish()  # so that whoever waits for this process in a step hears it
        self._member.store.set(self._member.key(f"finished/{self._member.name}"), "yes")
        try:
            for name in self._members:
                self._member.wait(f"finished/{name}")
        except elastic.EpochError:
            if not epochs.has_finished(self._member.store, self._member.epoch):
                raise
        if not epochs.finish_epoch(self._member.store, self._member.epoch):
            raise elastic.EpochError("somebody is lost while all finish")

    def _make_step(self, batch: StepBatch | None) -> Metrics:
        key = f"step/{self._done}"
        if self._trainer._job is None:  # no device of the plan
            loss, norm = json.loads(self._member.wait(key))
            return self._trainer._metrics(loss, norm, None)
        if not self._trainer._program.groups:  # nobody would end what it is in
            self._member.check()
        assert batch is not None
        metrics = self._trainer._step(batch)
        self._tempo.note_step(metrics.step_seconds * (1 - metrics.waiting))
        if self._second is not None:
            self._second.note_step()
        if self._spares and self._trainer._job.rank == 0:
            self._member.store.set(
                self._member.key(key), json.dumps([metrics.loss, metrics.grad_norm])
            )
        return metrics

    def _read(self, batch: Any) -> StepBatch | None:
        """Returns what this process needs of a batch now; None without a device of the plan. What
        the script cannot read ends the run: it could not be read again."""
        if self._trainer._job is None:
            return None
        with elastic.of_script():  # others may have failed while they agreed on a length
            return self._trainer._tensors(batch)

    def _take(self, metrics: Metrics) -> None:
        del self._seen[metrics.step :]
        self._seen.append((metrics.loss, metrics.grad_norm))
        self._metrics = metrics
        self._done = metrics.step + 1

    def _told(self, step: int) -> Metrics:
        loss, norm = self._seen[step]
        return dataclasses.replace(
            self._trainer._metrics(loss, norm, None),
            step=step,
            learning_rate=self._trainer.optimizer.learning_rate(step),
        )

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

    def _report(self) -> None:
        run = self._trainer._run
        if run is None:
            here = "done" if self._done > self._begun else "before"
            reached, committed, commits, spreads = here, None, False, False
        else:
            reached, committed, commits, spreads = run.left()
        self._member.report(
            {
                "device": self._member.name,
                "step": self._begun,
                "reached": reached,
                "committed": committed,
                "commits": commits,
                "spreads": spreads,
                "back": self._back,
                "kept": [] if self._second is None else self._second.described(),
                "state": self._state,
                "at": time.time(),
            }
        )

    def _enter(self, agreement: Agreement) -> None:
        """Begins an epoch with what all of its members have."""
        times = Times()
        member = self._member
        if self._trainer._run is not None:
            self._seed = int(self._trainer._run.seed)
        if agreement.states[member.name] >= 0:
            self._catch_up(agreement)
        times.note("catch_up")
        plan = self._plan(agreement)
        times.note("plan")
        program = self._trainer._program_of(plan)
        self._plans[agreement.epoch], self._programs[agreement.epoch] = plan, program
        source = self._source(agreement, program)
        times.note("program")
        self.evaluations.leave()
        member.leave()
        members = plan.devices + [name for name in agreement.members if name not in plan.devices]
        group = member.connect(members)
        with member.watched(group.abort):
            this = self._epoch_job(plan.devices)
            run = self._make_run(plan, program, this)
            times.note("build")
            step, seed = source.done - 1, self._seed
            if source.saved:
                step, seed, moved = self._take_saved(source, run, members)
            else:
                moved = self._fetch(source, run, members)
            self._check_batches(source.what, step + 1)
            self._load_constants(run)
            seed = self._share_history(agreement, step, seed)
            written = unfinished.own(self._trainer._saver, self._written)
            once = [self.evaluations.acts, self.saves, self.loads]
            self._written = unfinished.of_all(share(once, written))  # when all have been restored
        if len(members) > len(plan.devices) and this is not None:
            exchange.use(group.first(len(plan.devices)))  # the spares take no part in the rest
        times.note("restore")
        self._members = [name for name in members if name not in agreement.leaving]
        self._spares = len(self._members) - len(plan.devices)
        self._hand_over(plan, program, run, this, seed)
        if step < agreement.step:
            self._go_back(step, agreement.epoch)
        self._state, self._begun = agreement.epoch, step
        self._reads.begin(self._members, self._asked + 1)
        self._forget_plans()
        self._plan_ahead(plan)
        self._tempo.begin(plan.devices, self._factors(agreement.epoch))
        told = {
            "at": time.time(),
            "step": step,
            "source": source.what,
            "seconds": times.seconds,
            "bytes": moved,
        }
        member.store.set(member.key(f"built/{member.name}"), json.dumps(told))

    def _plan_ahead(self, plan: Plan) -> None:
        """Lets the next plan be found for who would be left; of devices that are slow it is found
        when it is needed."""
        self._end_ahead()
        member, epoch = self._member, self._state
        if member.name == plan.devices[0] and not self._factors(epoch):
            self._ahead = PlansAhead(
                self._trainer,
                plan,
                self._members,
                lambda key, text: member.store.set(member.key(key, epoch), text),
            )

    def _end_ahead(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _forget_plans(self) -> None:
        """Drops those of epochs of which nobody has a state or copies."""
        versions = [] if self._second is None else self._second.versions
        needed = {self._state, *(version.epoch for version in versions)}
        for old in self._programs.keys() - needed:
            del self._programs[old], self._plans[old]

    def _plan_of(self, text: str) -> Plan:
        trainer = self._trainer
        return Plan(text, trainer._graph, trainer._machines, trainer.plan.profile)

    def _make_run(self, plan: Plan, program: _core.Program, this: job.Job | None) -> Any:
        """Returns the run of this process, which has no state yet; None if the plan does not use
        its device."""
        if this is None:
            devices.accelerators_of_all(self._job.local_rank)
            return None
        machines = self._trainer._machines
        options = self._trainer._options | devices.options(plan, program, machines, this)
        with connections.guarded():
            return _runtime.Run(program, machines, options)

    def _hand_over(
        self, plan: Plan, program: _core.Program, run: Any, this: job.Job | None, seed: int
    ) -> None:
        trainer = self._trainer
        if trainer._saver is not None:
            trainer._saver.close()
        self._seed = seed
        if run is not None:
            run.seed = seed
        trainer.plan, trainer._program, trainer._run, trainer._job = plan, program, run, this
        trainer._drift = trainer._saver = None
        if this is not None:
            trainer._saver = checkpoint.Saver(run, program, this)
        self.evaluations.enter()

    def _source(self, agreement: Agreement, program: _core.Program) -> Source:
        found = Sources(self._member, self._number, self._program, self._second)
        return found.newest(agreement, program, self._trainer._run)

    def _fetch(self, source: Source, run: Any, members: list[str]) -> dict[str, int]:
        """Gives a new run its state, together with all members; returns the bytes by source."""
        peers = self._peers([self._number(name) for name in members])
        return {**_runtime.move_state(source.moves, source.state, run, peers), "read": 0}

    def _take_saved(
        self, source: Source, run: Any, members: list[str]
    ) -> tuple[int, int, dict[str, int]]:
        """Gives a new run what it has of a checkpoint, as all members do; returns its last step,
        the seed, and the bytes by source."""
        trainer, this = self._trainer, self._epoch_job(members)
        taken = checkpoint.take(run, this, source.saved, trainer.optimizer.description()["kind"])
        assert taken is not None
        found, manifest = taken
        self._safe_step = found.step
        if self._member.name == members[0]:
            checkpoint.say(f"all go back to {found.path}")
        held = [] if run is None else [run.shard(*each) for each in run.values if _lasts(*each)]
        read = sum(shard.nbytes for shard in held if shard is not None)
        moved = {"kept": 0, "received": 0, "sent": 0, "homes": 0, "read": read}
        return min(found.step, source.done) - 1, manifest.seed, moved

    def _check_batches(self, what: str, done: int) -> None:
        """Raises ValueError if what the script has given is there no more."""
        again = range(done, self._asked)
        if lacking := [step for step in again if step not in self._batches]:
            raise ValueError(
                f"{what}: the next step is {done}, and the batches of steps {lacking[0]} to "
                f"{lacking[-1]} are not kept: expected at most {MOST_BYTES >> 20} MiB"
            )

    def _go_back(self, step: int, epoch: int) -> None:
        """The state is that after an older step."""
        self._done, self._back = step + 1, epoch
        del self._seen[step + 1 :]

    def _load_constants(self, run: Any) -> None:
        for kind, name in [] if run is None else run.values:
            if name.startswith("constant:"):
                run.load(kind, name, self._trainer._graph.constants[name].detach().cpu())

    def _catch_up(self, agreement: Agreement) -> None:
        run = self._trainer._run
        if run is not None:
            left = _core.StepLeft(self._member.name, self._begun, *run.left())
            finish, undo = left.catch_up(agreement.step)
            if undo:
                run.undo(undo)
            if finish:
                self._trainer.steps = self._begun
                result = run.finish_step(agreement.committed)
                self._take(self._trainer._metrics(result.loss, result.gradient_norm, result))
        self._begun = agreement.step
        self._done = agreement.step + 1

    def _plan(self, agreement: Agreement) -> Plan:
        """The eldest plans for all."""
        known = self._plans.get(self._state)
        member = self._member
        if agreement.eldest == member.name:
            assert known is not None
            new = [name for name, state in agreement.states.items() if state < 0]
            factors = {n: f for n, f in wanted(member).items() if n not in new}
            wanted(member, factors)
            member.store.set(member.key("factors"), json.dumps(factors))
            before = self._factors(self._state)
            ahead = None
            if not before and not factors and set(known.devices) - set(agreement.staying):
                ahead = member.store.get(member.key(key_of(agreement.staying), self._state))
            if ahead is None:
                plan = replan(self._trainer, known, agreement.staying, before, factors)
            else:
                plan = self._plan_of(ahead)
                member.store.set(member.key("ahead"), "yes")
            member.store.set(member.key("plan"), plan.text)
        return self._plan_of(member.wait("plan"))

    def _factors(self, epoch: int) -> Factors:
        """Returns how many times as long devices take, as the plan of an epoch has it."""
        text = self._member.store.get(self._member.key("factors", epoch))
        return {} if text is None else dict(json.loads(text))

    def _program(self, epoch: int) -> _core.Program:
        if epoch not in self._programs:
            text = self._member.store.get(self._member.key("plan", epoch))
            assert text is not None
            plan = self._plan_of(text)
            self._plans[epoch], self._programs[epoch] = plan, self._trainer._program_of(plan)
        return self._programs[epoch]

    def _share_history(self, agreement: Agreement, step: int, seed: int) -> int:
        """Tells those who have come of the steps before, and who has no run the seed, which is
        returned."""
        member = self._member
        new = [name for name, state in agreement.states.items() if state < 0]
        if agreement.eldest == member.name and new:
            history = {"seen": self._seen[: step + 1], "seed": seed, "asked": self._asked}
            history["fits"] = self.fits.told()
            member.store.set(member.key("history"), json.dumps(history))
        if member.name in new:
            history = json.loads(member.wait("history"))
            self._seen = [(loss, norm) for loss, norm in history["seen"]]
            self._done = step + 1
            self.fits.hear(history["fits"])
            self._reads.begin((), int(history["asked"]) + 1)
            return int(history["seed"])
        if self._spares and step >= 0:  # who had no device may not know the last step
            if len(self._seen) > step:
                member.store.set(member.key("last"), json.dumps(self._seen[step]))
            else:
                loss, norm = json.loads(member.wait("last"))
                self._trainer.steps = step
                self._take(self._trainer._metrics(loss, norm, None))
        return seed

    def _number(self, name: str) -> int:
        number = self._trainer._machines.find(name)
        assert number is not None
        return number

    def _epoch_job(self, devices: list[str]) -> job.Job | None:
        if self._member.name not in devices:
            return None
        return dataclasses.replace(
            self._job, rank=devices.index(self._member.name), size=len(devices)
        )


def _lasts(kind: str, name: str) -> bool:
    return kind != "gradient" and not name.startswith("constant:")
