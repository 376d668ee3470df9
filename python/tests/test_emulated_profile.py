"""Emulation that takes the times of ops from a profile instead of from its own truth."""

from __future__ import annotations

from pathlib import Path

import medley
from medley.cluster import parse_cluster
from medley.profiling.profiler import Profiler, Truth, wanted_ops
from medley.run import job
from medley_extras import models

CLUSTER = """
format: medley-cluster
version: 1
nodes:
  - {name: a, count: 1, device: CPU, devices_per_node: 1}
  - {name: b, count: 1, device: half, devices_per_node: 1}
networks:
  - {name: lan, connects: [a, b], bandwidth: 1 Gbit/s, latency: 50 us}
devices:
  half: {based_on: CPU, speed: 0.5}
"""


# A profile of all ops of the plan equals the truth.
def test_a_profile_of_devices_makes_the_steps_that_they_make(tmp_path: Path) -> None:
    truth = Truth(seed=3, spread=0.3)
    cluster = parse_cluster(CLUSTER)
    model, batch = models.mlp(batch=12)
    graph = medley.capture(model, batch)
    plan = medley.plan(graph, cluster, "data-parallel-proportional", global_batch=12)
    file = tmp_path / "profile.json"
    wanted = wanted_ops([graph], cluster, [plan], grid=False)
    outcome = Profiler(wanted, cluster, file, truth).run(None, lambda what, done, of: None)
    assert not outcome.failed

    def seconds(**settings: object) -> float:
        with job.emulated(**settings):
            trainer = medley.Trainer(model, graph, plan, local=True)
        return [trainer.step(batch).step_seconds for _ in range(2)][-1]

    true = seconds(truth_seed=truth.seed, truth_spread=truth.spread)
    assert seconds(profile=str(file)) == true
    assert seconds() != true
