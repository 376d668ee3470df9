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
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor

from medley import _core, _runtime, checkpoint
from medley.plan import Plan, find_plan
from medley.run import connections, devices, elastic, ends, exchange, job
from medley.run.elastic import RunEndError
from medley.run.epochs import Agreement

if TYPE_CHECKING:
    from medley.trainer import Metrics, Trainer

Made = TypeVar("Made")
MOVE_SECONDS = 600.0
# Steps whose batches are kept: those that may have to be made again.
_KEPT = 2


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
        self._batches: dict[int, Mapping[str, Tensor]] = {}
        self._asked = 0  # steps that the script has made, or makes now: its trainer's `steps`
        self._done = 0  # steps that the state is of
        self._seen: list[tuple[float, float]] = []  # loss and norm of every step
        self._metrics: Metrics | None = None  # of the last step
        self._spares = 0
        self._members: list[str] = []

    # --- what a trainer does ---

    def begin(self, plan: Plan, program: _core.Program) -> None:
        """The run of the first epoch stands."""
        epoch = self._member.epoch
        self._plans[epoch], self._programs[epoch] = plan, program
        self._state, self._members = epoch, plan.devices
        if self._member.name == plan.devices[0]:
            self._member.store.set(self._member.key("plan"), plan.text)

    def begin_at(self, steps: int) -> None:
        """Training goes on from a checkpoint."""
        self._asked = self._done = steps
        self._begun = steps - 1
        self._seen = [(math.nan, math.nan)] * steps

    def join(self) -> None:
        """Takes the place of a lost process: returns when this one has its part of the state."""
        self._member.arrive()
        self._recover(None)

    def step(self, tensors: Mapping[str, Tensor]) -> Metrics:
        """Makes a step, however often that takes. The steps that were made before this process has
        come are not made again: their metrics are what they were."""
        step = self._asked
        self._asked += 1
        if step < len(self._seen):
            self._trainer.steps = self._asked
            return self._told(step)
        self._batches[step] = tensors
        self._batches.pop(step - _KEPT, None)
        self.call(lambda: None)
        assert self._metrics is not None
        return self._metrics

    def call(self, make: Callable[[], Made]) -> Made:
        """Does what all processes have to do together, after the steps that are missing; again
        after each recovery."""
        while True:
            try:
                while self._done < self._asked:
                    self._begun = self._trainer.steps = self._done
                    self._take(self._make_step(self._batches[self._begun]))
                self._trainer.steps = self._asked
                return make()
            except (OSError, RuntimeError) as error:
                if not self._is_over(error):
                    raise
                self._recover(error)

    def finish(self) -> None:
        """Waits until all have finished, so that nobody goes with what others may need."""
        with contextlib.suppress(OSError):  # it has ended in another way
            self.call(self._wait_for_all)

    def _wait_for_all(self) -> None:
        if self._trainer._run is not None:
            self._trainer._run.finish()  # so that whoever waits for this process in a step hears it
        self._member.store.set(self._member.key(f"finished/{self._member.name}"), "yes")
        for name in self._members:
            self._member.wait(f"finished/{name}")

    def _make_step(self, tensors: Mapping[str, Tensor]) -> Metrics:
        key = f"step/{self._done}"
        if self._trainer._job is None:  # no device of the plan
            loss, norm = json.loads(self._member.wait(key))
            return self._trainer._metrics(loss, norm, None)
        if not self._trainer._program.groups:  # nobody would end what it is in
            self._member.check()
        metrics = self._trainer._step(tensors)
        if self._spares and self._trainer._job.rank == 0:
            self._member.store.set(
                self._member.key(key), json.dumps([metrics.loss, metrics.grad_norm])
            )
        return metrics

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

    def _recover(self, error: Exception | None) -> None:
        while True:
            if error is not None:
                if self._member.group is not None:
                    self._member.group.abort()
                self._report()
            agreement = self._member.next_agreement()
            try:
                self._enter(agreement)
                return
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
                "state": self._state,
                "at": time.time(),
            }
        )

    def _enter(self, agreement: Agreement) -> None:
        """Begins an epoch with what all of its members have."""
        times = _Times()
        if self._state >= 0:
            self._catch_up(agreement)
        times.note("catch_up")
        plan = self._plan(agreement)
        times.note("plan")
        program = self._trainer._program_of(plan)
        self._plans[agreement.epoch], self._programs[agreement.epoch] = plan, program
        moves = self._moves(agreement, program)
        if moves.lost:
            raise ValueError(_lost(moves.lost))
        times.note("program")
        member = self._member
        member.leave()
        members = plan.devices + [name for name in agreement.members if name not in plan.devices]
        group = member.connect(members)
        watch = elastic.Watch(member.store, agreement.epoch, group.abort)
        try:
            this = self._epoch_job(plan.devices)
            run = self._make_run(plan, program, this)
            times.note("build")
            moved = self._fetch(moves, run, group.name, members)
            self._share_history(agreement)
            exchange.texts("restored")
        finally:
            watch.stop()
        if len(members) > len(plan.devices) and this is not None:
            exchange.use(group.first(len(plan.devices)))  # the spares take no part in the rest
        times.note("restore")
        self._members, self._spares = members, len(members) - len(plan.devices)
        self._hand_over(plan, program, run, this)
        self._state, self._begun = agreement.epoch, agreement.step
        for old in [epoch for epoch in self._programs if epoch != agreement.epoch]:
            del self._programs[old], self._plans[old]
        told = {"at": time.time(), "seconds": times.seconds, "bytes": moved}
        member.store.set(member.key(f"built/{member.name}"), json.dumps(told))

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
        self, plan: Plan, program: _core.Program, run: Any, this: job.Job | None
    ) -> None:
        trainer = self._trainer
        if run is not None and trainer._run is not None:
            run.seed = trainer._run.seed
        trainer.plan, trainer._program, trainer._run, trainer._job = plan, program, run, this
        trainer._drift = trainer._saver = None
        if this is not None:
            trainer._saver = checkpoint.Saver(run, program, this)

    def _fetch(
        self, moves: _core.Moves, run: Any, group: str, members: list[str]
    ) -> dict[str, int]:
        """Gives a new run its state, together with all members; returns the bytes by source."""
        before = self._trainer._run if self._state >= 0 else None
        moved = _runtime.move_state(
            moves,
            self._number(self._member.name),
            before,
            run,
            group,
            [self._number(name) for name in members],
            round(1000 * MOVE_SECONDS),
        )
        for kind, name in [] if run is None else run.values:
            if name.startswith("constant:"):
                run.load(kind, name, self._trainer._graph.constants[name].detach().cpu())
        return moved

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
        if agreement.eldest == self._member.name:
            assert known is not None
            text = replan(self._trainer, known, agreement.members).text
            self._member.store.set(self._member.key("plan"), text)
        return self._plan_of(self._member.wait("plan"))

    def _moves(self, agreement: Agreement, program: _core.Program) -> _core.Moves:
        before: dict[int, list[int]] = {}
        for name, state in agreement.states.items():
            if state >= 0:
                before.setdefault(state, []).append(self._number(name))
        holders = [(self._program(epoch), devices) for epoch, devices in sorted(before.items())]
        return _core.Moves(holders, program)

    def _program(self, epoch: int) -> _core.Program:
        if epoch not in self._programs:
            text = self._member.store.get(self._member.key("plan", epoch))
            assert text is not None
            plan = self._plan_of(text)
            self._plans[epoch], self._programs[epoch] = plan, self._trainer._program_of(plan)
        return self._programs[epoch]

    def _share_history(self, agreement: Agreement) -> None:
        """Tells those who have come of the steps before."""
        new = [name for name, state in agreement.states.items() if state < 0]
        if agreement.eldest == self._member.name and new:
            self._member.store.set(self._member.key("history"), json.dumps(self._seen))
        if self._member.name in new:
            self._seen = [(loss, norm) for loss, norm in json.loads(self._member.wait("history"))]
            self._done = agreement.step + 1
        elif self._spares and agreement.step >= 0:  # who had no device may not know the last step
            if len(self._seen) > agreement.step:
                last = json.dumps(self._seen[agreement.step])
                self._member.store.set(self._member.key("last"), last)
            else:
                loss, norm = json.loads(self._member.wait("last"))
                self._trainer.steps = agreement.step
                self._take(self._trainer._metrics(loss, norm, None))

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


def replan(trainer: Trainer, before: Plan, devices: list[str]) -> Plan:
    """Returns the plan for the devices that are there: the one before if it is for the same."""
    if sorted(before.devices) == sorted(devices):
        return before
    return find_plan(
        trainer._graph,
        trainer._machines,
        before.strategy or "auto",
        before.global_batch,
        0,
        trainer.optimizer,
        before.profile,
        devices,
    )


def _lost(boxes: list[str]) -> str:
    more = f" and {len(boxes) - 3} more" if len(boxes) > 3 else ""
    return (
        f"what only lost devices had cannot be restored: {'; '.join(boxes[:3])}{more}; a plan "
        "that keeps every part on two devices or more loses nothing"
    )


class _Times:
    """Seconds by cause."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.seconds: dict[str, float] = {}

    def note(self, cause: str) -> None:
        """All since the last note is for this."""
        now = time.monotonic()
        self.seconds[cause] = now - self._last
        self._last = now
