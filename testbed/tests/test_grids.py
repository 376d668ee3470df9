"""The pipeline grids to try and their order. Needs neither root nor PyTorch."""

from __future__ import annotations

import pytest

from medley.cluster import parse_cluster
from testbed import grids
from testbed.tests.clusters import FOUR

pytestmark = pytest.mark.testbed

# A block computes 6 x 1000 x 100 flop per row, the head as much as half of one.
SIZES = grids.Sizes(
    rows=12,
    blocks=8,
    block_parameters=1000,
    head_parameters=500,
    row_tokens=100,
    row_bytes=12_500,
)
EXACT = """
format: medley-cluster
version: 1
nodes:
  - {name: fast, count: 1, device: quick, devices_per_node: 2}
  - {name: slow, count: 2, device: half, devices_per_node: 1}
networks:
  - {name: bus, inside: node, bandwidth: 125 MB/s, latency: 0 us}
  - {name: lan, connects: [fast, slow], bandwidth: 12.5 MB/s, latency: 0 us}
devices:
  quick:
    sustained: {f32: 600 Mflop/s}
    memory: 1 GiB
    memory_bandwidth: 1 GB/s
    launch_latency: 0 us
  half: {based_on: quick, speed: 0.5}
"""


def test_even_cuts_give_the_first_ones_more() -> None:
    assert grids.even(5, 2) == [3, 2]
    assert grids.even(8, 4) == [2, 2, 2, 2]


# The slowest stage of 3 3 1 1 takes 3 on devices of speed 2:2:1:1, that of 2 2 2 2 takes 4 (here in
# halves). A head of two blocks takes one block from the last of two equal stages.
def test_uneven_cuts_fit_the_speeds() -> None:
    cuts = grids.cuts(8, [1.0, 1.0, 0.5, 0.5])
    assert cuts[0] == [3, 3, 1, 1]
    assert [2, 2, 2, 2] not in cuts
    assert len(cuts) == 34  # 7 over 3, less the even one
    assert grids.cuts(4, [1.0, 1.0], head=2.0)[0] == [3, 1]


def test_devices_are_all_or_the_fastest_in_both_orders() -> None:
    cluster = parse_cluster(FOUR)
    assert grids.orders(cluster, 1) == [
        *((0, 1, 2, 3), (2, 3, 0, 1)),  # all types
        (0, 1),  # the fast ones, which are identical
    ]
    # Neighbours are the replicas of a stage, or the stages of a replica.
    assert (0, 1, 2, 3) in grids.orders(cluster, 2)
    assert (0, 2, 1, 3) in grids.orders(cluster, 2)


def test_all_grids_of_all_numbers_of_replicas_are_there() -> None:
    cluster = parse_cluster(FOUR)
    seen = {
        (len(group[0].devices), replicas, len(group[0].blocks))
        for replicas in range(1, 5)
        for group in grids.choices(cluster, SIZES, replicas, uneven=False)
    }
    assert seen == {(4, 1, 4), (2, 1, 2), (4, 2, 2), (2, 2, 1), (4, 4, 1)}


def test_a_list_begins_with_its_best_and_has_the_other_micro_batches_and_cuts() -> None:
    cluster = parse_cluster(EXACT)
    for group in grids.choices(cluster, SIZES, 1, uneven=True):
        first, *others = group
        best = grids.estimate(cluster, SIZES, first)
        assert all(grids.estimate(cluster, SIZES, grid) >= best for grid in others)
        assert {grid.microbatches for grid in group} == {
            number for number in (2, 3, 4, 6, 12) if number >= len(first.blocks)
        }
        assert len({grid.blocks for grid in group}) > 1
        assert len(set(group)) == len(group)


# Two stages on different devices, 1 and 2 ms per block and row: by hand.
def test_the_estimate_is_the_time_of_1f1b() -> None:
    cluster = parse_cluster(EXACT)
    grid = grids.Grid(devices=(0, 2), replicas=1, blocks=(6, 2), microbatches=4)
    first, last, edge = 3 * 6 * 1e-3, 3 * 2.5 * 2e-3, 3 * 12_500 / 12.5e6
    expected = first + last + 2 * edge + 3 * first
    assert grids.estimate(cluster, SIZES, grid) == pytest.approx(expected)


# A ring of two on a bus: each sends half of the gradients twice, and waits for a slow replica.
def test_replicas_add_their_gradients_and_wait_for_the_slowest() -> None:
    cluster = parse_cluster(EXACT)
    identical = grids.Grid(devices=(0, 1), replicas=2, blocks=(8,), microbatches=1)
    gradients = 4 * 1000 * 8.5
    assert grids.estimate(cluster, SIZES, identical) == pytest.approx(
        6 * 8.5e-3 + 2 * gradients / 2 / 125e6
    )
    unlike = grids.Grid(devices=(0, 2), replicas=2, blocks=(8,), microbatches=1)
    assert grids.estimate(cluster, SIZES, unlike) == pytest.approx(
        6 * 8.5 * 2e-3 + 2 * gradients / 2 / 12.5e6
    )
