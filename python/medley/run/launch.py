"""`medley launch`: one process per device of a plan on this machine, supervised until all end. The
processes find all settings in the environment (medley/run/job.py). Their store is served here, and
outlives each of them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from medley import _runtime
from medley.cluster import load_cluster
from medley.plan import Plan
from medley.run import job, ledger
from medley.run.leader import ElasticSupervisor
from medley.run.nodes import Node, NodeSupervisor, nodes_of
from medley.run.patience import Patience, say
from medley.run.supervisor import Start, Supervisor

LOOPBACK = "127.0.0.1"
MEET_SECONDS = 600.0  # that a node waits for the first one
_ATTEMPTS = 20  # to find a port
# The prefix of keys of a job without restarts (job.store_address()).
_KEYS = "medley/0/"
ELASTIC_HEARTBEAT_TIMEOUT = 2.0  # seconds: a false alarm of an elastic run costs only time


class Elastic(NamedTuple):
    """The settings of an elastic run: options of `medley launch --elastic`. Times in seconds."""

    log: str = "elastic.jsonl"
    max_restarts: int = 0
    rdzv_endpoint: str | None = None
    node_rank: int = 0
    settle: float = 600.0
    replicate_every: int | None = None  # steps; None: chosen by cost, 0: never


class Place(NamedTuple):
    """Starts the processes of a run: the function, and the address of the store."""

    start: Start | None = None  # None: they are children of this process
    host: str = LOOPBACK


def _environments(
    names: Sequence[str], here: Sequence[str], host: str, port: int
) -> dict[str, dict[str, str]]:
    """Returns the environment of each process of this node, by device. `names`: all devices."""
    threads = max(1, len(os.sched_getaffinity(0)) // len(here))
    return {
        name: {
            "OMP_NUM_THREADS": str(threads),
            "PYTHONUNBUFFERED": "1",
            **os.environ,
            "MEDLEY_DEVICE": name,
            "TORCHELASTIC_RESTART_COUNT": "0",
            "RANK": str(names.index(name)),
            "LOCAL_RANK": str(local),
            "WORLD_SIZE": str(len(names)),
            "LOCAL_WORLD_SIZE": str(len(here)),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is ours, not rank 0's
        }
        for local, name in enumerate(here)
    }


def serve_store(
    prefix: str = "", timeout_ms: int = 60_000, host: str = LOOPBACK
) -> tuple[_runtime.Store, int]:
    """Serves a store at an address of this machine. Returns the store and its port."""
    for attempt in range(_ATTEMPTS):
        port = free_port()
        try:
            return _runtime.c10d_store(host, port, True, prefix, timeout_ms), port
        except OSError as error:  # another process was faster
            if attempt + 1 == _ATTEMPTS or "in use" not in str(error):
                raise
    raise AssertionError


def free_port() -> int:
    """Returns a free port of the loopback."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def supervise(
    command: Sequence[str],
    names: Sequence[str],
    values: Mapping[str, str],
    files: Sequence[int] = (),
    elastic: Elastic | None = None,
    place: Place | None = None,
) -> int:
    """Runs `command` once per device, with `values` in its environment and `files` open. Returns
    the exit code. `place`: where the processes run, if not on this machine."""
    if elastic is not None:
        return _supervise_elastic(command, names, values, place or Place(), elastic)
    start, host = place or Place()
    store, port = serve_store(host=host)
    with job.environment(values):
        environments = _environments(names, names, host, port)
    own = _runtime.c10d_store(host, port, False, _KEYS)
    code = Supervisor(command, names, list(environments.values()), own, files, start).run()
    del own, store
    return code


def _supervise_elastic(
    command: Sequence[str],
    names: Sequence[str],
    values: Mapping[str, str],
    place: Place,
    elastic: Elastic,
) -> int:
    rdzv_endpoint, node_rank = elastic.rdzv_endpoint, elastic.node_rank
    nodes = nodes_of(names) if rdzv_endpoint is not None else [list(names)]
    if not 0 <= node_rank < len(nodes):
        fewer = f"less than {len(nodes)}, the plan's nodes"
        expected = "also --rdzv-endpoint" if rdzv_endpoint is None else fewer
        raise ValueError(f"--node-rank: found {node_rank}, expected {expected}")
    host, port = (place.host, 0) if rdzv_endpoint is None else _address(rdzv_endpoint)
    if node_rank > 0:
        _wait_for_leader(host, port)
        store = None
    elif rdzv_endpoint is None:
        store, port = serve_store(host=host)
    else:
        store = _runtime.c10d_store(host, port, True)
    with job.environment(values):
        environments = _environments(names, nodes[node_rank], host, port)
    own = _runtime.c10d_store(host, port, False, _KEYS)
    supervisor: Supervisor
    if node_rank > 0:
        supervisor = NodeSupervisor(command, environments, own, node_rank, elastic.max_restarts)
    else:
        others = [Node(own, rank, devices) for rank, devices in enumerate(nodes) if rank > 0]
        supervisor = ElasticSupervisor(
            command,
            names,
            environments,
            own,
            log=elastic.log,
            max_restarts=elastic.max_restarts,
            others=others,
            settle=elastic.settle,
            start=place.start,
        )
    code = supervisor.run()
    del supervisor, own, store
    return code


def _address(rdzv_endpoint: str) -> tuple[str, int]:
    host, _, port = rdzv_endpoint.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(
            f"--rdzv-endpoint: found {rdzv_endpoint}, expected HOST:PORT of the first node"
        )
    return host, int(port)


def _wait_for_leader(host: str, port: int) -> None:
    """Waits until the leader listens. Raises OSError after the time limit."""
    patience = Patience(MEET_SECONDS)
    while True:
        try:
            return socket.create_connection((host, port), timeout=5).close()
        except socket.gaierror as error:
            raise OSError(f"--rdzv-endpoint: found {host}: {error.strerror}") from None
        except OSError:
            if patience.is_over:
                raise OSError(
                    f"--rdzv-endpoint: the first node has not listened at {host}:{port} within "
                    f"{MEET_SECONDS:g} s"
                ) from None
        if patience.should_say():
            say(f"waiting for the first node to listen at {host}:{port}, up to {MEET_SECONDS:g} s")
        patience.pause()


def launch(
    plan_path: str,
    script: str,
    arguments: Sequence[str] = (),
    emulate: str | None = None,
    heartbeat_timeout: float | None = None,
    elastic: Elastic | None = None,
    place: Place | None = None,
    metrics: str | None = None,
    tune: str = "auto",
    remember: bool = True,
    **settings: float,
) -> int:
    """Runs a script once per device of a plan. Returns the exit code. The script `train` stands for
    `medley train ARGUMENTS` unless such a file exists. `emulate` names a cluster.yaml whose times,
    links and memory replace this machine's; `settings` are those of `job.emulated()`. A process
    without a heartbeat for `heartbeat_timeout` seconds ends the run, or with `elastic`, the others
    continue. `place`: where the processes run, if not on this machine. `metrics`: HOST:PORT of
    the first process for metrics. `tune` and `remember`: see `Trainer`."""
    plan = Plan.load(plan_path)
    command = [script]
    if script == "train" and not os.path.exists(script):
        command = ["-m", "medley", "train"]
    elif not os.path.isfile(script):
        raise ValueError(f"{script}: cannot be read: no such file")
    values = {"MEDLEY_PLAN": os.path.abspath(plan_path)}
    job.tune_steps(tune)  # refuses another text
    values |= {"MEDLEY_TUNE": tune} | ({} if remember else {"MEDLEY_NO_MEMORY": "1"})
    if metrics is not None:
        values["MEDLEY_METRICS"] = metrics
    if elastic is not None:
        if emulate is not None:
            raise ValueError("--elastic: found also --emulate, expected one of them")
        values["MEDLEY_ELASTIC"] = "1"
        if elastic.max_restarts < 0:
            raise ValueError(f"--max-restarts: found {elastic.max_restarts}, expected 0 or more")
        if not elastic.settle > 0:
            raise ValueError(f"--settle: found {elastic.settle:g}, expected more than 0")
        values["MEDLEY_SETTLE"] = str(elastic.settle)
        if (every := elastic.replicate_every) is not None and every < 0:
            raise ValueError(f"--replicate-every: found {every}, expected 0 or more")
        values["MEDLEY_REPLICATE_EVERY"] = "never" if every == 0 else str(every or 0)
        if heartbeat_timeout is None:
            heartbeat_timeout = ELASTIC_HEARTBEAT_TIMEOUT
    if heartbeat_timeout is not None:
        job.check_heartbeat_timeout(heartbeat_timeout, "--heartbeat-timeout")
        values["MEDLEY_HEARTBEAT_TIMEOUT"] = str(heartbeat_timeout)
    files = []
    with contextlib.ExitStack() as stack:
        if emulate is not None:
            cluster = load_cluster(emulate)
            for name in plan.devices:
                if cluster.find(name) is None:
                    raise ValueError(
                        f"{emulate}: found no device {name}, expected those of the plan"
                    )
            files.append(ledger.opened(cluster))
            stack.callback(os.close, files[0])
            clock = f"/proc/self/fd/{files[0]}"
            values["MEDLEY_EMULATION"] = json.dumps({**settings, "ledger": clock})
        interpreter = [sys.executable, "-u", *command, *arguments]
        return supervise(interpreter, plan.devices, values, files, elastic, place)
