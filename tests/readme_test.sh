#!/bin/sh
# Runs the commands of README.md and docs/tour.md that give the same everywhere, and compares what they print with what
# stands below them there. readme_test.sh SOURCE QUERN
#
# Seconds, speeds and names of plans differ from machine to machine and are not compared.
set -eu
source=$1 quern=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/at" "$work/bin" "$work/cases"
ln -s "$quern" "$work/bin/quern"
ln -s "$source/models" "$source/tests" "$work/at"
PATH=$work/bin:$PATH
cd "$work/at"

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
    case $(cat "$command") in
    *MODEL*) continue ;;                         # stands for any
    *broken.gguf*) continue ;;                   # stands for a file that is not there
    *bench*|*synth*|*--tasks*) continue ;;       # figures of a machine; large; long
    *--profile*|*--trace*) continue ;;           # say nothing below
    "quern serve"*|curl*) continue ;;            # does not end; asks a server
    esac
    name=${command%.sh}
    sh "$command" >"$name.got" 2>&1 </dev/null || { cat "$command" "$name.got"; exit 1; }
    test -z "$(tail -c 1 "$name.got")" || echo >>"$name.got" # detokenize ends without a newline
    test -s "$name.want" || continue
    normal "$name.want" >"$name.want.normal"
    normal "$name.got" >"$name.got.normal"
    diff -u "$name.want.normal" "$name.got.normal" || { echo "README.md: $(cat "$command")"; exit 1; }
    run=$((run + 1))
done
test "$run" -ge 10 || { echo "only $run examples were compared"; exit 1; }
echo "$run examples of README.md print what it says"
