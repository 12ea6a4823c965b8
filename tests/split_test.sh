#!/bin/bash
# One model on several processes, over the real MPI: split_test.sh SOURCE BUILD [KILLS]. Every model gives the bits of one
# process, by program, command line and server; and KILLS times (default 4) a process is killed at a random moment, after
# which all others end, with one message, and clients that rank 0 can still reach have an answer. Ends with 77 (skipped)
# where there is no Open MPI.
set -eu
source=$1 build=$2 kills=${3:-4}
command -v mpirun >/dev/null 2>&1 && mpirun --version 2>/dev/null | grep -q 'Open MPI' ||
    { echo "no mpirun of Open MPI: skipped"; exit 77; }
work=$(mktemp -d)
quern=$work/quern-on-ranks # by a name that no other process has
ln -s "$build/quern" "$quern"
trap 'pkill -9 -f "$work" || true; rm -rf "$work"' EXIT
export QN_MPI_LIBRARY="$build/libquern-mpi.so"
# Containers: root, fewer cores than ranks, no way to read the memory of others, no ssh.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_plm_rsh_agent=false
RANDOM=${SEED:-7}
mini=$source/models/quern-mini-Q8_0.gguf

wrong() {
    echo "split_test: $*"
    for file in out err stream; do [ ! -f "$work/$file" ] || { echo "--- $file:"; tail -n 30 "$work/$file"; }; done
    exit 1
}

nobody_is_left() {
    for _ in $(seq 200); do
        pgrep -f "$quern" >/dev/null || return 0
        sleep 0.1
    done
    ps -ef | grep "$quern"
    wrong "processes are left after $*"
}

# --- the same bits -----------------------------------------------------------------------------------

for split in layers tensors; do
    for n in 1 2 3 4; do
        timeout 300 mpirun -n $n "$build/tests/mpi_models" $split >"$work/out" 2>&1 || wrong "models by $split on $n"
    done
done

# same NAME ARGUMENTS: what the program prints alone, and on ranks.
same() {
    "$quern" "$@" >"$work/alone" 2>"$work/err" || wrong "$*"
    for split in layers tensors; do
        shares=
        [ $split = tensors ] || shares="--shares 2,1,1"
        timeout 120 mpirun -n 3 "$quern" "$@" --split $split $shares -t 1 >"$work/out" 2>"$work/err" </dev/null ||
            wrong "$* by $split"
        cmp -s "$work/alone" "$work/out" || wrong "$* by $split prints something else than '$(cat "$work/alone")'"
        grep -v '^quern: note' "$work/err" | grep -q . && wrong "$* by $split says something"
        true
    done
}
same run "$mini" -p "Tell me a short story." -n 40
same run "$mini" -p "Tell me a short story." -n 40 --temp 0.9 --seed 5 --lookup
same run "$mini" -p "What is 10 + 62?" --draft "$source/models/quern-draft-Q8_0.gguf"
same run "$source/models/quern-hybrid-Q8_0.gguf" -p "What is 10 + 62?" --mtp
same logits "$mini" --ids 1,2,3,4,5 --top 3

# Wrong usage and missing files are told once.
mpirun -n 3 "$quern" run nosuch.gguf --split layers -p x >"$work/out" 2>"$work/err" && wrong "a file that is not there"
[ "$(grep -c '^quern: nosuch.gguf: no such file' "$work/err")" = 1 ] || wrong "want one line about nosuch.gguf"
mpirun -n 3 "$quern" run --split sideways -p x >"$work/out" 2>"$work/err" && wrong "--split sideways"
[ "$(grep -c '^quern:' "$work/err")" = 1 ] || wrong "want one line about --split sideways"
mpirun -n 2 "$quern" run "$mini" --split auto --dry-run >"$work/out" 2>"$work/err" || wrong "--dry-run"
grep -q tensors "$work/out" && grep -q layers "$work/out" || wrong "want a plan"

# --- the end of a rank -------------------------------------------------------------------------------

longest=0
port() { sed -n 's|^  address  http://127.0.0.1:||p' "$work/out" 2>/dev/null; }
story() {
    echo '{"messages":[{"role":"user","content":"Tell me a story."}],"stream":true,"temperature":0,"ignore_eos":true,
           "max_tokens":1500}'
}

# Answers end as they should: whole, or with an error of the stream.
check_stream() {
    [ "$1" = 0 ] || wrong "the client's connection broke off ($1) after $2"
    grep -q -e '^data: \[DONE\]' -e '"error"' "$work/stream" || wrong "a stream without an end, after $2"
}

kill_one() {
    split=$1 victim=$2 ms=$3 phase=$4
    rm -f "$work/stream" "$work/out"
    shares=
    [ "$split" = tensors ] || shares="--shares 1,1,1"
    mpirun -n 3 "$quern" serve "$mini" --split "$split" $shares --port 0 -t 1 >"$work/out" 2>"$work/err" &
    mpirun=$!
    what="the end of rank $victim by $split, $ms ms into $phase"
    curl=
    if [ "$phase" = serving ]; then
        until [ -n "$(port)" ]; do kill -0 $mpirun 2>/dev/null || wrong "serving by $split"; sleep 0.05; done
        story >"$work/story"
        curl -sN --max-time 60 "http://127.0.0.1:$(port)/v1/chat/completions" -d @"$work/story" >"$work/stream" &
        curl=$!
    fi
    sleep "$(printf '0.%03d' "$ms")"
    # Processes are started in the order of their ranks; mpirun's own line begins otherwise.
    pid=
    while [ -z "$pid" ] && kill -0 $mpirun 2>/dev/null; do
        pid=$(pgrep -f "^$quern" | sed -n "$((victim + 1))p")
    done
    [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
    killed=$(date +%s%N)
    code=0
    wait $mpirun || code=$?
    if [ -n "$curl" ]; then
        client=0
        wait $curl || client=$?
        [ "$victim" = 0 ] || check_stream $client "$what"
    fi
    nobody_is_left "$what"
    took=$((($(date +%s%N) - killed) / 1000000))
    [ $took -lt $longest ] || longest=$took
    [ -z "$pid" ] || [ "$code" != 0 ] || wrong "mpirun ends with 0 after $what"
    lines=$(grep -c '^quern: rank' "$work/err" || true)
    [ "$lines" = 1 ] || [ "$phase" = opening -a "$lines" = 0 ] || wrong "$lines messages after $what"
}

for i in $(seq "$kills"); do
    [ $((i % 2)) = 0 ] && split=layers || split=tensors
    [ $((i % 4)) = 3 ] && phase=opening || phase=serving
    kill_one $split $((RANDOM % 3)) $((RANDOM % 700)) $phase
done
echo "models on ranks are well; $kills kills, the longest end took $longest ms"
