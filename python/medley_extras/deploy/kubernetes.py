"""Kubernetes objects: an indexed Job for each group of nodes, a pod for each node.

A headless Service gives pods names, a ConfigMap has the plan and its cluster. When a process fails
its pod starts it again: in an elastic run it joins the others, else all start again and resume from
the newest checkpoint.
"""

from __future__ import annotations

from typing import Any

from medley_extras.deploy.documents import dump
from medley_extras.deploy.job import Group, Job

STARTS = 100  # of each Job: every failure of a process counts
MOST_BYTES = 1_000_000  # of a ConfigMap
LABEL = "medley/node"  # of machines, for a pool, if the plan has several


def text(job: Job) -> str:
    """Returns the documents."""
    if job.image is None:
        raise ValueError(
            "--image: missing (got no image, expected one with Medley and the script). "
            "Add --image NAME:TAG."
        )
    size = len(job.plan_text.encode()) + len(job.cluster_text.encode())
    if size > MOST_BYTES:
        raise ValueError(
            f"{job.plan}: too large for a ConfigMap (got {size} bytes with {job.cluster}, expected "
            f"at most {MOST_BYTES}). Use another platform."
        )
    plan: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{job.name}-plan", "labels": _labels(job)},
        "data": {"plan.json": job.plan_text, "cluster.yaml": job.cluster_text},
    }
    service: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": job.name, "labels": _labels(job)},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": _labels(job),
            "ports": [{"name": "store", "port": job.port}],
        },
    }
    head = "# Apply: kubectl apply -f FILE"
    if job.has_several_pools:
        head += f"\n# Label the machines of each pool first: kubectl label node NAME {LABEL}=POOL"
    return f"{head}\n" + dump([plan, service, *(_job(job, group) for group in job.groups)])


def _labels(job: Job) -> dict[str, str]:
    return {"app.kubernetes.io/name": "medley", "app.kubernetes.io/instance": job.name}


def _job(job: Job, group: Group) -> dict[str, Any]:
    limit = {} if job.time is None else {"activeDeadlineSeconds": job.time}
    nodes = len(group.nodes)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": f"{job.name}-{group.name}", "labels": _labels(job)},
        "spec": {
            "completionMode": "Indexed",
            "completions": nodes,
            "parallelism": nodes,
            "backoffLimit": STARTS,
            **limit,
            "template": {"metadata": {"labels": _labels(job)}, "spec": _pod(job, group)},
        },
    }


def _pod(job: Job, group: Group) -> dict[str, Any]:
    select = dict(group.select) or ({LABEL: group.pool} if job.has_several_pools else {})
    # One pod on a machine, as the plan has one node there.
    apart = {
        "labelSelector": {"matchLabels": _labels(job)},
        "topologyKey": "kubernetes.io/hostname",
    }
    mounts: list[dict[str, Any]] = [
        {"name": "plan", "mountPath": "/plan", "readOnly": True},
        {"name": "checkpoints", "mountPath": job.checkpoints},
    ]
    claim = job.storage or f"{job.name}-checkpoints"
    volumes: list[dict[str, Any]] = [
        {"name": "plan", "configMap": {"name": f"{job.name}-plan"}},
        {"name": "checkpoints", "persistentVolumeClaim": {"claimName": claim}},
    ]
    if group.gpus > 1:  # NCCL sends through shared memory, of which a pod has 64 MiB otherwise
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})
        volumes.append({"name": "shared-memory", "emptyDir": {"medium": "Memory"}})
    place = f'--node "$JOB_COMPLETION_INDEX" --first {group.first}'
    container = {
        "name": "medley",
        "image": job.image,
        "command": ["/bin/sh", "-c"],
        "args": [f"exec {job.starter(place)} {job.command}"],
        "env": [
            {"name": "PLAN", "value": "/plan/plan.json"},
            {"name": "MEET", "value": f"{job.name}-{job.groups[0].name}-0.{job.name}:{job.port}"},
            {"name": "MEDLEY_CHECKPOINTS", "value": job.checkpoints},
        ],
        "resources": _resources(job, group),
        "volumeMounts": mounts,
    }
    return {
        "subdomain": job.name,
        "restartPolicy": "OnFailure",
        "terminationGracePeriodSeconds": job.notice,
        **({"nodeSelector": select} if select else {}),
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
        },
        "containers": [container],
        "volumes": volumes,
    }


def _resources(job: Job, group: Group) -> dict[str, Any]:
    requests: dict[str, str] = {}
    limits: dict[str, str] = {}
    if job.cpus:
        requests["cpu"] = str(job.cpus * group.devices)
    if job.memory:
        requests["memory"] = limits["memory"] = job.memory
    if group.gpus:
        vendor = "amd.com" if group.gpu.startswith("MI") else "nvidia.com"
        limits[f"{vendor}/gpu"] = str(group.gpus)
    found = {"requests": requests, "limits": limits}
    return {name: values for name, values in found.items() if values}
