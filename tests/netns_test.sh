#!/bin/sh
# One model on several machines, as far as MPI can tell: network namespaces that are joined by veth. netns_test.sh SOURCE
# BUILD. Every model gives the bits of one process, by both splits, also where a switch holds each message for a time.
# Ends with 77 (skipped) where there is no Open MPI, or namespaces cannot be made.
set -eu
source=$1 build=$2
command -v mpirun >/dev/null 2>&1 && mpirun --version 2>/dev/null | grep -q 'Open MPI' ||
    { echo "no mpirun of Open MPI: skipped"; exit 77; }
command -v ip >/dev/null 2>&1 && [ "$(id -u)" = 0 ] && unshare --net --uts ip link add name a type veth peer name b 2>/dev/null ||
    { echo "no network namespaces: skipped"; exit 77; }
out=$(mktemp)
trap 'rm -f "$out"' EXIT

netns() { BUILD="$build" timeout 300 "$source/tools/netns.sh" "$@" >"$out" 2>&1 </dev/null; }
wrong() {
    echo "netns_test: $*; the output:"
    tail -n 40 "$out"
    exit 1
}

netns --self-test || wrong "namespaces cannot be used"

# same RANKS SPLIT OPTIONS OF NETNS
same() {
    n=$1 split=$2
    shift 2
    netns -n "$n" "$@" "$build/tests/mpi_models" "$split" || wrong "models by $split in $n namespaces, $*"
    [ "$(grep -c 'PASSED.* 1 test' "$out")" = "$n" ] || wrong "want $n ranks that are well"
}
same 2 tensors
same 3 layers -d 300 -r 1gbit
echo "models in network namespaces are well"
