"""Which accelerator of this machine stands for which device of the plan."""

from __future__ import annotations

from typing import Any

import torch

from medley.cluster import Cluster
from medley.job import Job
from medley.plan import Plan


def options(plan: Plan, cluster: Cluster, job: Job | None) -> dict[str, Any]:
    """Returns the options of `_runtime.Run` that say where the devices of this process are.

    Raises ValueError if the job has another number of processes than the plan has devices.
    """
    names = plan.devices
    kinds = {cluster.kind(cluster.find(name)).name for name in names}
    if job is None:
        return {"torch_devices": _torch_devices(kinds, range(len(names)))}
    if job.size != len(names):
        raise ValueError(
            f"world size: found {job.size} processes, expected {len(names)}: one for each device "
            f"of the plan ({', '.join(names)})"
        )
    return {"own": [job.rank], "torch_devices": _torch_devices(kinds, [job.local_rank])}


def _torch_devices(kinds: set[str], numbers: Any) -> list[str]:
    """A cluster of CPUs runs on CPUs; for any other the GPUs of this machine are taken, if any."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0 or kinds == {"CPU"}:
        return ["cpu"]
    return [f"cuda:{number % count}" for number in numbers]
