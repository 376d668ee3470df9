"""Plans: the ops and samples of each device. The planner of the core makes them, or a file has
them."""

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
    """A text with tables. Notebooks keep their columns."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self)}</pre>"


class Question(NamedTuple):
    """The arguments of a planner besides graph and cluster. `microbatches`: 0 for as few as fit."""

    strategy: str
    rows: int
    microbatches: int = 0
    tolerate_node_loss: int = 0
    loss_over_microbatches: bool = False


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan as its JSON text, with the graph, cluster and profile that it was made for, if known.

    Example:
        plan = medley.plan(graph, "cluster.yaml", global_batch=64)
        print(plan.explain())
        plan.save("plan.json")
    """

    text: str  # JSON (docs/formats/plan.md)
    graph: Graph | None = None  # its graph
    cluster: Cluster | None = None  # its cluster
    profile: str | os.PathLike[str] | None = None  # its profile file

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Plan:
        """Reads a plan. Raises ValueError naming the invalid place."""
        return Plan.of(_core.Plan(read_text(path), str(path)))

    @staticmethod
    def from_dict(entries: Mapping[str, Any]) -> Plan:
        """Returns the plan of a dict in the form of the JSON."""
        return Plan.of(_core.Plan(json.dumps(entries)))

    @staticmethod
    def of(
        core: _core.Plan,
        graph: Graph | None = None,
        cluster: Cluster | None = None,
        profile: str | os.PathLike[str] | None = None,
    ) -> Plan:
        """Returns a plan of the core as a Plan for this graph, cluster and profile."""
        plan = Plan(core.text(), graph, cluster, profile)
        plan.__dict__["core"] = core
        return plan

    @functools.cached_property
    def core(self) -> _core.Plan:
        """The plan as an object of the core, parsed once. Raises ValueError for an invalid text."""
        return _core.Plan(self.text)

    def __getstate__(self) -> dict[str, Any]:  # a copy parses its text again
        return {name: value for name, value in self.__dict__.items() if name != "core"}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan atomically."""
        write_atomically(path, self.text)

    def explain(self, expanded: bool = False) -> Explanation:
        """Returns a readable description: division, step time and memory."""
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
        """The rows of a step."""
        return self.core.global_batch

    @property
    def strategy(self) -> str:
        """The strategy that made the plan, or "" if it was written by hand."""
        return self.core.strategy

    @property
    def tolerate_node_loss(self) -> int:
        """The number of node losses that the state tolerates: 0 or 1."""
        return self.core.tolerate_node_loss

    @property
    def loss_over(self) -> str:
        """The scope of the loss of a step: "batch", or "microbatches" for the mean of their
        losses."""
        return self.core.loss_over

    @property
    def devices(self) -> list[str]:
        """The names of the devices in the order of the ranks."""
        return self.core.devices

    @property
    def mesh_shapes(self) -> list[list[int]]:
        """The sizes of the mesh axes of each stage, pipeline after pipeline."""
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
    tolerate_node_loss: int = 0,
    loss_over: str = "batch",
) -> Plan:
    """Returns the plan with the shortest predicted step that fits into memory, among those that
    `strategy` considers. The times are those of the file `profile`, or of the device catalogue.

    If `plan` is given, or under `medley launch plan.json`, that plan is verified and returned. In a
    job the first process plans for all.

    `global_batch` is the number of rows per step over all devices. `microbatches` is the number of
    parts in which they are computed; by default as few as fit. The state of `optimizer` counts as
    memory. With `tolerate_node_loss=1` the state tolerates the loss of any one node. The cost of
    the required state replicas counts.

    The loss of a step is that of the whole batch, independent of its division. With
    `loss_over="microbatches"` it is the mean of the losses of `microbatches` parts, as in a PyTorch
    loop that accumulates gradients. Each part is a batch of its own with weight 1 / microbatches.

    Raises ValueError if no plan fits, naming the missing amount of memory.
    """
    # Both import PyTorch, which reading plans does not need.
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
    asked = Question(strategy, rows, parts, tolerate_node_loss, loss_over == "microbatches")

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
    """Returns the plan of plan(), searched in this process. `times` is the result of `measured`;
    `devices` are the allowed ones, or all if empty."""
    return _core.plan(
        graph,
        cluster,
        asked.strategy,
        asked.rows,
        asked.microbatches,
        rule,
        *times,
        list(devices),
        asked.tolerate_node_loss,
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
    """Returns the text and the name of a profile, as the core takes them."""
    return ("", "<profile>") if profile is None else (read_profile(profile), str(profile))


def read_profile(path: str | os.PathLike[str]) -> str:
    """Returns the text of a profile. Raises ValueError for an empty one, which means none to the
    core."""
    text = read_text(path)
    if not text:
        raise ValueError(f"{path}: found nothing, expected what `medley profile` writes")
    return text
