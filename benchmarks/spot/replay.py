"""Training while nodes come and go, under a rule. Pure and deterministic. A loss stops training one
notice before it, a join immediately. Then state is written, a wait passes, all is started, state is
read, and training resumes with the plan for the present nodes. A loss in the middle of this
restarts it, unless the start is still pending. A node that joins meanwhile is included."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from benchmarks.spot.costs import A_STEP, EVERYTHING, MOVED, Costs, Figure
from benchmarks.spot.traces import Change


@dataclasses.dataclass(frozen=True)
class Plan:
    """A simulated plan: rows per second, copies of the state over all devices, seconds per step,
    and planning time. No rows if no plan fits."""

    rows_per_second: float
    copies: float = 1.0
    step_seconds: float = 0.0
    planning_seconds: float = 0.0


Planner = Callable[[frozenset[str]], Plan]
# (nodes of the plan before, the remaining ones, nodes of the plan after) -> the largest number of
# bytes that one node receives from the remaining ones, or sends.
Mover = Callable[[frozenset[str], frozenset[str], frozenset[str]], float]


def no_moves(before: frozenset[str], left: frozenset[str], after: frozenset[str]) -> float:
    """Returns 0, for rules without moves."""
    raise AssertionError((before, left, after))


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a trace under a rule."""

    rows: float
    stopped_seconds: float  # in which there was a plan, and nothing was trained
    recoveries: int
    begun_again: int  # recoveries that a further loss hit


def oracle(changes: Sequence[Change], planner: Planner, end: float) -> Outcome:
    """Returns the training if each change is free."""
    rows, before, alive = 0.0, 0.0, frozenset[str]()
    for change in [*changes, Change(end)]:
        rows += planner(alive).rows_per_second * (min(change.at, end) - before)
        before = min(change.at, end)
        alive = _after(alive, change)
    return Outcome(rows, 0.0, 0, 0)


def replay(
    changes: Sequence[Change],
    planner: Planner,
    costs: Costs,
    state_bytes: float,
    end: float,
    mover: Mover = no_moves,
) -> Outcome:
    """Returns the training until `end` under a rule. Changes ascend in time."""
    run = _Run(planner, costs, state_bytes, mover)
    for change in changes:
        if change.at < end:
            run.change(change)
    return run.finish(end)


def _after(alive: frozenset[str], change: Change) -> frozenset[str]:
    # A node left and another took its place at the same moment: the place is in use.
    return (alive - set(change.left)) | set(change.joined)


class _Run:
    def __init__(self, planner: Planner, costs: Costs, state_bytes: float, mover: Mover) -> None:
        self._planner, self._costs, self._state = planner, costs, state_bytes
        self._mover = mover
        self._alive = frozenset[str]()
        # The nodes of the last plan in training, and the remaining ones.
        self._had, self._holders = self._alive, self._alive
        self._plan = planner(self._alive)
        self._now = 0.0  # until here all is accounted for
        self._waits = 0.0  # until when nothing is started
        self._ready = 0.0  # time at which training resumes
        self._rows = self._stopped = 0.0
        self._since = 0.0  # seconds of training since it went on
        self._recoveries = self._begun_again = 0

    def change(self, change: Change) -> None:
        """Advances to a change, and computes when training resumes after it."""
        lost = bool(change.left)
        notice = self._costs.notice_seconds.number if lost else 0.0
        stop = max(change.at - notice, self._now)
        before, nodes = self._plan.rows_per_second, len(self._alive)
        self._pass(stop)
        if before > 0.0 and self._ready <= stop:
            self._had = self._holders = self._alive
        self._holders -= set(change.left)
        self._alive = _after(self._alive, change)
        plan = self._planner(self._alive)
        if before == 0.0:
            self._recoveries += plan.rows_per_second > 0.0
            self._restart(change.at, False, plan)
        elif self._ready <= stop:
            self._recoveries += 1
            if lost:
                # Only since training resumed: earlier work is undone once.
                self._rows -= min(self._repeated(), self._since) * before
            written = self._copied(self._costs.written_share.number, nodes)
            self._restart(stop + written, lost, plan)
        elif lost and change.at <= self._waits:
            self._start(True, plan)
        elif lost:
            self._begun_again += 1
            self._restart(change.at, True, plan)
        self._plan = plan
        self._pass(change.at)

    def finish(self, end: float) -> Outcome:
        """Passes on to the end."""
        self._pass(end)
        return Outcome(self._rows, self._stopped, self._recoveries, self._begun_again)

    def _pass(self, until: float) -> None:
        """Trains until a moment, from when it is ready on."""
        rate = self._plan.rows_per_second
        passed = until - self._now
        trained = max(0.0, until - max(self._ready, self._now)) if rate > 0.0 else 0.0
        self._rows += trained * rate
        self._since += trained
        self._stopped += passed - trained if rate > 0.0 else 0.0
        self._now = until

    def _restart(self, begin: float, lost: bool, plan: Plan) -> None:
        self._since = 0.0
        self._waits = begin + (self._costs.wait_seconds.number if lost else 0.0)
        self._start(lost, plan)

    def _start(self, lost: bool, plan: Plan) -> None:
        costs = self._costs
        start = costs.start_after_loss_seconds if lost else costs.start_after_join_seconds
        read = costs.read_after_loss_share if lost else costs.read_after_join_share
        planning = costs.planning_share.number * plan.planning_seconds
        self._ready = self._waits + start.number + planning + self._read(read, plan)

    def _repeated(self) -> float:
        repeated = self._costs.repeated_seconds
        return self._plan.step_seconds if repeated.value == A_STEP else repeated.number

    def _read(self, figure: Figure, plan: Plan) -> float:
        """Returns the seconds until all have their state, from storage if no node remains."""
        if figure.value == MOVED and self._holders:
            if plan.rows_per_second == 0.0:
                return 0.0
            moved = self._mover(self._had, self._holders, self._alive)
            return moved / self._costs.node_rate.number
        whole = figure.value in (EVERYTHING, MOVED)
        return self._copied(plan.copies if whole else figure.number, len(self._alive))

    def _copied(self, share: float, nodes: int) -> float:
        """Returns the seconds in which nodes read or write this share of the state in equal
        parts."""
        amount = share * self._state
        each = amount / max(1, nodes) / self._costs.node_rate.number
        return max(each, amount / self._costs.storage_rate.number)
