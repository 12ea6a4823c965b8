#!/bin/sh
# Writes manual pages and the scripts that complete command lines, from the program's own tables and the comments of
# quern.h: pages.sh OUT HEADER EMULATOR PROGRAM COMMAND... EMULATOR is "" where the program runs as it is.
set -eu
out=$1 header=$2 emulator=$3 program=$4
shift 4
export QUERN_CONFIG=none
rm -rf "$out"
mkdir -p "$out/man1" "$out/man3"
$emulator "$program" help manual >"$out/man1/quern.1"
for command in "$@"; do
    $emulator "$program" help manual "$command" >"$out/man1/quern-$command.1"
done
for shell in bash zsh fish; do
    $emulator "$program" help completion "$shell" >"$out/quern.$shell"
done
awk -v out="$out/man3" -v version="$($emulator "$program" --version | head -n 1 | cut -d ' ' -f 2)" -f "$(dirname "$0")/man3.awk" "$header"
