#!/bin/sh
# One model over the nodes of a Slurm job, for one that does not fit on a node: docs/scale.md.
#
#     sbatch --nodes=2 model.sh MODEL --split tensors --api-key-file KEYS [options of quern serve]
#
# The first node takes the requests. Several such jobs are replicas like any others: the line that this prints is for
# the balancer's replicas.cfg, with a number of its own in QUERN_ID.
#SBATCH --job-name=quern-model
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --mem=0
#SBATCH --output=quern-model-%j.log
#SBATCH --signal=B:TERM@180
set -eu
[ $# -gt 0 ] || { echo "usage: sbatch [options of sbatch] model.sh MODEL --split tensors [options of quern serve]"; exit 2; }
: "${SLURM_JOB_NODELIST:?this is for sbatch}"
port=${QUERN_PORT:-8080}
id=${QUERN_ID:-1}
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
echo "    server r$id $first:$port id $id"

# Where one rank ends, all do.
srun --mpi=pmix --kill-on-bad-exit=1 quern serve "$@" --host 0.0.0.0 --port "$port" --metrics --log-format json \
    --grace 120 &
step=$!
trap 'scancel --signal=TERM "$SLURM_JOB_ID.0"' TERM # to its processes; srun itself would kill them
while kill -0 $step 2>/dev/null; do
    wait $step || true # a signal ends it, too
done
