#!/bin/sh
# Writes a made-up model of every real shape, opens it, and deletes it again: large_shapes.sh QUERN [FOLDER].
# The largest takes 11 GB for a moment. Not part of the usual tests.
set -eu
quern=$1
folder=$(mktemp -d "${2:-${TMPDIR:-/tmp}}/quern-shapes-XXXXXX")
trap 'rm -rf "$folder"' EXIT
shapes=$("$quern" help synth | tr '\n' ' ' | sed 's/.*SHAPE is //; s/,* or a tiny one.*//; s/,//g')
for shape in $shapes; do
    "$quern" synth "$shape" Q2_K "$folder/model.gguf" >/dev/null
    "$quern" inspect --json "$folder/model.gguf" >"$folder/info.json"
    grep -q '"parameters"' "$folder/info.json" || { echo "$shape: did not open" >&2; exit 1; }
    printf '%-16s %6d MiB, opens\n' "$shape" $(($(wc -c <"$folder/model.gguf") >> 20))
    rm "$folder/model.gguf"
done
