"""A Slurm batch script: one component of a heterogeneous job for each group of nodes.

Without --elastic `srun` starts one task for each device, with it one for each node. A run that
SIGTERM stops (`--signal`, preemption) leaves with 130, or 143 with --elastic, and is queued again.
"""

from __future__ import annotations

import shlex

from medley_extras.deploy.job import STOPPED, Group, Job

ATTEMPTS = 3  # in one allocation
DEFAULT_TIME = 4 * 3600


def text(job: Job) -> str:
    """Returns the script."""
    several = len(job.groups) > 1
    components = "\n#SBATCH hetjob\n".join(_component(job, group) for group in job.groups)
    nodes = "$SLURM_JOB_NODELIST_HET_GROUP_0" if several else "$SLURM_JOB_NODELIST"
    het = f" --het-group=0-{len(job.groups) - 1}" if several else ""
    kept = " --no-kill" if job.elastic else ""
    image = f" --container-image={job.image}" if job.image else ""
    stopped = " || ".join(f'[ "$code" -eq {code} ]' for code in STOPPED)
    place = '--node "$SLURM_PROCID"' if job.elastic else '--task "$SLURM_PROCID"'
    return f"""#!/bin/bash
# Trains {job.plan} on {job.processes} devices. Submit: sbatch FILE
# Each start resumes from the newest complete checkpoint, if the command does.
{components}
set -euo pipefail

export PLAN={shlex.quote(job.plan)}
export MEDLEY_CHECKPOINTS={shlex.quote(job.checkpoints)} # every node has to see this folder
HOST=$(scontrol show hostnames "{nodes}" | head -n 1)

# The signal before the time limit also reaches this shell, which waits for the tasks.
trap : TERM

code=1
for attempt in $(seq 1 {ATTEMPTS}); do
  # Each attempt has a port of its own, because the store of the last one may still listen.
  export MEET=$HOST:$((20000 + (SLURM_JOB_ID + attempt) % 20000))
  code=0
  # shellcheck disable=SC2016 # the variables are those of each task
  srun{het}{kept}{image} --kill-on-bad-exit=0 --wait=60 \\
    bash -c 'exec {job.starter(place)} "$@"' medley \\
    {job.command} || code=$?
  if [ "$code" -eq 0 ]; then
    exit 0
  fi
  if {stopped}; then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
  fi
  echo "attempt $attempt of {ATTEMPTS} ended with $code" >&2
done
exit "$code"
"""


def _component(job: Job, group: Group) -> str:
    nodes = len(group.nodes)
    count = f"{nodes} node{'s' if nodes > 1 else ''}, {group.devices} x {group.kind} each"
    options = {
        "job-name": job.name,
        "nodes": str(nodes),
        "ntasks-per-node": "1" if job.elastic else str(group.devices),
        "distribution": "block",
        "exclusive": "",
        "time": _clock(job.time or DEFAULT_TIME),
        "signal": f"TERM@{job.notice}",
        "requeue": "",
        "open-mode": "append",
    }
    if job.elastic:
        options["no-kill"] = ""  # the loss of a node does not end the job
    if group.gpus:
        options["gres"] = f"gpu:{group.gpus}"
    if job.cpus:
        options["cpus-per-task"] = str(job.cpus * (group.devices if job.elastic else 1))
    if job.memory:
        options["mem"] = job.memory
    if job.has_several_pools and not group.select:
        options["constraint"] = group.pool
    options |= group.select
    lines = [
        f"#SBATCH --{name}" + (f"={value}" if value else "") for name, value in options.items()
    ]
    return "\n".join([f"# {group.pool}: {count}.", *lines])


def _clock(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:02}:{minutes:02}:{rest:02}"
