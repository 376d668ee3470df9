"""The uniform pipeline grids to try on a cluster, in order of expected speed. They are replicas x
stages on all devices or on the fastest types only. Every replica has the same rows and cuts. The
estimate only decides their order. Pure functions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

from medley.cluster import Cluster
from testbed.layout import speeds

# Ops of a block, forward and backward, each with a launch latency.
OPS_OF_A_BLOCK = 60
MOST_CUTS = 4  # uneven ones that are tried


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The sizes of a model for an estimate: those of a row, and its parameters."""

    rows: int
    blocks: int
    block_parameters: int
    head_parameters: int  # head of the last stage
    row_tokens: int
    row_bytes: int  # bytes per row between stages

    @property
    def head(self) -> float:
        """Returns how many blocks the head computes as much as."""
        return self.head_parameters / self.block_parameters


@dataclasses.dataclass(frozen=True)
class Grid:
    """Ranks go stage by stage, `replicas` for each."""

    devices: tuple[int, ...]  # [rank]
    replicas: int
    blocks: tuple[int, ...]  # [stage]
    microbatches: int  # per pipeline

    def stage(self, number: int) -> tuple[int, ...]:
        """Returns the devices of a stage."""
        return self.devices[number * self.replicas : (number + 1) * self.replicas]

    def describe(self) -> str:
        """Returns a description of the grid."""
        return (
            f"{self.replicas} x {len(self.blocks)}, devices {' '.join(map(str, self.devices))}, "
            f"blocks {' '.join(map(str, self.blocks))}, {self.microbatches} micro-batches"
        )


def even(blocks: int, stages: int) -> list[int]:
    """Returns the number of blocks of each stage, as equal as possible, with more in the first
    ones."""
    return [blocks // stages + (stage < blocks % stages) for stage in range(stages)]


def cuts(blocks: int, relative: Sequence[float], head: float = 0.0) -> list[list[int]]:
    """Returns all uneven ways to divide blocks among stages, the fastest slowest stage first.
    `head`: additional work of the last stage, in blocks."""
    stages = len(relative)
    extra = [0.0] * (stages - 1) + [head]
    found = [
        [b - a for a, b in itertools.pairwise((0, *inner, blocks))]
        for inner in itertools.combinations(range(1, blocks), stages - 1)
    ]

    def slowest(counts: list[int]) -> list[float]:
        each = zip(counts, extra, relative, strict=True)
        return sorted(((n + more) / speed for n, more, speed in each), reverse=True)

    return sorted((c for c in found if c != even(blocks, stages)), key=slowest)


def orders(cluster: Cluster, replicas: int) -> list[tuple[int, ...]]:
    """Returns the orders of devices to try, of all types or of the fastest ones: fast or slow ones
    first; neighbours are replicas of a stage, or stages of a replica."""
    relative = speeds(cluster)
    found: list[tuple[int, ...]] = []
    for least in sorted(set(relative)):
        devices = [d for d in range(len(relative)) if relative[d] >= least]
        if len(devices) % replicas:
            continue
        stages = len(devices) // replicas
        for sign in (-1.0, 1.0):
            line = sorted(devices, key=lambda device: sign * relative[device])
            across = [line[r * stages + s] for s in range(stages) for r in range(replicas)]
            found += [tuple(line), tuple(across)]
    return list(dict.fromkeys(found))


def choices(cluster: Cluster, sizes: Sizes, replicas: int, uneven: bool) -> list[list[Grid]]:
    """Returns the grids with these replicas, as a list for each order of devices: the expected
    fastest one, then its other numbers of micro-batches, then the other cuts."""
    result = []
    for devices in orders(cluster, replicas):
        stages = len(devices) // replicas
        if stages > sizes.blocks or sizes.rows % replicas:
            continue
        numbers = [
            number
            for number in range(stages, sizes.rows // replicas + 1)
            if sizes.rows % (replicas * number) == 0
        ]
        counts = list(_counts(cluster, sizes, devices, replicas, uneven))
        grids = [Grid(devices, replicas, blocks, number) for blocks in counts for number in numbers]
        if not grids:
            continue
        best = min(grids, key=lambda grid: estimate(cluster, sizes, grid))
        group = [best, *(g for g in grids if g.blocks == best.blocks)]
        group += [g for g in grids if g.microbatches == best.microbatches]
        result.append(list(dict.fromkeys(group)))
    return sorted(result, key=lambda group: estimate(cluster, sizes, group[0]))


def _counts(
    cluster: Cluster, sizes: Sizes, devices: tuple[int, ...], replicas: int, uneven: bool
) -> Iterator[tuple[int, ...]]:
    stages = len(devices) // replicas
    if not uneven:
        yield tuple(even(sizes.blocks, stages))
        return
    whole = speeds(cluster)
    relative = [
        min(whole[device] for device in devices[s * replicas : (s + 1) * replicas])
        for s in range(stages)
    ]
    yield from map(tuple, cuts(sizes.blocks, relative, sizes.head)[:MOST_CUTS])


def estimate(cluster: Cluster, sizes: Sizes, grid: Grid) -> float:
    """Returns the seconds of a step: a chain of calls, 1F1B, and the gradients at its end."""
    rows = sizes.rows / grid.replicas / grid.microbatches
    calls = [
        _call_seconds(cluster, sizes, grid, number, rows) for number in range(len(grid.blocks))
    ]
    edges = [
        max(
            _path_seconds(cluster, a, b, rows * sizes.row_bytes)
            for a, b in zip(grid.stage(number), grid.stage(number + 1), strict=True)
        )
        for number in range(len(grid.blocks) - 1)
    ]
    slowest = max([*calls, *edges])
    gradients = max(_sum_seconds(cluster, sizes, grid, s) for s in range(len(grid.blocks)))
    return sum(calls) + 2 * sum(edges) + (grid.microbatches - 1) * slowest + gradients


def _call_seconds(cluster: Cluster, sizes: Sizes, grid: Grid, number: int, rows: float) -> float:
    head = sizes.head if number == len(grid.blocks) - 1 else 0.0
    work = 6 * sizes.block_parameters * sizes.row_tokens * rows * (grid.blocks[number] + head)
    slowest = 0.0
    for device in grid.stage(number):
        kind = cluster.kind(device)
        rate = kind.sustained("f32")
        assert rate is not None  # the reader of cluster.yaml demands it
        begins = OPS_OF_A_BLOCK * grid.blocks[number] * kind.launch_latency
        slowest = max(slowest, work / rate + begins)
    return slowest


def _path_seconds(cluster: Cluster, source: int, target: int, amount: float) -> float:
    rates = dict(cluster.links)
    links, latency = cluster.path(source, target)
    return latency + amount / min(rates[link] for link in links)


def _sum_seconds(cluster: Cluster, sizes: Sizes, grid: Grid, number: int) -> float:
    """Returns the time of a ring over the replicas of a stage, in seconds."""
    ring, count = grid.stage(number), grid.replicas
    if count == 1:
        return 0.0
    amount = 4 * sizes.block_parameters * (grid.blocks[number] + sizes.head) * 2 * (count - 1)
    return max(
        _path_seconds(cluster, ring[i], ring[(i + 1) % count], amount / count) for i in range(count)
    )
