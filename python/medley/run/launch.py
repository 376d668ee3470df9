"""`medley launch`: one process per device of a plan on this machine, watched until all are gone.

The processes find everything in the environment (medley/run/job.py). The store through which they
meet lives here, so that it outlives any of them.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from medley import _core, _runtime
from medley.cluster import Cluster, load_cluster
from medley.plan import Plan
from medley.run import job
from medley.run.leader import ElasticSupervisor
from medley.run.supervisor import Supervisor

_ATTEMPTS = 20  # to find a port
ELASTIC_DEAD_AFTER = 2.0  # seconds: where the others go on, to wait is all that it costs


def _environment(rank: int, names: Sequence[str], port: int) -> dict[str, str]:
    size = len(names)
    threads = max(1, len(os.sched_getaffinity(0)) // size)
    return {
        "OMP_NUM_THREADS": str(threads),
        "PYTHONUNBUFFERED": "1",
        **os.environ,
        "MEDLEY_DEVICE": names[rank],
        "TORCHELASTIC_RESTART_COUNT": "0",
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the store is ours, not rank 0's
    }


def serve_store(prefix: str = "", timeout_ms: int = 60_000) -> tuple[_runtime.Store, int]:
    """Serves a store on the loopback, and returns it with its port."""
    for attempt in range(_ATTEMPTS):
        port = free_port()
        try:
            return _runtime.c10d_store("127.0.0.1", port, True, prefix, timeout_ms), port
        except OSError as error:  # somebody else was faster
            if attempt + 1 == _ATTEMPTS or "in use" not in str(error):
                raise
    raise AssertionError


def free_port() -> int:
    """Returns a port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def supervise(
    command: Sequence[str],
    names: Sequence[str],
    values: Mapping[str, str],
    files: Sequence[int] = (),
    elastic: Mapping[str, Any] | None = None,
) -> int:
    """Runs `command` once per device, with `values` in its environment and `files` open; `elastic`:
    the options of an ElasticSupervisor.

    Returns the exit code."""
    store, port = serve_store()
    with job.environment(values):
        environments = [_environment(rank, names, port) for rank in range(len(names))]
    # The part of the keys that the processes of a job without restarts have (job.store_address()).
    own = _runtime.c10d_store("127.0.0.1", port, False, "medley/0/")
    if elastic is None:
        code = Supervisor(command, names, environments, own, files).run()
    else:
        code = ElasticSupervisor(command, names, environments, own, **elastic).run()
    del own, store
    return code


def launch(
    plan_path: str,
    script: str,
    arguments: Sequence[str] = (),
    emulate: str | None = None,
    dead_after: float | None = None,
    elastic: Mapping[str, Any] | None = None,
    **settings: float,
) -> int:
    """Runs a script once per device of a plan; returns the exit code.

    The script `train`, where no such file is, stands for the verb: `medley train ARGUMENTS`.
    `emulate` names a cluster.yaml whose times, links and memory take the place of this machine's;
    `settings` are those of `job.emulated()`. A process that gives no sign of life for `dead_after`
    seconds ends the run; with `elastic` (the options of an ElasticSupervisor) it is lost, and the
    others go on.
    """
    plan = Plan.load(plan_path)
    command = [script]
    if script == "train" and not os.path.exists(script):
        command = ["-m", "medley", "train"]
    elif not os.path.isfile(script):
        raise ValueError(f"{script}: cannot be read: no such file")
    values = {"MEDLEY_PLAN": os.path.abspath(plan_path)}
    if elastic is not None:
        _check_elastic(command, emulate)
        values["MEDLEY_ELASTIC"] = "1"
        dead_after = ELASTIC_DEAD_AFTER if dead_after is None else dead_after
    if dead_after is not None:
        job.check_dead_after(dead_after, "--dead-after")
        values["MEDLEY_DEAD_AFTER"] = str(dead_after)
    files = []
    with contextlib.ExitStack() as stack:
        if emulate is not None:
            cluster = load_cluster(emulate)
            for name in plan.devices:
                if cluster.find(name) is None:
                    raise ValueError(
                        f"{emulate}: found no device {name}, expected those of the plan"
                    )
            files.append(stack.enter_context(_ledger(cluster)))
            ledger = f"/proc/self/fd/{files[0]}"
            values["MEDLEY_EMULATION"] = json.dumps({**settings, "ledger": ledger})
        interpreter = [sys.executable, "-u", *command, *arguments]
        return supervise(interpreter, plan.devices, values, files, elastic)


def _check_elastic(command: Sequence[str], emulate: str | None) -> None:
    if emulate is not None:
        raise ValueError("--elastic: found also --emulate, expected one of them")
    if command[0] == "-m":
        raise ValueError("--elastic: found the verb train, expected a script")


@contextlib.contextmanager
def _ledger(cluster: Cluster) -> Iterator[int]:
    """The virtual clock that the processes share: an open file that has no name, so that nothing of
    it stays whatever kills them."""
    # In memory where there is such a file system.
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="medley-", dir=where) as folder:
        path = os.path.join(folder, "ledger")
        made = _core.EmulatedLedger(cluster, path)
        file = os.open(path, os.O_RDWR)
        made.close()
    try:
        yield file
    finally:
        os.close(file)
