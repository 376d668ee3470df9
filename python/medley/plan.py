"""Plans: who computes what, and how much of it. Made by the core's planner or read from a file."""

from __future__ import annotations

import dataclasses
import functools
import html
import json
import operator
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from medley import _core
from medley.cluster import Cluster, load_cluster
from medley.files import read_text, write_atomically
from medley.optimizer import Optimizer, as_optimizer
from medley.run import job

if TYPE_CHECKING:
    from medley.graph import Graph


class Explanation(str):
    """A text with tables; a notebook keeps their columns."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


class Question(NamedTuple):
    """What a planner is asked about a graph and a cluster; `microbatches`: 0 for as few as fit."""

    strategy: str
    rows: int
    microbatches: int = 0
    survive: int = 0
    loss_over_microbatches: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan as its JSON text, with the graph, the cluster and the profile that it was made for, if
    known."""

    text: str  # JSON (docs/formats/plan.md)
    graph: Graph | None = None  # that it is for
    cluster: Cluster | None = None  # that it is for
    profile: str | os.PathLike[str] | None = None  # the file

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Reads a plan. Raises ValueError naming the place of what is no plan."""
        return Plan.of(_core.Plan(read_text(path), str(path)))

    @staticmethod
    def from_dict(entries: Mapping[str, Any]) -> Plan:
        """Returns the plan that a dict in the form of the JSON describes."""
        return Plan.of(_core.Plan(json.dumps(entries)))

    @staticmethod
    def of(
        core: _core.Plan,
        graph: Graph | None = None,
        cluster: Cluster | None = None,
        profile: str | os.PathLike[str] | None = None,
    ) -> Plan:
        """Returns the plan that `core` is, for this graph, cluster and profile."""
        plan = Plan(core.text(), graph, cluster, profile)
        plan.__dict__["core"] = core
        return plan

    @functools.cached_property
    def core(self) -> _core.Plan:
        """The plan as the core has it, read once. Raises ValueError for a text that is no plan."""
        return _core.Plan(self.text)

    def __getstate__(self) -> dict[str, Any]:  # a copy reads its text again
        return {name: value for name, value in self.__dict__.items() if name != "core"}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan; the file is complete or not there."""
        write_atomically(path, self.text)

    def explain(self, expanded: bool = False) -> Explanation:
        """Returns what the plan does and what it will cost, for people."""
        if self.graph is None or self.cluster is None:
            raise ValueError(
                "explain: the plan was read without graph and cluster; use "
                'medley.plan(graph, cluster="cluster.yaml", plan=...)'
            )
        return Explanation(
            _core.explain_plan(
                self.core, self.graph.core, self.cluster, expanded, *measured(self.profile)
            )
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan in the form of its JSON."""
        entries: dict[str, Any] = json.loads(self.text)
        return entries

    @property
    def global_batch(self) -> int:
        """Rows of a step."""
        return self.core.global_batch

    @property
    def strategy(self) -> str:
        """The strategy that made it, "" if written by hand."""
        return self.core.strategy

    @property
    def survive(self) -> int:
        """How many nodes may be lost, any of them, with the state still there: 0 or 1."""
        return self.core.survive

    @property
    def loss_over(self) -> str:
        """What the loss of a step is over: "batch", or "microbatches", the mean of their losses."""
        return self.core.loss_over

    @property
    def devices(self) -> list[str]:
        """Names of the devices, in the order of the ranks."""
        return self.core.devices

    @property
    def mesh_shapes(self) -> list[list[int]]:
        """Sizes of the axes of the mesh of each stage, pipeline after pipeline."""
        return self.core.mesh_shapes


def plan(
    graph: Graph | _core.Graph,
    cluster: Cluster | str | os.PathLike[str],
    strategy: str = "auto",
    global_batch: int | None = None,
    microbatches: int | None = None,
    optimizer: Optimizer | None = None,
    plan: Plan | str | os.PathLike[str] | None = None,
    profile: str | os.PathLike[str] | None = None,
    survive: int = 0,
    loss_over: str = "batch",
) -> Plan:
    """Returns the fastest plan that fits, of those that `strategy` considers, by the times that
    the file `profile` has.

    With `plan`, and under `medley launch plan.json`, that plan is verified and returned instead. In
    a job of several processes the first one plans for all.

    `global_batch` is the rows of a step over all devices; `microbatches` in how many parts they are
    computed, as few as fit into memory if not given. The state of `optimizer` counts as memory.
    With `survive=1` the plan is chosen so that the state outlives the loss of any one node: where
    copies of it are needed for that, what they cost counts.

    The loss of a step is that of the whole batch, however it is cut. With
    `loss_over="microbatches"` it is the mean of the losses of `microbatches` parts, each a batch of
    its own and of weight 1 / microbatches, as in a loop of PyTorch that accumulates gradients.

    Raises ValueError if no plan fits, saying what does not fit and by how much.
    """
    # Both import PyTorch, which whoever only reads plans does without.
    from medley.graph import as_graph
    from medley.run import exchange

    whole, machines = as_graph(graph), load_cluster(cluster)
    given = plan if plan is not None else job.launched_plan()
    if given is not None:
        chosen = given if isinstance(given, Plan) else Plan.load(given)
        where = "<plan>" if isinstance(given, Plan) else str(given)
        _core.verify_plan(chosen.core, where, whole.core, machines)
        if global_batch is not None and chosen.global_batch != global_batch:
            raise ValueError(
                f"{where}: global_batch: found {chosen.global_batch}, expected {global_batch} as "
                "the script asks"
            )
        return Plan.of(chosen.core, whole, machines, profile)
    if global_batch is None:
        raise ValueError("plan: expected global_batch, the number of rows of a step")
    if not isinstance(strategy, str):
        raise ValueError(
            f"strategy: found {strategy!r}, expected a name (`medley list strategies`)"
        )
    rows, parts = _count("global_batch", global_batch), _count("microbatches", microbatches or 0)
    if loss_over not in ("batch", "microbatches"):
        raise ValueError(f'loss_over: found {loss_over!r}, expected "batch" or "microbatches"')
    asked = Question(strategy, rows, parts, survive, loss_over == "microbatches")

    def find() -> bytes:
        rule = as_optimizer(optimizer).core(whole.core)
        return find_plan(whole.core, machines, asked, rule, measured(profile)).text().encode()

    return Plan(exchange.from_first(find, "plans").decode(), whole, machines, profile)


def find_plan(
    graph: _core.Graph,
    cluster: Cluster,
    asked: Question,
    rule: _core.Optimizer,
    times: tuple[str, str],
    devices: Sequence[str] = (),
) -> _core.Plan:
    """Returns the plan that plan() finds, in this process. `times`: of `measured`; `devices`: those
    that may be used, all if there are none."""
    return _core.plan(
        graph,
        cluster,
        asked.strategy,
        asked.rows,
        asked.microbatches,
        rule,
        *times,
        list(devices),
        asked.survive,
        asked.loss_over_microbatches,
    )


def _count(name: str, value: int) -> int:
    try:
        count = operator.index(value)
    except TypeError:
        raise ValueError(f"{name}: found {value!r}, expected a whole number") from None
    if not abs(count) < 2**63:
        raise ValueError(f"{name}: found {count}, expected less than 2^63")
    return count


def measured(profile: str | os.PathLike[str] | None) -> tuple[str, str]:
    """Returns what the core takes for a profile: its text and its name."""
    return ("", "<profile>") if profile is None else (read_profile(profile), str(profile))


def read_profile(path: str | os.PathLike[str]) -> str:
    """Returns the text of a profile. Refuses an empty one, which to the core stands for none."""
    text = read_text(path)
    if not text:
        raise ValueError(f"{path}: found nothing, expected what `medley profile` writes")
    return text
