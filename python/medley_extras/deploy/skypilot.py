"""A SkyPilot job group: a document for each group of nodes, which start and recover together.

A plan with one group is a plain managed job. Lost machines are replaced; a run that SIGTERM stops
leaves with 130, or 143 with --elastic, and is started again.
"""

from __future__ import annotations

import re
from typing import Any

from medley_extras.deploy.documents import dump
from medley_extras.deploy.job import STOPPED, Group, Job

# GPUs that SkyPilot names with their memory, because another size has the plain name.
_WITH_MEMORY = ("A100-80GB", "V100-32GB")


def text(job: Job) -> str:
    """Returns the documents."""
    tasks = [_task(job, group) for group in job.groups]
    header = {"name": job.name, "execution": "parallel"}
    head = "# Start: sky jobs launch FILE\n"
    return head + dump([header, *tasks] if len(tasks) > 1 else [{**tasks[0], "name": job.name}])


def _task(job: Job, group: Group) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if group.gpus:
        resources["accelerators"] = f"{accelerator(group.gpu)}:{group.gpus}"
    if job.cpus:
        resources["cpus"] = f"{job.cpus * group.devices}+"
    if job.memory:
        resources["memory"] = re.sub(r"(?i)gi?b?$", "", job.memory) + "+"
    if group.preemptible:
        resources["use_spot"] = True
    if job.image:
        resources["image_id"] = f"docker:{job.image}"
    resources["job_recovery"] = {
        "max_restarts_on_errors": job.restarts,
        "recover_on_exit_codes": list(STOPPED),
    }
    resources |= {key: _value(value) for key, value in group.select.items()}
    if job.storage and "://" in job.storage:
        storage = {"source": job.storage, "mode": "MOUNT_CACHED"}
    else:
        storage = {"name": job.storage or f"{job.name}-checkpoints", "mode": "MOUNT_CACHED"}
    first = job.groups[0].name
    host = '$(echo "$SKYPILOT_NODE_IPS" | head -n 1)'
    if len(job.groups) > 1:
        host = f"{first}-0.{job.name}"  # as job groups name machines
    place = f'--node "$SKYPILOT_NODE_RANK" --first {group.first}'
    return {
        "name": group.name,
        "num_nodes": len(group.nodes),
        "resources": resources,
        "workdir": ".",
        "file_mounts": {job.checkpoints: storage},
        "envs": {"PLAN": job.plan, "MEDLEY_CHECKPOINTS": job.checkpoints},
        "run": f'export MEET="{host}:{job.port}"\n{job.starter(place)} {job.command}\n',
    }


def accelerator(gpu: str) -> str:
    """Returns the name that SkyPilot has for a GPU of the catalogue."""
    if gpu in _WITH_MEMORY:
        return gpu
    return re.sub(r"(-PCIe|-NVL|-SXM\d?)?-\d+GB$", "", gpu)


def _value(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)
