"""A Python driver for Ray: a placement group for each group of nodes, an actor for each device."""

from __future__ import annotations

from pprint import pformat

from medley_extras.deploy.job import Group, Job

_SHARE = 0.001  # of a resource that has the name of a pool: one machine has 1


def text(job: Job) -> str:
    """Returns the driver."""
    places = [
        {
            "name": group.name,
            "nodes": [node.devices for node in group.nodes],
            "resources": resources(job, group),  # of each device
        }
        for group in job.groups
    ]
    shown = pformat(places, width=92, sort_dicts=False).replace("\n", "\n" + " " * 11)
    head = f"# Trains {job.plan} on {job.processes} devices. Submit:\n" + (
        "#   ray job submit --working-dir . --runtime-env-json "
        f'\'{{"env_vars": {{"RAY_JOB_STOP_WAIT_TIME_S": "{job.notice}"}}}}\' -- python FILE\n'
    )
    if job.has_several_pools:
        head += "# Start the machines of each pool with: ray start --resources '{\"POOL\": 1}'\n"
    return f"""{head}import sys

from medley_extras.deploy.ray_run import run

sys.exit(
    run(
        plan={job.plan!r},
        words={job.words!r},
        groups={shown},
        checkpoints={job.checkpoints!r},
        elastic={job.elastic},
        restarts={job.restarts},
    )
)
"""


def resources(job: Job, group: Group) -> dict[str, float]:
    """Returns the resources of the actor of one device."""
    found: dict[str, float] = {"CPU": job.cpus or 1}
    if group.gpus:
        found["GPU"] = 1
    if group.select:
        for name, amount in group.select.items():
            found[name] = _number(name, amount)
    elif job.has_several_pools:
        found[group.pool] = _SHARE
    return found


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(
            f"--node: not an amount of {name} (got {text!r}, expected a number). "
            f"Write POOL:{name}=0.001."
        ) from None
