#!/bin/sh
# Runs the commands of README.md and docs/tour.md that give the same everywhere, and compares what they print with what
# stands below them there. readme_test.sh SOURCE QUERN
#
# Seconds, speeds and names of plans differ from machine to machine and are not compared.
set -eu
source=$1 quern=$2
work=$(mktemp -d)
hub=
trap 'kill $hub 2>/dev/null || true; rm -rf "$work"' EXIT
mkdir "$work/at" "$work/bin" "$work/cases"
ln -s "$quern" "$work/bin/quern"
ln -s "$source/models" "$source/tests" "$work/at"
PATH=$work/bin:$PATH
cd "$work/at"

# Models are pulled from a hub on loopback and removed from a home folder of ours: not from yours.
mkdir -p "$work/home" "$work/hub/Qwen3-0.6B-GGUF"
cp "$source/models/quern-draft-Q8_0.gguf" "$work/hub/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf"
mkfifo "$work/ports"
python3 "$source/tests/hub_server.py" "$work/hub" "$work/log" >"$work/ports" &
hub=$!
read -r port _ <"$work/ports"
unset QUERN_MODELS QUERN_CONFIG XDG_DATA_HOME XDG_CONFIG_HOME XDG_STATE_HOME HF_HOME HF_HUB_CACHE HF_TOKEN LLAMA_CACHE OLLAMA_MODELS
export HOME="$work/home" HF_ENDPOINT="http://127.0.0.1:$port" no_proxy=127.0.0.1
echo "Hello!" >"$work/hello"

# "    $ COMMAND" with the indented lines below it, up to the next command: cases/N.sh, N.want.
awk -v to="$work/cases/" '
    /^    \$ / { n++; name = sprintf("%s%03d", to, n); sub(/^    \$ /, ""); sub(/ +# .*$/, "")
                 print > (name ".sh"); printf "" > (name ".want"); blanks = ""; next }
    /^$/ { blanks = blanks "\n"; next }
    /^    / && name { sub(/^    /, ""); printf "%s%s\n", blanks, $0 > (name ".want"); blanks = ""; next }
    { name = "" }' "$source/README.md" "$source/docs/tour.md"

normal() {
    sed -e 's/ in [0-9.]* s/ in T s/' -e 's|([0-9]* MiB/s)|(S)|' -e '/\.plan$/d' -e '/ origin$/d' \
        -e 's/-[0-9a-f]\{16\}\.cpu\.packs/-HASH.cpu.packs/' "$1"
}

run=0
for command in "$work"/cases/*.sh; do
    input=/dev/null
    case $(cat "$command") in
    "quern run qwen3-0.6b") input=$work/hello ;; # chats on a terminal, and answers what is piped
    *MODEL*) continue ;;                         # stands for any
    *broken.gguf*) continue ;;                   # stands for a file that is not there
    *bench*|*synth*|*--tasks*) continue ;;       # figures of a machine; large; long
    *--profile*|*--trace*) continue ;;           # say nothing below
    "quern serve"*|curl*) continue ;;            # does not end; asks a server
    esac
    name=${command%.sh}
    sh "$command" >"$name.got" 2>&1 <"$input" || { cat "$command" "$name.got"; exit 1; }
    test -z "$(tail -c 1 "$name.got")" || echo >>"$name.got" # detokenize ends without a newline
    test -s "$name.want" || continue
    normal "$name.want" >"$name.want.normal"
    normal "$name.got" >"$name.got.normal"
    diff -u "$name.want.normal" "$name.got.normal" || { echo "README.md: $(cat "$command")"; exit 1; }
    run=$((run + 1))
done
test "$run" -ge 10 || { echo "only $run examples were compared"; exit 1; }
echo "$run examples of README.md print what it says"
