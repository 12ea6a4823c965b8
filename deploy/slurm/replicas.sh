#!/bin/sh
# Replicas of one model on the nodes of a Slurm job, one on each node: docs/scale-replicas.md.
#
#     sbatch --nodes=4 replicas.sh MODEL --api-key-file KEYS [options of quern serve]
#
# Writes replicas.cfg for HAProxy, into the folder that sbatch was called in (QUERN_LIST: elsewhere). QUERN_PORT is the
# port of the replicas. To stop, so that answers may end: scancel --batch --signal=TERM JOB. Plain scancel leaves them
# KillWait seconds of Slurm's, 30 where nobody changed it.
#SBATCH --job-name=quern-replicas
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=quern-replicas-%j.log
# Before the job's time is over: more than --grace below.
#SBATCH --signal=B:TERM@180
set -eu
[ $# -gt 0 ] || { echo "usage: sbatch [options of sbatch] replicas.sh MODEL [options of quern serve]"; exit 2; }
: "${SLURM_JOB_NODELIST:?this is for sbatch}"
port=${QUERN_PORT:-8080}
list=${QUERN_LIST:-replicas.cfg}

{
    echo "backend replicas"
    number=0
    for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
        number=$((number + 1))
        echo "    server r$number $node:$port id $number"
    done
} >"$list.new"
mv "$list.new" "$list"
cat "$list"

# A replica that falls over is started again, and does not end the others. TERM is for the servers, whose exit code is
# then 0; the shells around them wait for that.
# shellcheck disable=SC2016
srun --kill-on-bad-exit=0 --wait=0 sh -c '
    trap : TERM
    until "$@"; do
        echo "$(hostname): the replica ended with exit code $?, and starts again"
        sleep 5
    done' replica quern serve "$@" --host 0.0.0.0 --port "$port" --metrics --log-format json --grace 120 &
step=$!
trap 'scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM # to its processes; srun itself would kill them
while kill -0 $step 2>/dev/null; do
    wait $step || true # a signal ends it, too
done
