"""The job that a plan describes: groups of equal nodes, and the number of each process.

A group has the nodes of one pool on which the plan uses equally many devices. Groups, and nodes in
a group, are in the order of their first ranks, so rank 0 is the first device of the first node.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from medley import Plan
from medley.cluster import load_cluster
from medley.files import read_text
from medley.run.nodes import nodes_of

STOPPED = (130, 143)  # exit codes of a run that a signal has stopped
_CPU = "CPU"


@dataclasses.dataclass(frozen=True)
class Node:
    """A node of the plan: its number for `medley launch --node-rank`, and its devices in order."""

    rank: int
    devices: list[str]


@dataclasses.dataclass(frozen=True)
class Group:
    """Equal nodes of one pool."""

    name: str  # unique in the job, as a DNS label
    pool: str
    nodes: list[Node]
    first: int = 0  # nodes in the groups before
    kind: str = ""  # of devices, as the cluster names it
    gpu: str = ""  # this kind in the catalogue, "" for CPUs
    preemptible: bool = False
    select: Mapping[str, str] = dataclasses.field(default_factory=dict)  # of the user, for the pool

    @property
    def devices(self) -> int:
        """Devices of the plan on each node."""
        return len(self.nodes[0].devices)

    @property
    def gpus(self) -> int:
        """GPUs that each node needs."""
        return self.devices if self.gpu else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """All that a platform needs to know of a run. Times are in seconds."""

    name: str
    plan: str  # the file
    plan_text: str
    cluster: str  # the file
    cluster_text: str
    groups: list[Group]
    words: list[str]  # behind `python`
    checkpoints: str
    notice: int
    port: int
    elastic: bool
    restarts: int
    time: int | None = None
    image: str | None = None
    storage: str | None = None
    cpus: int | None = None  # per device
    memory: str | None = None  # per node

    @property
    def processes(self) -> int:
        """Processes of the run, one for each device."""
        return sum(group.devices * len(group.nodes) for group in self.groups)

    @property
    def has_several_pools(self) -> bool:
        """Whether nodes have to be distinguished by pool."""
        return len({group.pool for group in self.groups}) > 1

    def starter(self, place: str) -> str:
        """Returns the words of a shell that start what runs at a place, before the user's command.

        "--task N" is one process, "--node N" those of one node, both counted over groups. The shell
        has PLAN, the file, and MEET, the address of rank 0.
        """
        elastic = ""
        if self.elastic:
            elastic = f' --elastic --max-restarts {self.restarts} --log "$MEDLEY_CHECKPOINTS"'
        return (
            'python -m medley_extras.deploy.start --plan "$PLAN" --rdzv-endpoint "$MEET" '
            f"{place}{elastic} --"
        )

    @property
    def command(self) -> str:
        """The words behind `python`, for a shell."""
        return " ".join(map(shlex.quote, self.words))


def groups_of(devices: Sequence[str]) -> list[Group]:
    """Returns the groups of the devices of a plan, as far as the plan alone tells."""
    found: dict[tuple[str, int], list[Node]] = {}
    for rank, own in enumerate(nodes_of(devices)):
        pool = own[0].partition("/")[0]
        found.setdefault((pool, len(own)), []).append(Node(rank, own))
    pools = [pool for pool, _ in found]
    groups: list[Group] = []
    for (pool, count), nodes in found.items():
        name = label(pool if pools.count(pool) == 1 else f"{pool}-{count}")
        while name in [group.name for group in groups]:  # "a.b" and "a_b" are one label
            name += "x"
        groups.append(Group(name, pool, nodes, sum(len(group.nodes) for group in groups)))
    return groups


def described(
    plan: str, cluster: str | None, select: Mapping[str, Mapping[str, str]]
) -> tuple[str, str, str, list[Group]]:
    """Returns the text of a plan, the file and text of its cluster, and the groups.

    Without `cluster` it is the cluster.yaml next to the plan.
    """
    loaded = Plan.load(plan)
    file = cluster or str(Path(plan).with_name("cluster.yaml"))
    if cluster is None and not Path(file).exists():
        raise ValueError(
            f"--cluster: missing (got no {file} next to the plan). "
            "Add --cluster with the file that the plan was made for."
        )
    machines, text = load_cluster(file), read_text(file)
    groups = groups_of(loaded.devices)
    for pool in select:
        if pool not in (pools := sorted({group.pool for group in groups})):
            raise ValueError(
                f"--node: no such pool in the plan (got {pool!r}, expected {' or '.join(pools)}). "
                "Name a pool of the plan's devices."
            )
    whole = []
    for group in groups:
        numbers = [machines.find(name) for node in group.nodes for name in node.devices]
        if None in numbers:
            missing = [name for node in group.nodes for name in node.devices][numbers.index(None)]
            raise ValueError(
                f"{plan}: devices: not in the cluster (got {missing}, expected devices of {file}). "
                "Pass the cluster.yaml of the plan as --cluster."
            )
        first = numbers[0] or 0
        kind = machines.kind(first)
        whole.append(
            dataclasses.replace(
                group,
                kind=kind.name,
                gpu="" if _CPU in (kind.name, kind.base) else kind.base or kind.name,
                preemptible=machines.is_preemptible(first),
                select=select.get(group.pool, {}),
            )
        )
    return loaded.text, file, text, whole


def script_of(words: Sequence[str]) -> list[str]:
    """Returns words behind `python` as those behind `medley launch PLAN`."""
    return list(words[2:] if list(words[:2]) == ["-m", "medley"] else words)


def label(name: str) -> str:
    """Returns a name as a DNS label: lower-case letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "node"
