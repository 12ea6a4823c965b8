#!/bin/sh
# Runs a command under mpirun with every rank in a network namespace of its own, all of them joined
# by a switch: machines of a network, as far as Open MPI can tell. Needs root and Linux; leaves
# nothing behind. No address outside of these namespaces is used.
#
#   netns.sh [-n RANKS] [-r RATE] [-d MICROSECONDS] [-m OPTIONS] COMMAND [ARGUMENT]...
#
#   -n RANKS          2 by default, at most 16
#   -r RATE           of each rank's link in both directions, as tc writes it (1gbit); none: no limit
#   -d MICROSECONDS   of each message on its way through the switch, by `bench_delay` in $BUILD
#                     (build); 0 by default
#   -m OPTIONS        for mpirun, such as "--mca NAME VALUE"; QN_MPI_LIBRARY is handed on
#   --self-test       whether namespaces appear, can reach each other, and are gone afterwards
set -eu

usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set' >&2; exit 2; }
fail() { echo "netns: $*" >&2; exit 1; }

build=${BUILD:-$(cd "$(dirname "$0")/.." && pwd)/build}
ranks=2 rate='' delay=0 options='' self_test=0
while [ $# -gt 0 ]; do
    case $1 in
    -n) ranks=${2:?}; shift 2 ;;
    -r) rate=${2:?}; shift 2 ;;
    -d) delay=${2:?}; shift 2 ;;
    -m) options=${2:?}; shift 2 ;;
    --self-test) self_test=1; shift ;;
    -*) usage ;;
    *) break ;;
    esac
done
[ $# -gt 0 ] || [ $self_test = 1 ] || usage
case $ranks in ''|*[!0-9]*) fail "$ranks ranks, want 2 to 16" ;; esac
case $delay in ''|*[!0-9]*) fail "a delay of $delay microseconds, want a whole number" ;; esac
{ [ "$ranks" -ge 2 ] && [ "$ranks" -le 16 ]; } || fail "$ranks ranks, want 2 to 16"
[ "$(id -u)" = 0 ] || fail "needs root, to make network namespaces"
for tool in ip tc mpirun unshare; do
    command -v $tool >/dev/null || fail "$tool is not installed"
done

# --- the network ---------------------------------------------------------------------------------

name=qn$$ # of everything that is made here
work=$(mktemp -d)
switch=$name-switch
switch_process='' command_process=''

# What ran in a namespace would keep it alive: it is ended first.
remove() {
    trap '' EXIT HUP INT TERM
    [ -z "$command_process" ] || kill "$command_process" 2>/dev/null || true
    [ -z "$switch_process" ] || kill "$switch_process" 2>/dev/null || true
    ip netns list | cut -d' ' -f1 | while read -r space; do
        case $space in
        "$name"-*)
            for process in $(ip netns pids "$space"); do kill -9 "$process" 2>/dev/null || true; done
            ip netns delete "$space" || true
            ;;
        esac
    done
    rm -rf "$work"
}
trap 'remove' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

# Queues are short enough to keep memory small and long enough for a full window of TCP.
limit() { # namespace, device
    [ -z "$rate" ] || ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$rate" burst 128kb limit 8mb
}

make_network() {
    ip netns add "$switch"
    ip -n "$switch" link set lo up
    [ "$delay" -gt 0 ] || ip -n "$switch" link add bridge type bridge
    [ "$delay" -gt 0 ] || ip -n "$switch" link set bridge up
    i=0
    while [ $i -lt "$ranks" ]; do
        space=$name-$i
        ip netns add "$space"
        ip -n "$space" link set lo up
        ip link add net0 netns "$space" type veth peer name port$i netns "$switch"
        [ "$delay" -gt 0 ] || ip -n "$switch" link set port$i master bridge
        ip -n "$switch" link set port$i up
        ip -n "$space" address add 10.77.0.$((i + 1))/24 dev net0
        ip -n "$space" link set net0 up
        limit "$space" net0
        limit "$switch" port$i
        i=$((i + 1))
    done
    [ "$delay" -gt 0 ] || return 0
    program=$build/bench/bench_delay
    [ -x "$program" ] || fail "$program is not built, which delays messages"
    ip netns exec "$switch" "$program" "$delay" $(seq -f 'port%g' 0 $((ranks - 1))) &
    switch_process=$!
}

# --- the launcher --------------------------------------------------------------------------------

# In place of ssh: mpirun calls it with an address and a command line for a shell. Each namespace
# has a host name of its own, or Open MPI takes all of them for one machine. It ends names at the
# first dot, so there is none in them.
make_agent() {
    cat >"$work/agent" <<END
#!/bin/sh
host=\$1
shift
space=$name-\$((\${host##*.} - 1))
exec ip netns exec "\$space" unshare --uts sh -c 'hostname "\$1"; shift; exec sh -c "\$*"' sh "\$space" "\$@"
END
    chmod +x "$work/agent"
}

run() {
    exec 3<&0 # a process in the background has no input otherwise
    hosts=$(seq -f '10.77.0.%g:1' -s, 1 "$ranks")
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    export QN_MPI_LIBRARY="${QN_MPI_LIBRARY:-$build/libquern-mpi.so}"
    # Options are words of one text; what is in single quotes is for the inner shell.
    # shellcheck disable=SC2086,SC2016
    ip netns exec "$name-0" unshare --uts sh -c 'hostname "$1"; shift; exec "$@"' sh "$name-0" \
        mpirun -n "$ranks" --host "$hosts" --oversubscribe --bind-to none \
        --mca plm rsh --mca plm_rsh_agent "$work/agent" --mca plm_rsh_no_tree_spawn 1 \
        --mca orte_tmpdir_base "$work" \
        --mca btl tcp,self --mca pml ob1 \
        --mca btl_tcp_if_include 10.77.0.0/24 --mca oob_tcp_if_include 10.77.0.0/24 \
        -x QN_MPI_LIBRARY $options "$@" <&3 &
    command_process=$!
    status=0
    wait "$command_process" || status=$?
    command_process=''
    return $status
}

test_network() {
    [ "$(run hostname </dev/null | sort -u | wc -l)" = "$ranks" ] || fail "ranks are not in $ranks places"
    remove
    ! ip netns list | grep -q "^$name-" || fail "namespaces are left"
    [ ! -e "$work" ] || fail "$work is left"
}

make_network
make_agent
if [ $self_test = 1 ]; then test_network; else run "$@"; fi
