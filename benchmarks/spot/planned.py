"""What Medley's plans for some nodes of a cluster come to, by the simulator, kept in a file."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from benchmarks.spot.replay import Plan
from medley.cluster import load_cluster

_NO_PLAN = ": no plan fits: "  # what `medley plan` then says; other mistakes are ours


class Planned:
    """Plans for nodes by name. Nodes of a pool are alike: a plan is made for the first ones, of as
    many as are there."""

    def __init__(
        self, graph: Path, cluster: Path, global_batch: int, strategy: str, cache: Path | None
    ) -> None:
        self._graph, self._cluster, self._strategy = graph, cluster, strategy
        self._batch, self._cache = global_batch, cache
        machines = load_cluster(cluster)
        self._devices: dict[str, list[str]] = {}  # [node]
        for number, name in enumerate(machines.devices):
            self._devices.setdefault(machines.node(number), []).append(name)
        said = graph.read_bytes() + f"{machines.hash} {global_batch} {strategy}".encode()
        self._key = hashlib.sha256(said).hexdigest()
        self._found: dict[str, list[float]] = {}
        if cache is not None and cache.exists():
            self._found = json.loads(cache.read_text()).get(self._key, {})

    def __call__(self, nodes: frozenset[str]) -> Plan:
        """Returns what the plan for these nodes comes to. Raises ValueError for one that is not in
        the cluster."""
        unknown = sorted(nodes - set(self._devices))
        if unknown:
            raise ValueError(f"{self._cluster}: has no node {unknown[0]}, which the trace has")
        counts: dict[str, int] = {}
        for node in nodes:
            pool = node.rsplit("/", 1)[0]
            counts[pool] = counts.get(pool, 0) + 1
        if not counts:
            return Plan(0.0)
        key = " ".join(f"{pool}:{count}" for pool, count in sorted(counts.items()))
        if key not in self._found:
            chosen = [f"{pool}/{i}" for pool, count in sorted(counts.items()) for i in range(count)]
            self._found[key] = list(self._plan(chosen))
            self._save()
            print(f"{key}: {self._found[key][0]:.4g} rows/s", file=sys.stderr, flush=True)
        return Plan(*self._found[key])

    def _plan(self, nodes: Iterable[str]) -> tuple[float, float]:
        devices = ",".join(device for node in nodes for device in self._devices[node])
        with tempfile.TemporaryDirectory(prefix="medley-spot-") as folder:
            plan = Path(folder, "plan.json")
            files = (str(self._graph), str(self._cluster))
            made = _medley(
                *("plan", *files, "--strategy", self._strategy, "--devices", devices),
                *("--global-batch", str(self._batch), "-o", str(plan)),
            )
            if made.returncode != 0 and _NO_PLAN in made.stderr:
                return 0.0, 1.0
            _require(made)
            simulated = _medley("simulate", *files, str(plan), "--json")
            _require(simulated)
            return float(json.loads(simulated.stdout)["rows_per_second"]), copies(plan)

    def _save(self) -> None:
        if self._cache is None:
            return
        whole = json.loads(self._cache.read_text()) if self._cache.exists() else {}
        whole[self._key] = self._found
        self._cache.parent.mkdir(parents=True, exist_ok=True)
        self._cache.write_text(json.dumps(whole, indent=1, sort_keys=True))


def copies(plan: Path) -> float:
    """Returns how often the devices of a plan hold the state, as if its stages were equally large
    and every device held all of its stage."""
    pipelines = json.loads(plan.read_text())["pipelines"]
    return float(
        sum(
            sum(len(stage["mesh"]["devices"]) for stage in pipeline["stages"])
            / len(pipeline["stages"])
            for pipeline in pipelines
        )
    )


def _medley(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "medley", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _require(done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode != 0:
        raise OSError(f"{' '.join(done.args[2:])}: {done.stderr.strip()}")
