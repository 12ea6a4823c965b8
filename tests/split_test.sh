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
mini=$source/models/quern-mini-Q8_0.gguf draft=$source/models/quern-draft-Q8_0.gguf

wrong() {
    echo "split_test: $*"
    for file in out err stream; do [ ! -f "$work/$file" ] || { echo "--- $file:"; tail -n 30 "$work/$file"; }; done
    exit 1
}

nobody_is_left() {
    for _ in $(seq 200); do
        pgrep -f "^$quern" >/dev/null || return 0
        sleep 0.1
    done
    ps -ef | grep "$quern"
    wrong "processes are left after $*"
}

# Waits for $mpirun, whose code is $code then. That of Open MPI 4.1 may hang in its own end (PMIx_server_finalize) where
# a process ended while it connected to it: it is ended here where none of ours is left for ten seconds.
await_end() {
    alone=0 code=0
    while kill -0 $mpirun 2>/dev/null; do
        alone=$((alone + 1))
        ! pgrep -f "^$quern" >/dev/null || alone=0
        [ $alone -lt 100 ] || { echo "split_test: mpirun hangs without any rank, after $1"; kill -9 $mpirun; }
        sleep 0.1
    done
    wait $mpirun || code=$?
}

# fails WHAT MPIRUN'S ARGUMENTS
fails() {
    what=$1
    shift
    mpirun "$@" >"$work/out" 2>"$work/err" &
    mpirun=$!
    await_end "$what"
    [ $code != 0 ] || wrong "$what is no failure"
    [ ! -s "$work/out" ] || wrong "an answer after $what"
    nobody_is_left "$what"
}

# One line of ours begins with this, and there is no other.
must_say() {
    [ "$(grep -c '^quern:' "$work/err")" = 1 ] && grep -q "^quern: $1" "$work/err" || wrong "want one line, '$1'"
}

# --- the same bits -----------------------------------------------------------------------------------

for n in 1 2 3; do
    timeout 300 mpirun -n $n "$build/tests/mpi_models" both >"$work/out" 2>&1 || wrong "models on $n"
done
timeout 300 mpirun -n 4 "$build/tests/mpi_models" both "$mini" "$draft" >"$work/out" 2>&1 || wrong "models on 4"

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
same run "$mini" -p "What is 10 + 62?" --draft "$draft"
same run "$source/models/quern-hybrid-Q8_0.gguf" -p "What is 10 + 62?" --mtp
same logits "$mini" --ids 1,2,3,4,5 --top 3

# Wrong usage and missing files are told once.
fails "a file that is not there" -n 3 "$quern" run nosuch.gguf --split layers -p x
must_say 'nosuch.gguf: no such file'
fails "--split sideways" -n 3 "$quern" run --split sideways -p x
must_say '--split'
fails "--bogus" -n 3 "$quern" run "$mini" --split layers --bogus -p x
must_say "run: no option '--bogus'"
fails "--session-state alone" -n 3 -x QUERN_OPT_SPLIT=layers "$quern" run "$mini" --session-state -p x
must_say 'run: --session-state needs --session'
fails "a library that is not there" -n 3 -x QN_MPI_LIBRARY=/nowhere.so "$quern" run "$mini" --split layers -p x
must_say 'ranks: the library /nowhere.so cannot be used'
PMI_SIZE=4 "$quern" run "$mini" --split layers -p x >"$work/out" 2>"$work/err" && wrong "the launcher of another MPI"
must_say 'ranks: a launcher started several processes, but mpi knows of this one alone'
mpirun -n 2 "$quern" tokenize "$mini" x >"$work/out" 2>"$work/err" || wrong "a command that is not split"
[ ! -s "$work/err" ] || wrong "want nothing said of a command that cannot be split"
mpirun -n 2 "$quern" logits "$mini" --ids 1,2 >"$work/out" 2>"$work/err" || wrong "copies"
[ "$(grep -c '^quern: warning: each of the processes that were started does all of this' "$work/err")" = 1 ] ||
    wrong "want one warning of copies"
mpirun -n 2 "$quern" run "$mini" --split auto --dry-run >"$work/out" 2>"$work/err" || wrong "--dry-run"
grep -q tensors "$work/out" && grep -q layers "$work/out" || wrong "want a plan"
# Cores that several may use are divided.
threads() {
    mpirun --bind-to none -n "$1" "$quern" run "$mini" --split layers --dry-run --json 2>"$work/err" |
        grep -o '"threads": [0-9]*' | sort -u | sed 's/.* //'
}
all=$(threads 1) half=$(threads 2)
[ "$half" = $((all > 1 ? all / 2 : 1)) ] || wrong "one rank has $all threads, each of two '$half'"

# One rank that wants or has something else: the message names it, and both values. Nothing is computed.
differ() {
    want=$1
    shift
    fails "ranks that differ" -n 2 "$quern" run "$mini" --split tensors -t 1 -p x : -n 1 "$@" -t 1 -p x
    must_say "$want"
}
# Who finds it first, tells the others: rank 0 may say whom it has it from.
differ '\(rank 2 of 3: \)\{0,1\}ranks differ in the numerics: rank 2 has fast, rank 0 exact$' "$quern" run "$mini" --split tensors --numerics fast
differ '\(rank 2 of 3: \)\{0,1\}ranks differ in the model: rank 2 has .*, rank 0 ' "$quern" run "$draft" --split tensors
differ 'ranks: the library /nowhere.so cannot be used' -x QN_MPI_LIBRARY=/nowhere.so "$quern" run "$mini" --split tensors

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

# serve SPLIT OPTIONS: on three ranks; $mpirun is the launcher's process.
serve() {
    split=$1
    shift
    rm -f "$work/stream" "$work/out"
    shares=
    [ "$split" = tensors ] || shares="--shares 1,1,1"
    mpirun -n 3 "$quern" serve "$mini" --split "$split" $shares --port 0 -t 1 "$@" >"$work/out" 2>"$work/err" &
    mpirun=$!
}

# A client that reads a long answer: $curl is its process.
ask() {
    until [ -n "$(port)" ]; do kill -0 $mpirun 2>/dev/null || wrong "serving by $split"; sleep 0.05; done
    story >"$work/story"
    curl -sN --max-time 60 "http://127.0.0.1:$(port)/v1/chat/completions" -d @"$work/story" >"$work/stream" &
    curl=$!
}

# The process of a rank: they are started in this order; mpirun's own line begins otherwise.
pid_of() { pgrep -f "^$quern" | sed -n "$(($1 + 1))p"; }

kill_one() {
    victim=$2 ms=$3 phase=$4
    serve "$1"
    what="the end of rank $victim by $split, $ms ms into $phase"
    curl=
    [ "$phase" = opening ] || ask
    sleep "$(printf '0.%03d' "$ms")"
    pid=
    while [ -z "$pid" ] && kill -0 $mpirun 2>/dev/null; do pid=$(pid_of "$victim"); done
    [ -z "$pid" ] || kill -9 "$pid" 2>/dev/null || true
    killed=$(date +%s%N)
    nobody_is_left "$what"
    took=$((($(date +%s%N) - killed) / 1000000))
    [ $took -lt $longest ] || longest=$took
    await_end "$what"
    if [ -n "$curl" ]; then
        client=0
        wait $curl || client=$?
        [ "$victim" = 0 ] || check_stream $client "$what"
    fi
    nobody_is_left "$what"
    [ -z "$pid" ] || [ "$code" != 0 ] || wrong "mpirun ends with 0 after $what"
    lines=$(grep -c '^quern: rank' "$work/err" || true)
    [ "$lines" = 1 ] || [ "$phase" = opening -a "$lines" = 0 ] || wrong "$lines messages after $what"
}

# A rank that hangs is named, to clients too, and nothing of it is left.
hang_one() {
    what="rank $2 hangs by $1"
    serve "$1" --rank-timeout 3
    ask
    until grep -q content "$work/stream" 2>/dev/null; do
        kill -0 $mpirun 2>/dev/null || wrong "no answer by $split"
        sleep 0.05
    done
    kill -STOP "$(pid_of "$2")"
    await_end "$what"
    client=0
    wait $curl || client=$?
    [ "$code" != 0 ] || wrong "mpirun ends with 0 after $what"
    check_stream $client "$what"
    [ "$(grep -c "^quern: rank $2 of 3 does not answer: " "$work/err")" = 1 ] || wrong "want rank $2 named once after $what"
    grep -q "rank $2 of 3 does not answer: " "$work/stream" || wrong "want rank $2 named in the stream after $what"
    nobody_is_left "$what"
}
hang_one tensors 1
[ "$kills" -le 4 ] || hang_one layers 2

for i in $(seq "$kills"); do
    [ $((i % 2)) = 0 ] && split=layers || split=tensors
    [ $((i % 4)) = 3 ] && phase=opening || phase=serving
    kill_one $split $((RANDOM % 3)) $((RANDOM % 700)) $phase
done
echo "models on ranks are well; $kills kills, the longest end took $longest ms"
