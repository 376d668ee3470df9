#!/bin/bash
# Trains on fixed nodes, one process per device of plan.json, and goes on after whatever ends it: a process that fails,
# a node that is lost, the time limit. Each start takes the newest checkpoint in $OUTPUT that is whole. Nodes of one
# kind share a line of the plan's cluster.yaml; process i drives device i of the plan.
#
#   sbatch --nodes 2 --ntasks-per-node 4 examples/slurm.sh medley_extras.models:gpt --data books --steps 10000
#
#SBATCH --job-name=medley
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before the limit all processes are told: they save, and leave with 130.
#SBATCH --signal=TERM@120
set -euo pipefail

PLAN=${PLAN:-plan.json}
CLUSTER=${CLUSTER:-cluster.yaml}
OUTPUT=${OUTPUT:-out} # every node has to see it
ATTEMPTS=${ATTEMPTS:-3} # in one allocation
STOPPED=130

MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PLAN CLUSTER OUTPUT MASTER_ADDR

# shellcheck disable=SC2016 # the variables are those of each process
START='export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS LOCAL_RANK=$SLURM_LOCALID
exec python -m medley train "$@" --plan "$PLAN" --cluster "$CLUSTER" --output "$OUTPUT" --resume'

# Where the shell is told to end, too, it waits for the others.
trap : TERM

code=1
for attempt in $(seq 1 "$ATTEMPTS"); do
  # Another port each time: the last store may still be on its way out.
  export MASTER_PORT=$((20000 + (SLURM_JOB_ID + attempt) % 20000))
  code=0
  # Who ends first leaves the others a minute: they end themselves, and save what was asked for.
  srun --kill-on-bad-exit=0 --wait=60 bash -c "$START" medley "$@" || code=$?
  if [ "$code" -eq 0 ]; then
    exit 0
  fi
  if [ "$code" -eq "$STOPPED" ]; then
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
  fi
  echo "attempt $attempt of $ATTEMPTS ended with $code" >&2
done
exit "$code"
