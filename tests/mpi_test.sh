#!/bin/sh
# Ranks over the real MPI, oversubscribed on this machine: mpi_test.sh BUILD. Ends with 77 (skipped) where there is no
# Open MPI to start them with.
set -eu
build=$1
command -v mpirun >/dev/null 2>&1 && mpirun --version 2>/dev/null | grep -q 'Open MPI' ||
    { echo "no mpirun of Open MPI: skipped"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
program=$work/mpi_ranks # by a name that no other process has
ln -s "$build/tests/mpi_ranks" "$program"
export QN_MPI_LIBRARY="$build/libquern-mpi.so"
# Containers: root, fewer cores than ranks, no way to read the memory of others, no ssh.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_plm_rsh_agent=false

# launch RANKS ARGUMENTS: what they print is in $work/out; $options are mpirun's.
options=
launch() {
    n=$1
    shift
    code=0
    timeout 60 mpirun --oversubscribe $options -n "$n" "$program" "$@" >"$work/out" 2>&1 || code=$?
}

wrong() {
    echo "mpi_test: $*, with $options; the exit code is $code, and the output:"
    cat "$work/out"
    exit 1
}

# The job has failed, one rank has said this, and nothing of it is left.
must_say() {
    [ "$code" != 0 ] && [ "$code" != 124 ] || wrong "want a failure that says '$1'"
    [ "$(grep -c '^mpi_ranks' "$work/out")" = 1 ] || wrong "want one line of ours, '$1'"
    grep -q "^mpi_ranks $1" "$work/out" || wrong "want '$1'"
    nobody_is_left "$1"
}

nobody_is_left() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        pgrep -f "$program" >/dev/null || return 0
        sleep 0.5
    done
    ps -ef | grep "$program"
    wrong "processes are left after '$1'"
}

for n in 1 2 3 4; do
    launch $n check
    [ "$code" = 0 ] && [ "$(cat "$work/out")" = "$n ranks over mpi are well" ] || wrong "$n ranks"
done

launch 2 disagree 100 50
must_say '0: receive of 50 bytes from rank 1: mpi: a message is longer than what it is received in'
launch 2 disagree 50 100
must_say '0: receive of 100 bytes from rank 1: mpi: a message is shorter than what it is received in'

for options in '--mca btl vader,self' '--mca btl tcp,self'; do
    launch 3 check
    [ "$code" = 0 ] || wrong "3 ranks"
    launch 3 kill 2 100
    must_say '0: rank 2 of 3 was lost'
    launch 3 kill 0 601
    must_say '1: rank 0 of 3 was lost'
    launch 4 kill 1 3
    must_say '0: rank 1 of 4 was lost'
    launch 3 fail 1 102
    must_say '0: rank 1 of 3: the 102-th exchange is not wanted'
done
options=
launch 3 fail 0 0
must_say '0: the 0-th exchange is not wanted'

# slow NAME MESSAGE ARGUMENTS OF LAUNCH: a case that mostly waits, beside others.
slow() (
    work=$work/$1
    program=$work/mpi_ranks message=$2
    mkdir "$work"
    ln -s "$build/tests/mpi_ranks" "$program"
    shift 2
    launch "$@"
    must_say "$message"
)
slow hang "0: rank 1 of 3 does not answer: all_gather of 300 bytes: waited [0-9]* ms, the limit is 2000 ms" 3 hang 1 103 &
first=$!
slow lead "1: rank 0 of 3 does not answer: agreement of [0-9]* bytes: waited [0-9]* ms, the limit is 4000 ms" 3 hang 0 102 &
second=$!
slow late "-1: ranks: not all processes have joined mpi: waited 2000 ms" 3 late 1 &
third=$!
for slow in $first $second $third; do wait $slow; done

# Without mpirun there is no job.
mpirun --oversubscribe -n 3 "$program" hang 0 104 >"$work/out" 2>&1 &
mpirun=$!
until [ "$(pgrep -f "^$program" | wc -l)" = 3 ]; do kill -0 $mpirun || wrong "mpirun has ended"; sleep 0.1; done
kill -9 $mpirun
wait $mpirun || code=$?
nobody_is_left "the end of mpirun"
echo "ranks over MPI are well, and end together"
